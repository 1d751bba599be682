// Query rows as the lanes of a product with keys: S^T = K Q^T and dP^T = V dO^T.
//
// Where the CPU multiplies bfloat16 pairs into f32, these two products take the operands as they are: products of
// bfloat16 are exact in f32, so only the speed differs. P and dS are f32 and their products stay so.
#pragma once

#include "dot_rows.h"
#include "gemm.h"
#include "pair_gemm.h"
#include "rows.h"
#include "transpose.h"

namespace flashrt::cpu {
namespace {

class RowOperand {
 public:
  RowOperand(Dtype dtype, int64_t columns, Arena& arena)
      : dtype_(dtype), columns_(columns), pairs_(takes_pairs(dtype, columns)) {
    lanes_ = arena.floats((pairs_ ? columns / 2 : columns) * kRowBlock + kFewRows * kLanes);
  }

  /// Takes the rows of an operand, to be multiplied by `factor`. `wide`, if given, holds them as f32 rows, `ld` apart;
  /// without it f32 rows and bfloat16 pairs are read where they are.
  void load(const Rows& rows, const void* base, const Strides3& strides, float factor, const float* wide, int64_t ld) {
    const float* row[kRowBlock];
    for (int l = 0; l < rows.count; ++l) {
      const int64_t offset = rows.offset(strides, l);
      if (pairs_) {
        row[l] = reinterpret_cast<const float*>(static_cast<const uint16_t*>(base) + offset);
      } else {
        row[l] = wide ? wide + l * ld : static_cast<const float*>(base) + offset;
      }
    }
    factor_ = factor;
    few_ = rows.count <= kFewRows ? rows.count : 0;
    if (few_) {
      load_few(row);
    } else if (pairs_) {
      transpose<Scaling::none>(row, rows.count, columns_ / 2, 1.0f, lanes_, kRowBlock);
    } else {
      transpose<Scaling::factor>(row, rows.count, columns_, factor, lanes_, kRowBlock);
    }
  }

  bool reads_wide() const { return !pairs_ && dtype_ != Dtype::float32; }

  /// out[key][lane] = factor * keys . rows for keys [first, first + count) of `keys`, lanes [lane, lane_end).
  void product(const KeyRows& keys, int64_t first, int64_t count, int lane, int lane_end, float* out) const {
    if (few_) return few_product<kFewRows>(keys, first, count, out);
#if defined(__AVX512BF16__)
    if (pairs_) {
      const uint16_t* a = static_cast<const uint16_t*>(keys.data) + first * keys.stride;
      pair_gemm(count, lane_end - lane, columns_ / 2, a, keys.stride, lanes_ + lane, kRowBlock, factor_, out + lane,
                kRowBlock);
      return;
    }
#endif
    const float* a = static_cast<const float*>(keys.data) + first * keys.stride;
    gemm<A::by_rows, C::store>(count, lane_end - lane, columns_, a, keys.stride, lanes_ + lane, kRowBlock, out + lane,
                               kRowBlock);
  }

 private:
  /// Few rows stay rows; pairs are padded with zeros to whole vectors.
  void load_few(const float* const* row) {
    for (int r = 0; r < few_; ++r) {
      if (pairs_) {
        uint16_t* out = reinterpret_cast<uint16_t*>(lanes_) + r * few_stride();
        memcpy(out, row[r], static_cast<size_t>(columns_) * 2);
        memset(out + columns_, 0, static_cast<size_t>(few_stride() - columns_) * 2);
      } else {
        float* out = lanes_ + r * few_stride();
        for (int64_t c = 0; c < columns_; ++c) out[c] = row[r][c] * factor_;
      }
    }
  }

  int64_t few_stride() const { return round_up(columns_, pairs_ ? 2 * kLanes : kLanes); }

  template <int ROWS>
  void few_product(const KeyRows& keys, int64_t first, int64_t count, float* out) const {
    if constexpr (ROWS > 0) {
      if (few_ != ROWS) return few_product<ROWS - 1>(keys, first, count, out);
#if defined(__AVX512BF16__)
      if (pairs_) {
        dot_pair_rows<ROWS>(count, columns_, static_cast<const uint16_t*>(keys.data) + first * keys.stride, keys.stride,
                            reinterpret_cast<const uint16_t*>(lanes_), few_stride(), factor_, out);
        return;
      }
#endif
      dot_rows<ROWS>(count, columns_, static_cast<const float*>(keys.data) + first * keys.stride, keys.stride, lanes_,
                     few_stride(), out);
    }
  }

  Dtype dtype_;
  int64_t columns_;
  bool pairs_;
  float factor_ = 1.0f;
  int few_ = 0;   // the row count where it is at most kFewRows
  float* lanes_;  // [column or pair][row], or the few rows
};

}  // namespace
}  // namespace flashrt::cpu
