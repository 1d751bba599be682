// Products of keys with very few query rows: dot products along the head dim, each key read once and ahead of use.
//
// As lanes of gemm() such rows would leave most of a vector empty, and reading keys element by element is slower than
// memory delivers them.
#pragma once

#include <utility>

#include "key_operand.h"

namespace flashrt::cpu {
namespace {

constexpr int kFewRows = kLanes >= 8 ? 4 : 2;
constexpr int64_t kKeysAhead = 8;

template <int STEP, int... LANE>
FLASHRT_INLINE Vec add_lanes(Vec v, std::integer_sequence<int, LANE...>) {
  return v + __builtin_shufflevector(v, v, (LANE ^ STEP)...);
}

template <int STEP = kLanes / 2>
FLASHRT_INLINE float sum_of_lanes(Vec v) {
  if constexpr (STEP == 0) {
    return v[0];
  } else {
    return sum_of_lanes<STEP / 2>(add_lanes<STEP>(v, std::make_integer_sequence<int, kLanes>()));
  }
}

FLASHRT_INLINE void prefetch_row(const char* row, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(row + i);
}

/// out[key * kRowBlock + row] = keys . rows, with zeros in the other lanes of the first vector; rows lie `ld` apart.
template <int ROWS>
void dot_rows(int64_t count, int64_t columns, const float* key, int64_t stride, const float* rows, int64_t ld,
              float* out) {
  for (int64_t k = 0; k < count; ++k, key += stride, out += kRowBlock) {
    prefetch_row(reinterpret_cast<const char*>(key + kKeysAhead * stride), columns * 4);
    Vec acc[ROWS] = {};
    int64_t c = 0;
    for (; c + kLanes <= columns; c += kLanes) {
      const Vec x = load(key + c);
#pragma GCC unroll 4
      for (int r = 0; r < ROWS; ++r) acc[r] += x * load(rows + r * ld + c);
    }
    float tail[ROWS] = {};
    for (; c < columns; ++c)
      for (int r = 0; r < ROWS; ++r) tail[r] += key[c] * rows[r * ld + c];
    store(out, Vec{});
    for (int r = 0; r < ROWS; ++r) out[r] = sum_of_lanes(acc[r]) + tail[r];
  }
}

#if defined(__AVX512BF16__)
/// Likewise for bfloat16 pairs, times `factor`; `columns` and `ld` still count single values. Rows hold zeros from
/// `columns` up to whole vectors.
template <int ROWS>
void dot_pair_rows(int64_t count, int64_t columns, const uint16_t* key, int64_t stride, const uint16_t* rows,
                   int64_t ld, float factor, float* out) {
  for (int64_t k = 0; k < count; ++k, key += stride, out += kRowBlock) {
    prefetch_row(reinterpret_cast<const char*>(key + kKeysAhead * stride), columns * 2);
    Vec acc[ROWS] = {};
    for (int64_t c = 0; c < columns; c += 2 * kLanes) {
      const int64_t pairs = min_of<int64_t>((columns - c) / 2, kLanes);
      const __mmask16 inside = static_cast<__mmask16>((1u << pairs) - 1);
      const __m512bh x = (__m512bh)_mm512_maskz_loadu_epi32(inside, key + c);
#pragma GCC unroll 4
      for (int r = 0; r < ROWS; ++r)
        acc[r] = (Vec)_mm512_dpbf16_ps((__m512)acc[r], x, (__m512bh)_mm512_loadu_si512(rows + r * ld + c));
    }
    store(out, Vec{});
    for (int r = 0; r < ROWS; ++r) out[r] = sum_of_lanes(acc[r]) * factor;
  }
}
#endif

}  // namespace
}  // namespace flashrt::cpu
