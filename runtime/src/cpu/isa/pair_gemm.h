// gemm.h's product for bfloat16 operands, two at a time into f32 sums: for CPUs with AVX512_BF16 alone.
#pragma once

#if defined(__AVX512BF16__)
#include <immintrin.h>

#include "simd.h"

namespace flashrt::cpu {
namespace {

/// Like micro_kernel, depth counted in pairs; C = factor * A * B.
template <int ROWS, int VECTORS>
__attribute__((noinline)) void pair_kernel(int64_t depth, const uint16_t* a, int64_t lda, const float* b, int64_t ldb,
                                           float factor, float* c, int64_t ldc) {
  Vec acc[ROWS][VECTORS] = {};
  for (int64_t k = 0; k < depth; ++k) {
    __m512bh row[VECTORS];
#pragma GCC unroll 4
    for (int j = 0; j < VECTORS; ++j) row[j] = (__m512bh)load(b + j * kLanes);
#pragma GCC unroll 16
    for (int i = 0; i < ROWS; ++i) {
      int32_t pair;
      memcpy(&pair, a + i * lda, 4);
      const __m512bh x = (__m512bh)broadcast(pair);
#pragma GCC unroll 4
      for (int j = 0; j < VECTORS; ++j) acc[i][j] = (Vec)_mm512_dpbf16_ps((__m512)acc[i][j], x, row[j]);
    }
    a += 2;
    b += ldb;
  }
#pragma GCC unroll 16
  for (int i = 0; i < ROWS; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < VECTORS; ++j) store(c + i * ldc + j * kLanes, acc[i][j] * factor);
  }
}

template <int ROWS, int VECTORS>
FLASHRT_INLINE void remaining_pair_rows(int64_t rows, int64_t depth, const uint16_t* a, int64_t lda, const float* b,
                                        int64_t ldb, float factor, float* c, int64_t ldc) {
  if constexpr (ROWS > 0) {
    if (rows == ROWS) return pair_kernel<ROWS, VECTORS>(depth, a, lda, b, ldb, factor, c, ldc);
    remaining_pair_rows<ROWS - 1, VECTORS>(rows, depth, a, lda, b, ldb, factor, c, ldc);
  }
}

template <int VECTORS>
FLASHRT_INLINE void pair_panel(int64_t m, int64_t depth, const uint16_t* a, int64_t lda, const float* b, int64_t ldb,
                               float factor, float* c, int64_t ldc) {
  int64_t i = 0;
  for (; i + kMicroRows <= m; i += kMicroRows)
    pair_kernel<kMicroRows, VECTORS>(depth, a + i * lda, lda, b, ldb, factor, c + i * ldc, ldc);
  remaining_pair_rows<kMicroRows - 1, VECTORS>(m - i, depth, a + i * lda, lda, b, ldb, factor, c + i * ldc, ldc);
}

/// C = factor * A * B with A by rows; B holds pairs of its rows, n (of C's columns) is a multiple of kLanes.
inline void pair_gemm(int64_t m, int64_t n, int64_t depth, const uint16_t* a, int64_t lda, const float* b, int64_t ldb,
                      float factor, float* c, int64_t ldc) {
  int64_t j = 0;
  for (; j + kPanel <= n; j += kPanel) pair_panel<kPanelVectors>(m, depth, a, lda, b + j, ldb, factor, c + j, ldc);
  for (; j < n; j += kLanes) pair_panel<1>(m, depth, a, lda, b + j, ldb, factor, c + j, ldc);
}

}  // namespace
}  // namespace flashrt::cpu
#endif
