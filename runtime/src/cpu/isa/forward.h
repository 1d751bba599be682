// Forward: one row block against the keys of its range, with a running maximum and sum per lane.
#pragma once

#include "gemm.h"
#include "row_operand.h"
#include "tile_mask.h"

namespace flashrt::cpu {
namespace {

class ForwardBlock {
 public:
  ForwardBlock(const ForwardJob& job, Arena& arena)
      : job_(job),
        p_(*job.problem),
        t_(*job.tensors),
        g_(job.geometry),
        masker_(p_, t_, g_, arena),
        q_(p_.dtype, p_.D, arena),
        k_(p_.dtype, p_.D, p_.k.l, kKeyTile, arena) {
    dv_ = round_up(p_.Dv, kLanes);
    s_ = arena.floats(kKeyTile * kRowBlock);
    o_ = arena.floats(kRowBlock * max_of<int64_t>(dv_, p_.D));
    // Like K, see KeyOperand, but always f32 and in whole vectors.
    v_in_place_ = p_.dtype == Dtype::float32 && p_.v.l == p_.Dv && p_.Dv == dv_;
    if (!v_in_place_) v_tile_ = arena.floats(kKeyTile * dv_);
  }

  void run(int64_t kv_head, int64_t row_block, int32_t split) {
    batch_ = kv_head / p_.Hk;
    kv_ = kv_head % p_.Hk;
    set_rows(p_, t_, g_, batch_, kv_ * g_.group, row_block, rows_);
    const KeyRange range = g_.ranges[batch_ * g_.row_blocks + row_block];
    const int64_t split_begin = static_cast<int64_t>(split) * job_.split_keys;
    const int64_t begin = max_of<int64_t>(range.begin / kKeyTile * kKeyTile, split_begin);
    const int64_t end = min_of<int64_t>(range.end, split_begin + job_.split_keys);
    start(begin < end);
    for (int64_t k = begin; k < end; k += kKeyTile) tile(k, min_of<int64_t>(k + kKeyTile, end));
    if (job_.splits > 1) {
      finish_split(kv_head, row_block, split);
    } else {
      finish();
    }
  }

 private:
  void start(bool sees_keys) {
    for (int l = 0; l < rows_.padded; ++l) {
      m_[l] = kLowest;
      l_[l] = 0.0f;
    }
    if (sees_keys) {
      float* wide = q_.reads_wide() ? o_ : nullptr;  // free until the first product with V
      if (wide) load_rows(rows_, p_.dtype, t_.q, p_.q, p_.D, p_.D, wide);
      q_.load(rows_, t_.q, p_.q, query_factor(p_), wide, p_.D);
    }
    memset(o_, 0, static_cast<size_t>(rows_.count * dv_) * 4);
  }

  void tile(int32_t begin, int32_t end) {
    TileMask mask;
    if (!masker_.classify(rows_, begin, end, mask)) return;
    const int64_t keys = end - begin;
    const int64_t k_offset = batch_ * p_.k.b + kv_ * p_.k.h + begin * p_.k.l;
    const int64_t v_offset = batch_ * p_.v.b + kv_ * p_.v.h + begin * p_.v.l;
    if (v_in_place_ && rows_.count <= kFewRows) {
      // Decoding waits for memory: ask for V before K's products run.
      const float* v = static_cast<const float*>(t_.v) + v_offset;
      prefetch_row(reinterpret_cast<const char*>(v), keys * dv_ * 4);
    }
    const KeyRows k = k_.load(t_.k, k_offset, keys);
    const float* v = v_tile_;
    if (v_in_place_) {
      v = static_cast<const float*>(t_.v) + v_offset;
    } else {
      load_keys(p_.dtype, t_.v, v_offset, p_.v.l, keys, p_.Dv, dv_, v_tile_);
    }
    if (!mask.band) {
      part(mask, begin, begin, end, 0, rows_.padded, k, v);
      return;
    }
    // Each panel of rows meets only its own keys, so a diagonal tile costs about half.
    for (int i = 0; i * kPanel < rows_.padded; ++i) {
      const int32_t first = max_of(begin, rows_.panel_lo[i]);
      const int32_t last = min_of(end - 1, rows_.panel_hi[i]);
      if (first > last) continue;
      part(mask, begin, first, last + 1, i * kPanel, min_of((i + 1) * kPanel, rows_.padded), k, v);
    }
  }

  /// Lanes [lane, lane_end) against keys [begin, end) of the tile that starts at key `tile`, whose operands are k, v.
  void part(const TileMask& mask, int32_t tile, int32_t begin, int32_t end, int lane, int lane_end, const KeyRows& k,
            const float* v) {
    const int64_t keys = end - begin;
    q_.product(k, begin - tile, keys, lane, lane_end, s_);
    masker_.apply(rows_, mask, tile, begin, end, lane, lane_end, s_, nullptr);
    float alpha[kRowBlock];
    for (int l = lane; l < lane_end; l += kLanes) softmax(keys, l, alpha);
    const int last = min_of(lane_end, rows_.count);
    for (int row = lane; row < last; ++row) {
      if (alpha[row] == 1.0f) continue;
      float* o = o_ + row * dv_;
      for (int64_t c = 0; c < dv_; c += kLanes) store(o + c, load(o + c) * alpha[row]);
    }
    gemm<A::by_columns, C::add>(last - lane, dv_, keys, s_ + lane, kRowBlock, v + (begin - tile) * dv_, dv_,
                                o_ + lane * dv_, dv_);
  }

