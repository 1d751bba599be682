// Which keys of a score tile each row sees, and what is added to their scores.
//
// A tile is hidden (skipped), interior (no mask code runs on its scores) or an edge. Scores lie as S^T[key][row lane],
// kRowBlock floats a key.
#pragma once

#include "rows.h"
#include "transpose.h"

namespace flashrt::cpu {
namespace {

/// What has to be applied to the scores of a visible tile.
struct TileMask {
  bool band;      ///< causal or window hides part of it
  bool segments;  ///< ids differ within it
  bool bias;      ///< the array or block mask says something other than "plainly visible"
};

class Masker {
 public:
  Masker(const Problem& p, const Tensors& t, const Geometry& g, Arena& arena) : p_(p), t_(t), g_(g) {
    if (!has_bias()) return;
    bias_ = arena.floats(kKeyTile * kRowBlock);
    bias_rows_ = arena.floats(kRowBlock * kKeyTile);
  }

  /// False for a tile whose every score is hidden. Keys [begin, end) lie in one tile of kKeyTile.
  bool classify(const Rows& rows, int32_t begin, int32_t end, TileMask& mask) {
    mask = {};
    if (g_.banded) {
      if (begin > rows.hi_max || end - 1 < rows.lo_min) return false;
      mask.band = begin < rows.lo_max || end - 1 > rows.hi_min;
    }
    if (p_.has_segments) {
      const IdBounds keys = g_.key_bounds[rows.batch * g_.key_tiles + begin / kKeyTile];
      if (keys.max < rows.segment_min || keys.min > rows.segment_max) return false;
      mask.segments = keys.min != keys.max || rows.segment_min != rows.segment_max;
    }
    return !has_bias() || load_bias(rows, begin, end, mask);
  }

  /// From scaled products to logits of lanes [lane, lane_end) and keys [begin, end), log2 domain, -inf where hidden.
  /// `scores` is the row of key `begin`; `tile` the first key that classify() saw.
  /// With a softcap and `slope` given, it receives the cap's derivative.
  void apply(const Rows& rows, const TileMask& mask, int32_t tile, int32_t begin, int32_t end, int lane, int lane_end,
             float* scores, float* slope) const {
    const int64_t keys = end - begin;
    if (p_.softcap > 0.0f) apply_softcap(keys, lane, lane_end, scores, slope);
    if (p_.has_alibi) {
      each(keys, lane, lane_end, scores, [&](int64_t k, int l, Vec s) {
        const IntVec distance = load(rows.diagonal + l) - static_cast<int32_t>(begin + k);
        const IntVec absolute = distance < 0 ? -distance : distance;
        return s - load(rows.slope + l) * __builtin_convertvector(absolute, Vec);
      });
    }
    if (mask.bias) {
      const float* bias = bias_ + static_cast<int64_t>(begin - tile) * kRowBlock;
      each(keys, lane, lane_end, scores, [&](int64_t k, int l, Vec s) {
        const Vec b = load(bias + k * kRowBlock + l);
        return b == -kInfinity ? broadcast(-kInfinity) : s + b;
      });
    }
    if (mask.band) {
      each(keys, lane, lane_end, scores, [&](int64_t k, int l, Vec s) {
        const IntVec key = broadcast(static_cast<int32_t>(begin + k));
        return ((key < load(rows.lo + l)) | (key > load(rows.hi + l))) ? broadcast(-kInfinity) : s;
      });
    }
    if (mask.segments) {
      const int32_t* ids = t_.k_segments + rows.batch * p_.k_segments_b + begin;
      each(keys, lane, lane_end, scores,
           [&](int64_t k, int l, Vec s) { return load(rows.segment + l) != ids[k] ? broadcast(-kInfinity) : s; });
    }
  }

 private:
  bool has_bias() const { return p_.mask_kind != MaskKind::none || p_.has_block_mask; }

  template <typename F>
  static FLASHRT_INLINE void each(int64_t keys, int lane, int lane_end, float* scores, F f) {
    for (int64_t k = 0; k < keys; ++k) {
      float* row = scores + k * kRowBlock;
      for (int l = lane; l < lane_end; l += kLanes) store(row + l, f(k, l, load(row + l)));
    }
  }

