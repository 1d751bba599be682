// Keys (or values) as the side of a product that is only broadcast: f32, or bfloat16 where the CPU multiplies pairs.
#pragma once

#include "arena.h"
#include "convert.h"

namespace flashrt::cpu {
namespace {

#if defined(__AVX512BF16__)
constexpr bool kHasPairProducts = true;
#else
constexpr bool kHasPairProducts = false;
#endif

/// Is a product over `columns` of this dtype made of bfloat16 pairs?
FLASHRT_INLINE bool takes_pairs(Dtype dtype, int64_t columns) {
  return kHasPairProducts && dtype == Dtype::bfloat16 && columns % 2 == 0;
}

/// Consecutive keys of one kv head as f32, with zeros from `columns` up to `ld`.
inline void load_keys(Dtype dtype, const void* base, int64_t offset, int64_t stride, int64_t keys, int64_t columns,
                      int64_t ld, float* out) {
  for (int64_t k = 0; k < keys; ++k) {
    float* row = out + k * ld;
    load_row(dtype, base, offset + k * stride, columns, row);
    for (int64_t c = columns; c < ld; ++c) row[c] = 0.0f;
  }
}

struct KeyRows {
  const void* data;  ///< uint16_t where takes_pairs(), float otherwise
  int64_t stride;    ///< elements
};

/// Brings rows of K or V into the form of KeyRows.
class KeyOperand {
 public:
  KeyOperand(Dtype dtype, int64_t columns, int64_t row_stride, int64_t capacity, Arena& arena)
      : dtype_(dtype), columns_(columns), row_stride_(row_stride), pairs_(takes_pairs(dtype, columns)) {
    // Rows that follow each other are read in place. Longer strides are not: rows a power of two apart would evict
    // each other.
    in_place_ = (pairs_ || dtype == Dtype::float32) && row_stride == columns;
    if (!in_place_) copy_ = arena.floats(capacity * (pairs_ ? columns / 2 : columns));
  }

  KeyRows load(const void* base, int64_t offset, int64_t keys) {
    if (in_place_) return {static_cast<const char*>(base) + offset * (pairs_ ? 2 : 4), row_stride_};
    if (pairs_) {
      const uint16_t* in = static_cast<const uint16_t*>(base) + offset;
      uint16_t* out = reinterpret_cast<uint16_t*>(copy_);
      for (int64_t k = 0; k < keys; ++k)
        memcpy(out + k * columns_, in + k * row_stride_, static_cast<size_t>(columns_) * 2);
    } else {
      load_keys(dtype_, base, offset, row_stride_, keys, columns_, columns_, copy_);
    }
    return {copy_, columns_};
  }

 private:
  Dtype dtype_;
  int64_t columns_, row_stride_;
  bool pairs_, in_place_;
  float* copy_ = nullptr;
};

}  // namespace
}  // namespace flashrt::cpu
