// Rows become lanes: the transposition of small f32 tiles.
#pragma once

#include <utility>

#include "simd.h"

namespace flashrt::cpu {
namespace {

enum class Scaling { none, factor };  // none moves bits: the values need not be floats

/// Exchanges bit STEP of the row with that of the column, for rows STEP apart. LANE counts the lanes.
template <int STEP, int... LANE>
FLASHRT_INLINE void exchange(Vec& low, Vec& high, std::integer_sequence<int, LANE...>) {
  const Vec a = low, b = high;
  low = __builtin_shufflevector(a, b, (LANE & STEP ? kLanes + LANE - STEP : LANE)...);
  high = __builtin_shufflevector(a, b, (LANE & STEP ? kLanes + LANE : LANE + STEP)...);
}

template <int STEP>
FLASHRT_INLINE void transpose_square(Vec (&v)[kLanes]) {
  if constexpr (STEP < kLanes) {
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i)
      if ((i & STEP) == 0) exchange<STEP>(v[i], v[i + STEP], std::make_integer_sequence<int, kLanes>());
    transpose_square<2 * STEP>(v);
  }
}

/// out[c * ld + r] = row[r][c] * factor, with zeros for rows from `rows` up to whole vectors. At most 256 columns.
template <Scaling SCALING>
void transpose(const float* const* row, int64_t rows, int64_t columns, float factor, float* out, int64_t ld) {
  alignas(64) static const float kZeros[256] = {};
  for (int64_t r = 0; r < rows; r += kLanes) {
    const float* from[kLanes];
    for (int i = 0; i < kLanes; ++i) from[i] = r + i < rows ? row[r + i] : kZeros;
    int64_t c = 0;
    for (; c + kLanes <= columns; c += kLanes) {
      Vec v[kLanes];
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) v[i] = load(from[i] + c);
      transpose_square<1>(v);
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) store(out + (c + i) * ld + r, SCALING == Scaling::factor ? v[i] * factor : v[i]);
    }
    for (; c < columns; ++c) {
      for (int i = 0; i < kLanes; ++i) {
        float* to = out + c * ld + r + i;
        if constexpr (SCALING == Scaling::factor) {
          *to = from[i][c] * factor;
        } else {
          memcpy(to, from[i] + c, 4);
        }
      }
    }
  }
}

}  // namespace
}  // namespace flashrt::cpu
