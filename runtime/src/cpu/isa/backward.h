// Backward: one super-block of keys against every row block that may see it, five products a tile.
//
// K, V, dK and dV of the super-block stay in cache while q and dO stream past. dK and dV belong to the task; dQ of a
// row block gets its part of each super-block in turn, so every sum has one order whatever the number of threads.
#pragma once

#include "gradient_tile.h"

namespace flashrt::cpu {
namespace {

class BackwardSuperBlock {
 public:
  BackwardSuperBlock(const BackwardJob& job, Arena& arena)
      : job_(job),
        p_(*job.problem),
        t_(*job.tensors),
        g_(job.geometry),
        tile_(p_, t_, g_, job.delta, arena),
        k_scores_(p_.dtype, p_.D, p_.k.l, job.super_keys, arena),
        v_(p_.dtype, p_.Dv, p_.v.l, job.super_keys, arena) {
    d_ = round_up(p_.D, kLanes);
    dv_ = round_up(p_.Dv, kLanes);
    if (t_.d_q) k_ = arena.floats(job.super_keys * d_);
    if (t_.d_k) d_k_ = arena.floats(job.super_keys * d_);
    if (t_.d_v) d_v_ = arena.floats(job.super_keys * dv_);
  }

  void run(int64_t kv_head, int32_t super_block) {
    kv_head_ = kv_head;
    super_block_ = super_block;
    const int64_t batch = kv_head / p_.Hk, kv = kv_head % p_.Hk;
    begin_ = static_cast<int64_t>(super_block) * job_.super_keys;
    end_ = min_of<int64_t>(begin_ + job_.super_keys, p_.kL);
    const int64_t keys = end_ - begin_;
    const int64_t k_offset = batch * p_.k.b + kv * p_.k.h + begin_ * p_.k.l;
    k_rows_ = k_scores_.load(t_.k, k_offset, keys);
    v_rows_ = v_.load(t_.v, batch * p_.v.b + kv * p_.v.h + begin_ * p_.v.l, keys);
    if (k_) {
      load_keys(p_.dtype, t_.k, k_offset, p_.k.l, keys, p_.D, d_, k_);
      for (int64_t i = 0; i < keys * d_; i += kLanes) store(k_ + i, load(k_ + i) * p_.scale);
    }
    if (d_k_) memset(d_k_, 0, static_cast<size_t>(keys * d_) * 4);
    if (d_v_) memset(d_v_, 0, static_cast<size_t>(keys * dv_) * 4);

    // Descending: all super-blocks of a head meet at its last rows first, so a later one follows one block behind.
    for (int64_t block = g_.row_blocks - 1; block >= 0; --block) {
      const KeyRange range = g_.ranges[batch * g_.row_blocks + block];
      if (range.begin >= range.end) continue;
      const int32_t first = range.begin / job_.super_keys;
      const int32_t last = (range.end - 1) / job_.super_keys;
      if (super_block < first || super_block > last) continue;
      tile_.start(batch, kv * g_.group, block);
      if (t_.d_q) open_dq(block, super_block == first);
      add_row_block(range);
      if (t_.d_q) close_dq(block, super_block == last);
    }

    for (int64_t k = begin_; k < end_; ++k) {
      if (d_k_)
        store_row(p_.dtype, d_k_ + (k - begin_) * d_, p_.D, p_.scale, t_.d_k,
                  batch * p_.d_k.b + kv * p_.d_k.h + k * p_.d_k.l);
      if (d_v_)
        store_row(p_.dtype, d_v_ + (k - begin_) * dv_, p_.Dv, 1.0f, t_.d_v,
                  batch * p_.d_v.b + kv * p_.d_v.h + k * p_.d_v.l);
    }
  }

 private:
  void add_row_block(const KeyRange& range) {
    const Rows& rows = tile_.rows();
    bool loaded = false;
    const int64_t first = max_of<int64_t>(begin_, range.begin / kKeyTile * kKeyTile);
    const int64_t last = min_of<int64_t>(end_, range.end);
    for (int64_t key = first; key < last; key += kKeyTile) {
      const int64_t key_end = min_of<int64_t>(key + kKeyTile, last);
      TileMask mask;
      if (!tile_.masker().classify(rows, key, key_end, mask)) continue;
      if (!loaded) tile_.load_operands();
      loaded = true;
      tile_.each_part(mask, key, key_end, [&](int32_t begin, int32_t end, int lane, int lane_end) {
        add_part(mask, key, begin, end, lane, lane_end);
      });
    }
  }

  void add_part(const TileMask& mask, int32_t tile, int32_t begin, int32_t end, int lane, int lane_end) {
    const int64_t keys = end - begin;
    const int64_t rows = min_of(lane_end, tile_.rows().count) - lane;
    tile_.probabilities(mask, tile, begin, end, lane, lane_end, k_rows_, begin_);
    if (d_v_)
      gemm<A::by_rows, C::add>(keys, dv_, rows, tile_.p() + lane, kRowBlock, tile_.d_o() + lane * dv_, dv_,
                               d_v_ + (begin - begin_) * dv_, dv_);
    if (!d_k_ && !k_) return;
    tile_.score_gradients(begin, end, lane, lane_end, v_rows_, begin_);
    tile_.through_softcap(keys, lane, lane_end);
    if (d_k_)
      gemm<A::by_rows, C::add>(keys, d_, rows, tile_.d_s() + lane, kRowBlock, tile_.q() + lane * d_, d_,
                               d_k_ + (begin - begin_) * d_, d_);
    if (k_)
      gemm<A::by_columns, C::add>(rows, d_, keys, tile_.d_s() + lane, kRowBlock, k_ + (begin - begin_) * d_, d_,
                                  d_q_ + lane * d_q_ld_, d_q_ld_);
  }

