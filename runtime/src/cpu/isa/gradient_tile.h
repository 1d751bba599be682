// P and dS of a score tile, recomputed from q, k, v, dO, LSE and delta: shared by the backward and the mask gradient.
#pragma once

#include "row_operand.h"
#include "tile_mask.h"

namespace flashrt::cpu {
namespace {

class GradientTile {
 public:
  GradientTile(const Problem& p, const Tensors& t, const Geometry& g, const float* delta, Arena& arena)
      : p_(p),
        t_(t),
        g_(g),
        delta_(delta),
        masker_(p, t, g, arena),
        q_t_(p.dtype, p.D, arena),
        d_o_t_(p.dtype, p.Dv, arena) {
    d_ = round_up(p.D, kLanes);
    dv_ = round_up(p.Dv, kLanes);
    // f32 rows that follow each other are read in place.
    const bool even = p.dtype == Dtype::float32 && g.group == 1;
    if (!(even && p.q.l == d_ && p.D == d_)) q_copy_ = arena.floats(kRowBlock * d_);
    if (!(even && p.d_o.l == dv_ && p.Dv == dv_)) d_o_copy_ = arena.floats(kRowBlock * dv_);
    p_t_ = arena.floats(kKeyTile * kRowBlock);
    d_s_t_ = arena.floats(kKeyTile * kRowBlock);
    if (p.softcap > 0.0f) slope_ = arena.floats(kKeyTile * kRowBlock);
  }

  Masker& masker() { return masker_; }
  const Rows& rows() const { return rows_; }
  const float* q() const { return q_; }      // [row][d_], as given
  const float* d_o() const { return d_o_; }  // [row][dv_]
  const float* p() const { return p_t_; }    // [key][row]
  const float* d_s() const { return d_s_t_; }

  void start(int64_t batch, int64_t first_head, int64_t row_block) {
    set_rows(p_, t_, g_, batch, first_head, row_block, rows_);
  }

  /// Loads the operands of the rows; done late, as rows without a visible tile need none.
  void load_operands() {
    q_ = rows_of(t_.q, p_.q, p_.D, d_, q_copy_);
    d_o_ = rows_of(t_.d_o, p_.d_o, p_.Dv, dv_, d_o_copy_);
    q_t_.load(rows_, t_.q, p_.q, query_factor(p_), q_, d_);
    d_o_t_.load(rows_, t_.d_o, p_.d_o, 1.0f, d_o_, dv_);
    for (int l = 0; l < rows_.padded; ++l) {
      lse_[l] = kInfinity;  // P = 0: padding, and rows that see nothing
      delta_row_[l] = 0.0f;
      if (l >= rows_.count) continue;
      const int64_t index = (static_cast<int64_t>(rows_.batch) * p_.H + rows_.head[l]) * p_.qL + rows_.row[l];
      if (t_.lse[index] != -kInfinity) lse_[l] = t_.lse[index];
      delta_row_[l] = delta_[index];
    }
  }

  /// Calls f(first key, key end, first lane, lane end) for the parts of a visible tile that the band leaves.
  template <typename F>
  FLASHRT_INLINE void each_part(const TileMask& mask, int32_t begin, int32_t end, F f) const {
    if (!mask.band) {
      f(begin, end, 0, rows_.padded);
      return;
    }
    for (int i = 0; i * kPanel < rows_.padded; ++i) {
      const int32_t first = max_of(begin, rows_.panel_lo[i]);
      const int32_t last = min_of(end - 1, rows_.panel_hi[i]);
      if (first <= last) f(first, last + 1, i * kPanel, min_of((i + 1) * kPanel, rows_.padded));
    }
  }

  /// P^T of keys [begin, end) of the tile that starts at key `tile`, the first one in row 0; `k` holds keys from
  /// `first_key` on.
  void probabilities(const TileMask& mask, int32_t tile, int32_t begin, int32_t end, int lane, int lane_end,
                     const KeyRows& k, int64_t first_key) {
    const int64_t keys = end - begin;
    q_t_.product(k, begin - first_key, keys, lane, lane_end, p_t_);
    masker_.apply(rows_, mask, tile, begin, end, lane, lane_end, p_t_, slope_);
    for (int64_t row = 0; row < keys; ++row) {
      float* s = p_t_ + row * kRowBlock;
      for (int l = lane; l < lane_end; l += kLanes) store(s + l, exp2(load(s + l) - load(lse_ + l)));
    }
  }

  /// dS^T = P * (dP - delta) of the same keys, with respect to the logits that the masks were added to; `v` holds
  /// values from `first_key` on.
  void score_gradients(int32_t begin, int32_t end, int lane, int lane_end, const KeyRows& v, int64_t first_key) {
    const int64_t keys = end - begin;
    d_o_t_.product(v, begin - first_key, keys, lane, lane_end, d_s_t_);
    for (int64_t row = 0; row < keys; ++row) {
      float* d_s = d_s_t_ + row * kRowBlock;
      const float* p = p_t_ + row * kRowBlock;
      for (int l = lane; l < lane_end; l += kLanes)
        store(d_s + l, load(p + l) * (load(d_s + l) - load(delta_row_ + l)));
    }
  }

  /// From the gradient of the capped scores to that of scale * q.k.
  void through_softcap(int64_t keys, int lane, int lane_end) {
    if (!slope_) return;
    for (int64_t row = 0; row < keys; ++row) {
      float* d_s = d_s_t_ + row * kRowBlock;
      const float* slope = slope_ + row * kRowBlock;
      for (int l = lane; l < lane_end; l += kLanes) store(d_s + l, load(d_s + l) * load(slope + l));
    }
  }

 private:
  const float* rows_of(const void* base, const Strides3& strides, int64_t columns, int64_t ld, float* copy) const {
    if (!copy) return static_cast<const float*>(base) + rows_.offset(strides, 0);
    load_rows(rows_, p_.dtype, base, strides, columns, ld, copy);
    return copy;
  }

  const Problem& p_;
  const Tensors& t_;
  const Geometry& g_;
  const float* delta_;
  Masker masker_;
  RowOperand q_t_, d_o_t_;
  int64_t d_ = 0, dv_ = 0;
  const float *q_ = nullptr, *d_o_ = nullptr;      // [row][d_], [row][dv_]
  float *q_copy_ = nullptr, *d_o_copy_ = nullptr;  // where they have to be f32 or padded first
  float *p_t_ = nullptr, *d_s_t_ = nullptr, *slope_ = nullptr;
  Rows rows_;
  float lse_[kRowBlock];
  float delta_row_[kRowBlock];
};

}  // namespace
}  // namespace flashrt::cpu
