// dMask: a task owns one tile of the output and sums dS over every axis that the mask broadcasts, in a fixed order.
#pragma once

#include "gradient_tile.h"

namespace flashrt::cpu {
namespace {

class MaskGradientTile {
 public:
  MaskGradientTile(const MaskGradientJob& job, Arena& arena)
      : p_(*job.problem),
        t_(*job.tensors),
        g_(job.geometry),
        tile_(p_, t_, g_, job.delta, arena),
        k_(p_.dtype, p_.D, p_.k.l, kKeyTile, arena),
        v_(p_.dtype, p_.Dv, p_.v.l, kKeyTile, arena) {
    sum_ = arena.floats(kKeyTile * kRowBlock);
  }

  void run(int64_t task) {
    const Strides4& s = t_.d_mask_strides;
    const Axis key = take(task, s.k, g_.key_tiles);
    const Axis row = take(task, s.q, g_.row_blocks);
    const Axis head = take(task, s.h, p_.H);
    const Axis batch = take(task, s.b, p_.B);
    memset(sum_, 0, kKeyTile * kRowBlock * 4);
    for (int64_t b = batch.begin; b < batch.end; ++b)
      for (int64_t h = head.begin; h < head.end; ++h)
        for (int64_t r = row.begin; r < row.end; ++r) add_row_block(b, h, r, key);

    const int64_t keys = min_of<int64_t>(kKeyTile, p_.kL - key.begin * kKeyTile);
    const int64_t rows = min_of<int64_t>(kRowBlock, p_.qL - row.begin * kRowBlock);
    reduce(s.k == 0, s.q == 0);
    float* out =
        t_.d_mask + batch.begin * s.b + head.begin * s.h + row.begin * kRowBlock * s.q + key.begin * kKeyTile * s.k;
    for (int64_t r = 0; r < (s.q == 0 ? 1 : rows); ++r)
      for (int64_t k = 0; k < (s.k == 0 ? 1 : keys); ++k) out[r * s.q + k * s.k] = sum_[k * kRowBlock + r];
  }

 private:
  struct Axis {
    int64_t begin, end;
  };

  /// The part of an axis that the task covers: one step of it, or all of a broadcast one.
  static Axis take(int64_t& task, int64_t stride, int64_t extent) {
    if (stride == 0) return {0, extent};
    const int64_t index = task % extent;
    task /= extent;
    return {index, index + 1};
  }

  void add_row_block(int64_t batch, int64_t head, int64_t row_block, const Axis& tiles) {
    const KeyRange range = g_.ranges[batch * g_.row_blocks + row_block];
    const int64_t kv = head / (p_.H / p_.Hk);
    tile_.start(batch, head, row_block);
    bool loaded = false;
    for (int64_t i = tiles.begin; i < tiles.end; ++i) {
      const int32_t first = i * kKeyTile;
      const int32_t end = min_of<int64_t>(min_of<int64_t>(first + kKeyTile, p_.kL), range.end);
      TileMask mask;
      if (first >= end || first + kKeyTile <= range.begin || !tile_.masker().classify(tile_.rows(), first, end, mask))
        continue;
      if (!loaded) tile_.load_operands();
      loaded = true;
      const KeyRows k = k_.load(t_.k, batch * p_.k.b + kv * p_.k.h + first * p_.k.l, end - first);
      const KeyRows v = v_.load(t_.v, batch * p_.v.b + kv * p_.v.h + first * p_.v.l, end - first);
      tile_.each_part(mask, first, end, [&](int32_t begin, int32_t part_end, int lane, int lane_end) {
        const int64_t keys = part_end - begin;
        tile_.probabilities(mask, first, begin, part_end, lane, lane_end, k, first);
        tile_.score_gradients(begin, part_end, lane, lane_end, v, first);
        for (int64_t k = 0; k < keys; ++k) {
          float* sum = sum_ + (begin - first + k) * kRowBlock;
          const float* d_s = tile_.d_s() + k * kRowBlock;
          for (int l = lane; l < lane_end; l += kLanes) store(sum + l, load(sum + l) + load(d_s + l));
        }
      });
    }
  }

  void reduce(bool over_keys, bool over_rows) {
    if (over_keys)
      for (int64_t k = 1; k < kKeyTile; ++k)
        for (int l = 0; l < kRowBlock; l += kLanes) store(sum_ + l, load(sum_ + l) + load(sum_ + k * kRowBlock + l));
    if (over_rows)
      for (int64_t k = 0; k < (over_keys ? 1 : kKeyTile); ++k)
        for (int l = 1; l < kRowBlock; ++l) sum_[k * kRowBlock] += sum_[k * kRowBlock + l];
  }

  const Problem& p_;
  const Tensors& t_;
  const Geometry& g_;
  GradientTile tile_;
  KeyOperand k_, v_;
  float* sum_ = nullptr;  // [key][row]
};

inline int64_t mask_gradient_scratch(const MaskGradientJob& job) {
  Arena arena{nullptr};
  MaskGradientTile tile(job, arena);
  return arena.used;
}

void mask_gradient_tile(const MaskGradientJob& job, int64_t task, char* scratch) {
  Arena arena{scratch};
  MaskGradientTile tile(job, arena);
  tile.run(task);
}

}  // namespace
}  // namespace flashrt::cpu