  /// Waits until this super-block's turn to add to the block's dQ, and finds where to add.
  void open_dq(int64_t block, bool is_first) {
    const Rows& rows = tile_.rows();
    if (job_.dq_slots) {
      if (kv_head_ >= job_.slot_count) job_.wait_for(job_.finished + kv_head_ - job_.slot_count, job_.super_blocks);
      d_q_ld_ = job_.slot_stride;
      d_q_ = job_.dq_slots + (kv_head_ % job_.slot_count * g_.rows + block * kRowBlock) * d_q_ld_;
    } else {
      d_q_ld_ = p_.d_q.l;
      d_q_ = static_cast<float*>(t_.d_q) + rows.offset(p_.d_q, 0);
    }
    if (!is_first) {
      job_.wait_for(job_.turns + kv_head_ * g_.row_blocks + block, super_block_);
      return;
    }
    for (int l = 0; l < rows.count; ++l) memset(d_q_ + l * d_q_ld_, 0, static_cast<size_t>(d_) * 4);
  }

  void close_dq(int64_t block, bool is_last) {
    const Rows& rows = tile_.rows();
    if (is_last && job_.dq_slots)
      for (int l = 0; l < rows.count; ++l)
        store_row(p_.dtype, d_q_ + l * d_q_ld_, p_.D, 1.0f, t_.d_q, rows.offset(p_.d_q, l));
    __atomic_store_n(job_.turns + kv_head_ * g_.row_blocks + block, super_block_ + 1, __ATOMIC_RELEASE);
  }

  const BackwardJob& job_;
  const Problem& p_;
  const Tensors& t_;
  const Geometry& g_;
  GradientTile tile_;
  KeyOperand k_scores_, v_;
  int64_t d_ = 0, dv_ = 0;  // D and Dv in whole vectors
  int64_t kv_head_ = 0, begin_ = 0, end_ = 0;
  int32_t super_block_ = 0;
  KeyRows k_rows_{}, v_rows_{};            // of this super-block, for S and dP
  float* k_ = nullptr;                     // [key][d_] for dQ, scaled
  float *d_k_ = nullptr, *d_v_ = nullptr;  // [key][d_], [key][dv_]; null when not wanted, like the others
  float* d_q_ = nullptr;                   // [row][d_q_ld_], the sum over the super-blocks so far
  int64_t d_q_ld_ = 0;
};

inline int64_t backward_scratch(const BackwardJob& job) {
  Arena arena{nullptr};
  BackwardSuperBlock block(job, arena);
  return arena.used;
}

void backward_super_block(const BackwardJob& job, int64_t kv_head, int32_t super_block, char* scratch) {
  Arena arena{scratch};
  BackwardSuperBlock block(job, arena);
  block.run(kv_head, super_block);
}

/// delta = rowsum(dO*O) - dLSE of a row block. Rows whose range is empty get their dQ here: no super-block visits them.
void delta_block(const BackwardJob& job, int64_t kv_head, int64_t row_block, float* delta) {
  const Problem& p = *job.problem;
  const Tensors& t = *job.tensors;
  const int64_t batch = kv_head / p.Hk;
  Rows rows;
  set_rows(p, t, job.geometry, batch, kv_head % p.Hk * job.geometry.group, row_block, rows);
  const KeyRange range = job.geometry.ranges[batch * job.geometry.row_blocks + row_block];
  float o[256], d_o[256];
  for (int l = 0; l < rows.count; ++l) {
    const int64_t index = (static_cast<int64_t>(rows.batch) * p.H + rows.head[l]) * p.qL + rows.row[l];
    load_row(p.dtype, t.o, rows.offset(p.o, l), p.Dv, o);
    load_row(p.dtype, t.d_o, rows.offset(p.d_o, l), p.Dv, d_o);
    Vec sums{};
    int64_t c = 0;
    for (; c + kLanes <= p.Dv; c += kLanes) sums += load(o + c) * load(d_o + c);
    float sum = 0.0f;
    for (int i = 0; i < kLanes; ++i) sum += sums[i];
    for (; c < p.Dv; ++c) sum += o[c] * d_o[c];
    if (p.has_dlse) sum -= kLog2e * t.d_lse[index];
    delta[index] = t.lse[index] == -kInfinity ? 0.0f : sum;  // such a row has no gradient, whatever its cotangents
    if (t.d_q && range.begin >= range.end) {
      const float zeros[256] = {};
      store_row(p.dtype, zeros, p.D, 1.0f, t.d_q, rows.offset(p.d_q, l));
    }
  }
}

}  // namespace
}  // namespace flashrt::cpu
