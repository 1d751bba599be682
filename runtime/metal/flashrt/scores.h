// From raw products to logits: what hides a score (masks, edges) and what shifts it (softcap, ALiBi, additive mask).
//
// A tile is classified before anything of it is loaded: hidden tiles are skipped, open ones run without mask code, and
// only edge tiles pay for apply_terms(). No barriers; classification is uniform over the threadgroup.
#pragma once

#include "flashrt/block.h"
#include "flashrt/tile.h"

namespace flashrt {

/// The operands of one (batch, head) that hide or shift scores; a pointer is set only where its constant says so.
template <typename T>
struct ScoreTerms {
  device const uint8_t* mask;      // bytes, T or f32, at (b, h)
  device const uint8_t* tile_map;  // at (b, h)
  device const int32_t* q_segments;
  device const int32_t* k_segments;
  device const int4* q_bounds;  // {segment min, max, diagonal min, max} per 32 rows
  device const int4* k_bounds;
  device const int32_t* row_diagonals;
  float slope_log2;  // ALiBi
};

/// The optional operands as the kernel received them.
struct ScoreOperands {
  device const uint8_t* mask;
  device const uint8_t* tile_map;
  device const int32_t* q_segments;
  device const int32_t* k_segments;
  device const int4* q_bounds;
  device const int4* k_bounds;
  device const int32_t* row_diagonals;
  device const float* alibi;
};

template <typename T>
METAL_FUNC ScoreTerms<T> score_terms(thread const ScoreOperands& in, constant AttnParams& p, int b, int h) {
  ScoreTerms<T> terms;
  if (has_mask) {
    const int64_t first = b * p.mask.b + h * p.mask.h;
    const int64_t size = mask_is_bool ? 1 : (mask_is_f32 ? 4 : int64_t(sizeof(T)));
    terms.mask = in.mask + first * size;
  }
  if (has_block_mask) {
    terms.tile_map = in.tile_map + (b * p.tile_map.b + h * p.tile_map.h);
  }
  if (has_segments) {
    terms.q_segments = in.q_segments + b * p.q_segments_b;
    terms.k_segments = in.k_segments + b * p.k_segments_b;
    terms.q_bounds = in.q_bounds + b * p.q_bounds_b;
    terms.k_bounds = in.k_bounds + b * p.k_bounds_b;
  }
  if (has_row_diagonals) {
    terms.row_diagonals = in.row_diagonals + b * p.row_diagonals_b;
  }
  if (has_alibi) {
    terms.slope_log2 = in.alibi[b * p.alibi_b + h * p.alibi_h] * kLog2E;
  }
  return terms;
}

/// Union of the bounds of 32-row records [first, last].
METAL_FUNC int4 merge_bounds(device const int4* bounds, int first, int last) {
  int4 all = bounds[first];
  for (int t = first + 1; t <= last; ++t) {
    const int4 next = bounds[t];
    all.x = metal::min(all.x, next.x);
    all.y = metal::max(all.y, next.y);
    all.z = metal::min(all.z, next.z);
    all.w = metal::max(all.w, next.w);
  }
  return all;
}

enum TileState : int32_t {
  kTileHidden,  ///< no score of it is visible: skip it before any load
  kTileOpen,    ///< every score of it is visible and needs the scale alone
  kTileEdge,    ///< scores need apply_terms()
};

/// State of the scores of query rows [q0, q0 + BQ) and keys [k0, k0 + BK). kStored names the axis whose rows past the
/// end are never stored, so that they need no hiding: queries in fwd and dq, keys in dkv.
template <int BQ, int BK, bool kKeysStored, typename T>
METAL_FUNC short classify_tile(thread const ScoreTerms<T>& terms, constant AttnParams& p, int q0, int k0) {
  const int q_last = metal::min(q0 + BQ, p.qL) - 1;
  const int k_last = metal::min(k0 + BK, p.kL) - 1;
  bool edge = has_mask || has_softcap || has_alibi || has_row_diagonals;
  if (!align_K && !kKeysStored) {
    edge = edge || k0 + BK > p.kL;
  }
  if (has_block_mask) {
    bool any = false;
    bool all = true;
    for (int i = q0 / kMapTile; i <= q_last / kMapTile; ++i) {
      for (int j = k0 / kMapTile; j <= k_last / kMapTile; ++j) {
        const bool bit = terms.tile_map[i * p.tile_map.q + j * p.tile_map.k] != 0;
        any = any || bit;
        all = all && bit;
      }
    }
    if (!any) {
      return kTileHidden;
    }
    edge = edge || !all;
  }
  int first_diagonal = q0 + p.q_off;
  int last_diagonal = q_last + p.q_off;
  if (has_segments) {
    const int4 q_bounds = merge_bounds(terms.q_bounds, q0 / kMapTile, q_last / kMapTile);
    const int4 k_bounds = merge_bounds(terms.k_bounds, k0 / kMapTile, k_last / kMapTile);
    if (q_bounds.y < k_bounds.x || k_bounds.y < q_bounds.x) {
      return kTileHidden;
    }
    edge = edge || q_bounds.x != q_bounds.y || k_bounds.x != k_bounds.y;
    if (has_row_diagonals) {
      first_diagonal = q_bounds.z;
      last_diagonal = q_bounds.w;
    }
  }
  if (has_row_diagonals && !has_segments) {
    return kTileEdge;  // no bounds to go by
  }
  if (do_causal || has_window) {
    if (k0 > last_diagonal + right_reach(p)) {
      return kTileHidden;
    }
    edge = edge || k_last > first_diagonal + right_reach(p);
  }
  if (has_window) {
    if (k_last < first_diagonal - p.window_left) {
      return kTileHidden;
    }
    edge = edge || k0 < last_diagonal - p.window_left;
  }
  return edge ? kTileEdge : kTileOpen;
}

/// The additive or boolean mask at (q, k): returns whether the key stays visible, and what is added to its logit.
template <typename T>
METAL_FUNC bool read_mask(thread const ScoreTerms<T>& terms, constant AttnParams& p, int q, int k,
                          thread float& shift_log2) {
  const int64_t at = q * p.mask.q + k * p.mask.k;
  if (mask_is_bool) {
    return terms.mask[at] != 0;
  }
  float value;
  if (mask_is_f32) {
    value = ((device const float*)terms.mask)[at];
  } else {
    value = float(((device const T*)terms.mask)[at]);
  }
  shift_log2 = value * kLog2E;
  return value != -metal::numeric_limits<float>::infinity();
}

/// Keeps visible logits inside [kFloor, -kFloor]; NaN stays NaN.
METAL_FUNC float clamp_logit(float s) { return s < kFloor ? kFloor : (s > -kFloor ? -kFloor : s); }

/// Raw products -> log2-domain logits, hidden ones kMasked. row0, col0: the tile's first row and column in the score
/// matrix; with kKeysInRows its rows are keys and its columns queries.
template <int BQ, int BK, bool kKeysInRows, typename T, int TR, int TC>
METAL_FUNC void apply_terms(thread Tile<TR, TC>& scores, thread const ScoreTerms<T>& terms, constant AttnParams& p,
                            int row0, int col0, LanePos at) {
  FLASHRT_UNROLL
  for (short i = 0; i < TR; ++i) {
    FLASHRT_UNROLL
    for (short j = 0; j < TC; ++j) {
      FLASHRT_UNROLL
      for (short e = 0; e < 2; ++e) {
        const int row = row0 + i * kFrag + at.row;
        const int col = col0 + j * kFrag + at.col + e;
        const int k = kKeysInRows ? row : col;
        const int q = metal::min(kKeysInRows ? col : row, p.qL - 1);  // rows past the end: any address in bounds
        const int key = metal::min(k, p.kL - 1);
        const int diagonal = has_row_diagonals ? terms.row_diagonals[q] : q + p.q_off;
        float s = scores.frag[i * TC + j][e];
        if (has_softcap) {
          s = p.softcap_out_log2 * metal::precise::tanh(s * p.softcap_in);
        } else {
          s *= p.scale_log2;
        }
        if (has_alibi) {
          s -= terms.slope_log2 * float(metal::abs(k - diagonal));
        }
        bool visible = k < p.kL;
        if (do_causal || has_window) {
          visible = visible && k <= diagonal + right_reach(p);
        }
        if (has_window) {
          visible = visible && k >= diagonal - p.window_left;
        }
        // Loads come before the && that would put them behind a branch.
        if (has_segments) {
          const bool same = terms.q_segments[q] == terms.k_segments[key];
          visible = visible && same;
        }
        if (has_block_mask && (BQ > kMapTile || BK > kMapTile)) {
          const bool open = terms.tile_map[q / kMapTile * p.tile_map.q + key / kMapTile * p.tile_map.k] != 0;
          visible = visible && open;
        }
        if (has_mask) {
          float shift_log2 = 0.0f;
          const bool open = read_mask(terms, p, q, key, shift_log2);
          visible = visible && open;
          s = clamp_logit(s) + clamp_logit(shift_log2);
        }
        scores.frag[i * TC + j][e] = visible ? clamp_logit(s) : kMasked;
      }
    }
  }
}

/// d softcap(s) / ds = 1 - tanh^2, taken from the raw products before apply_terms().
template <int TR, int TC>
METAL_FUNC void softcap_slopes(thread Tile<TR, TC>& slopes, thread const Tile<TR, TC>& scores, constant AttnParams& p) {
  FLASHRT_UNROLL
  for (short f = 0; f < TR * TC; ++f) {
    FLASHRT_UNROLL
    for (short e = 0; e < 2; ++e) {
      const float t = metal::precise::tanh(scores.frag[f][e] * p.softcap_in);
      slopes.frag[f][e] = 1.0f - t * t;
    }
  }
}

}  // namespace flashrt
