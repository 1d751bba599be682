// Rows become lanes: the transposition of small f32 tiles.
#pragma once

#include "simd.h"

namespace flashrt::cpu {
namespace {

typedef float Quad __attribute__((vector_size(16)));
typedef float UnalignedQuad __attribute__((vector_size(16), aligned(4), may_alias));

enum class Scaling { none, factor };  // none moves bits: the values need not be floats

/// out[c * ld + r] = row[r][c] * factor, with zeros for rows from `rows` up to whole vectors.
template <Scaling SCALING>
void transpose(const float* const* row, int64_t rows, int64_t columns, float factor, float* out, int64_t ld) {
  const auto load_quad = [](const float* p) { return *reinterpret_cast<const UnalignedQuad*>(p); };
  const auto store_quad = [&](float* p, Quad q) {
    *reinterpret_cast<UnalignedQuad*>(p) = SCALING == Scaling::factor ? q * factor : q;
  };
  const auto move = [&](float* p, const float* from) {
    if constexpr (SCALING == Scaling::factor) {
      *p = *from * factor;
    } else {
      memcpy(p, from, 4);
    }
  };
  const int64_t padded = round_up(rows, kLanes);
  int64_t r = 0;
  for (; r + 4 <= rows; r += 4) {
    int64_t c = 0;
    for (; c + 4 <= columns; c += 4) {
      const Quad r0 = load_quad(row[r] + c), r1 = load_quad(row[r + 1] + c);
      const Quad r2 = load_quad(row[r + 2] + c), r3 = load_quad(row[r + 3] + c);
      const Quad low01 = __builtin_shufflevector(r0, r1, 0, 4, 1, 5);
      const Quad low23 = __builtin_shufflevector(r2, r3, 0, 4, 1, 5);
      const Quad high01 = __builtin_shufflevector(r0, r1, 2, 6, 3, 7);
      const Quad high23 = __builtin_shufflevector(r2, r3, 2, 6, 3, 7);
      float* column = out + c * ld + r;
      store_quad(column, __builtin_shufflevector(low01, low23, 0, 1, 4, 5));
      store_quad(column + ld, __builtin_shufflevector(low01, low23, 2, 3, 6, 7));
      store_quad(column + 2 * ld, __builtin_shufflevector(high01, high23, 0, 1, 4, 5));
      store_quad(column + 3 * ld, __builtin_shufflevector(high01, high23, 2, 3, 6, 7));
    }
    for (; c < columns; ++c)
      for (int64_t i = r; i < r + 4; ++i) move(out + c * ld + i, row[i] + c);
  }
  for (; r < rows; ++r)
    for (int64_t c = 0; c < columns; ++c) move(out + c * ld + r, row[r] + c);
  for (; r < padded; ++r)
    for (int64_t c = 0; c < columns; ++c) out[c * ld + r] = 0.0f;
}

}  // namespace
}  // namespace flashrt::cpu