  /// Scores of kLanes rows become exp2(score - maximum); alpha is what older sums have to be multiplied by.
  void softmax(int64_t keys, int lane, float* alpha) {
    float* s = s_ + lane;
    const Vec old = load(m_ + lane);
    Vec m = old, m1 = old;
    int64_t k = 0;
    for (; k + 2 <= keys; k += 2) {
      m = max(m, load(s + k * kRowBlock));
      m1 = max(m1, load(s + (k + 1) * kRowBlock));
    }
    if (k < keys) m = max(m, load(s + k * kRowBlock));
    m = max(m, m1);
    Vec sum{}, sum1{};
    for (k = 0; k + 2 <= keys; k += 2) {
      const Vec e = exp2(load(s + k * kRowBlock) - m);
      const Vec e1 = exp2(load(s + (k + 1) * kRowBlock) - m);
      store(s + k * kRowBlock, e);
      store(s + (k + 1) * kRowBlock, e1);
      sum += e;
      sum1 += e1;
    }
    if (k < keys) {
      const Vec e = exp2(load(s + k * kRowBlock) - m);
      store(s + k * kRowBlock, e);
      sum += e;
    }
    const Vec factor = exp2(old - m);
    store(alpha + lane, factor);
    store(m_ + lane, m);
    store(l_ + lane, load(l_ + lane) * factor + (sum + sum1));
  }

  void finish() {
    for (int l = 0; l < rows_.count; ++l) {
      float m = m_[l], sum = l_[l], weight = 1.0f;
      if (p_.has_sinks) {
        const float sink = t_.sinks[rows_.head[l]] * kLog2e;
        const float top = max_of(m, sink);
        weight = __builtin_exp2f(m - top);
        sum = sum * weight + __builtin_exp2f(sink - top);
        m = top;
      }
      t_.lse[(static_cast<int64_t>(rows_.batch) * p_.H + rows_.head[l]) * p_.qL + rows_.row[l]] =
          sum == 0.0f ? -kInfinity : m + __builtin_log2f(sum);
      store_row(p_.dtype, o_ + l * dv_, p_.Dv, sum == 0.0f ? 0.0f : weight / sum, t_.o, rows_.offset(p_.o, l));
    }
  }

  void finish_split(int64_t kv_head, int64_t row_block, int32_t split) {
    const int64_t first = (split * g_.kv_heads + kv_head) * g_.rows + row_block * kRowBlock;
    for (int l = 0; l < rows_.count; ++l) {
      job_.lse_partial[first + l] = l_[l] == 0.0f ? -kInfinity : m_[l] + __builtin_log2f(l_[l]);
      store_row(Dtype::float32, o_ + l * dv_, p_.Dv, l_[l] == 0.0f ? 0.0f : 1.0f / l_[l], job_.o_partial,
                (first + l) * p_.Dv);
    }
  }

  const ForwardJob& job_;
  const Problem& p_;
  const Tensors& t_;
  const Geometry& g_;
  Masker masker_;
  RowOperand q_;
  KeyOperand k_;
  int64_t batch_ = 0, kv_ = 0;
  int64_t dv_ = 0;  // Dv in whole vectors
  bool v_in_place_ = false;
  float* s_ = nullptr;       // [key][row]: scores, then P
  float* o_ = nullptr;       // [row][dv_]
  float* v_tile_ = nullptr;  // [key][dv_]
  Rows rows_;
  float m_[kRowBlock];  // running maximum and sum
  float l_[kRowBlock];
};

inline int64_t forward_scratch(const ForwardJob& job) {
  Arena arena{nullptr};
  ForwardBlock block(job, arena);
  return arena.used;
}

void forward_block(const ForwardJob& job, int64_t kv_head, int64_t row_block, int32_t split, char* scratch) {
  Arena arena{scratch};
  ForwardBlock block(job, arena);
  block.run(kv_head, row_block, split);
}

/// Joins the key splits of a row block by their LSE, in ascending order, and adds the sink.
void merge_block(const ForwardJob& job, int64_t kv_head, int64_t row_block) {
  const Problem& p = *job.problem;
  const Tensors& t = *job.tensors;
  Rows rows;
  set_rows(p, t, job.geometry, kv_head / p.Hk, kv_head % p.Hk * job.geometry.group, row_block, rows);
  const int64_t split_rows = job.geometry.kv_heads * job.geometry.rows;
  const int64_t first = kv_head * job.geometry.rows + row_block * kRowBlock;
  float out[256];
  for (int l = 0; l < rows.count; ++l) {
    const float sink = p.has_sinks ? t.sinks[rows.head[l]] * kLog2e : -kInfinity;
    float m = max_of(kLowest, sink);
    for (int32_t s = 0; s < job.splits; ++s) m = max_of(m, job.lse_partial[s * split_rows + first + l]);
    float sum = __builtin_exp2f(sink - m);
    memset(out, 0, sizeof(out));
    for (int32_t s = 0; s < job.splits; ++s) {
      const int64_t index = s * split_rows + first + l;
      const float weight = __builtin_exp2f(job.lse_partial[index] - m);
      sum += weight;
      const float* o = job.o_partial + index * p.Dv;
      for (int64_t c = 0; c < p.Dv; ++c) out[c] += weight * o[c];
    }
    t.lse[(static_cast<int64_t>(rows.batch) * p.H + rows.head[l]) * p.qL + rows.row[l]] =
        sum == 0.0f ? -kInfinity : m + __builtin_log2f(sum);
    store_row(p.dtype, out, p.Dv, sum == 0.0f ? 0.0f : 1.0f / sum, t.o, rows.offset(p.o, l));
  }
}

}  // namespace
}  // namespace flashrt::cpu