  void apply_softcap(int64_t keys, int lane, int lane_end, float* scores, float* slope) const {
    const float cap = p_.softcap * kLog2e;
    each(keys, lane, lane_end, scores, [&](int64_t k, int l, Vec s) {
      const Vec t = tanh(s);
      if (slope) store(slope + k * kRowBlock + l, 1.0f - t * t);
      return cap * t;
    });
  }

  /// Additive value in the log2 domain; finite ones stay finite and so stay arithmetic.
  static FLASHRT_INLINE float additive(float x) {
    if (x == -kInfinity) return x;
    const float y = x * kLog2e;
    return y < -kMaskLimit ? -kMaskLimit : y > kMaskLimit ? kMaskLimit : y;
  }

  void load_mask_row(const Rows& rows, int lane, int32_t begin, int32_t keys, float* out) const {
    const Strides4& s = p_.mask;
    const int64_t offset = rows.batch * s.b + rows.head[lane] * s.h + rows.row[lane] * s.q + begin * s.k;
    if (p_.mask_kind == MaskKind::none) {
      for (int32_t k = 0; k < keys; ++k) out[k] = 0.0f;
    } else if (p_.mask_kind == MaskKind::boolean) {
      const uint8_t* bytes = static_cast<const uint8_t*>(t_.mask) + offset;
      if (s.k == 1) {
        for (int32_t k = 0; k < keys; ++k) out[k] = bytes[k] ? 0.0f : -kInfinity;  // a loop that becomes vectors
      } else {
        for (int32_t k = 0; k < keys; ++k) out[k] = bytes[k * s.k] ? 0.0f : -kInfinity;
      }
    } else {
      const Dtype dtype = p_.mask_kind == MaskKind::in_f32 ? Dtype::float32 : p_.dtype;
      if (s.k == 1) {
        load_row(dtype, t_.mask, offset, keys, out);
      } else {
        for (int32_t k = 0; k < keys; ++k) out[k] = load_value(dtype, t_.mask, offset + k * s.k);
      }
      for (int32_t k = 0; k < keys; ++k) out[k] = additive(out[k]);
    }
  }

  void hide_blocks(const Rows& rows, int lane, int32_t begin, int32_t end, float* out) const {
    const Strides4& s = p_.block_mask;
    const uint8_t* blocks = t_.block_mask + rows.batch * s.b + rows.head[lane] * s.h + rows.row[lane] / kMapTile * s.q;
    for (int32_t k = begin; k < end;) {
      const int32_t block_end = min_of(end, (k / kMapTile + 1) * kMapTile);
      if (blocks[k / kMapTile * s.k]) {
        k = block_end;
      } else {
        for (; k < block_end; ++k) out[k - begin] = -kInfinity;
      }
    }
  }

  /// Reads the tile's part of the array and block masks; false when they hide all of it.
  bool load_bias(const Rows& rows, int32_t begin, int32_t end, TileMask& mask) {
    const int32_t keys = end - begin;
    const bool shared = rows.shares_mask_row && !p_.has_block_mask;
    const int distinct = shared ? 1 : rows.count;
    bool visible = false;
    for (int lane = 0; lane < distinct; ++lane) {
      float* out = bias_rows_ + lane * kKeyTile;
      load_mask_row(rows, lane, begin, keys, out);
      if (p_.has_block_mask) hide_blocks(rows, lane, begin, end, out);
      int seen = 0, plain = 0;
      for (int32_t k = 0; k < keys; ++k) {
        seen += out[k] != -kInfinity;
        plain += out[k] == 0.0f;
      }
      visible |= seen != 0;
      mask.bias |= plain != keys;
    }
    if (!visible || !mask.bias) return visible;
    if (shared) {
      for (int32_t k = 0; k < keys; ++k)
        for (int l = 0; l < rows.padded; l += kLanes) store(bias_ + k * kRowBlock + l, broadcast(bias_rows_[k]));
    } else {
      const float* row[kRowBlock];
      for (int lane = 0; lane < rows.count; ++lane) row[lane] = bias_rows_ + lane * kKeyTile;
      transpose<Scaling::none>(row, rows.count, keys, 1.0f, bias_, kRowBlock);
    }
    return true;
  }

  const Problem& p_;
  const Tensors& t_;
  const Geometry& g_;
  float* bias_ = nullptr;       // [key][lane]
  float* bias_rows_ = nullptr;  // [lane][key]
};

}  // namespace
}  // namespace flashrt::cpu
