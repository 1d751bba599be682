// The one matrix product of all passes: C[m][n] (+)= A[m][k] * B[k][n] on f32 tiles in cache.
//
// B is row-major and contiguous along n, A is only broadcast, so nothing is packed. With score tiles kept as
// S^T[key][query], every product of attention has this form:
//   S^T = K Q^T, dP^T = V dO^T, dV += P^T dO, dK += dS^T Q  (A by rows)     O += P V, dQ += dS K  (A by columns)
#pragma once

#include "simd.h"

namespace flashrt::cpu {
namespace {

enum class A { by_rows, by_columns };  // element (i,k) at a[i * lda + k], at a[k * lda + i]
enum class C { store, add };

/// ROWS x (VECTORS * kLanes) of C in registers.
template <int ROWS, int VECTORS, A LAYOUT, C MODE>
__attribute__((noinline)) void micro_kernel(int64_t depth, const float* a, int64_t lda, const float* b, int64_t ldb,
                                            float* c, int64_t ldc) {
  Vec acc[ROWS][VECTORS];
#pragma GCC unroll 16
  for (int i = 0; i < ROWS; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < VECTORS; ++j) acc[i][j] = MODE == C::add ? load(c + i * ldc + j * kLanes) : Vec{};
  }
  for (int64_t k = 0; k < depth; ++k) {
    Vec row[VECTORS];
#pragma GCC unroll 4
    for (int j = 0; j < VECTORS; ++j) row[j] = load(b + j * kLanes);
#pragma GCC unroll 16
    for (int i = 0; i < ROWS; ++i) {
      const Vec x = broadcast(LAYOUT == A::by_rows ? a[i * lda] : a[i]);
#pragma GCC unroll 4
      for (int j = 0; j < VECTORS; ++j) acc[i][j] += x * row[j];
    }
    a += LAYOUT == A::by_rows ? 1 : lda;
    b += ldb;
  }
#pragma GCC unroll 16
  for (int i = 0; i < ROWS; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < VECTORS; ++j) store(c + i * ldc + j * kLanes, acc[i][j]);
  }
}

/// The last rows of a panel: the row count that is left picks its own instance.
template <int ROWS, int VECTORS, A LAYOUT, C MODE>
FLASHRT_INLINE void remaining_rows(int64_t rows, int64_t depth, const float* a, int64_t lda, const float* b,
                                   int64_t ldb, float* c, int64_t ldc) {
  if constexpr (ROWS > 0) {
    if (rows == ROWS) return micro_kernel<ROWS, VECTORS, LAYOUT, MODE>(depth, a, lda, b, ldb, c, ldc);
    remaining_rows<ROWS - 1, VECTORS, LAYOUT, MODE>(rows, depth, a, lda, b, ldb, c, ldc);
  }
}

template <int VECTORS, A LAYOUT, C MODE>
void panel(int64_t m, int64_t depth, const float* a, int64_t lda, const float* b, int64_t ldb, float* c, int64_t ldc) {
  const int64_t a_step = LAYOUT == A::by_rows ? lda : 1;
  int64_t i = 0;
  for (; i + kMicroRows <= m; i += kMicroRows)
    micro_kernel<kMicroRows, VECTORS, LAYOUT, MODE>(depth, a + i * a_step, lda, b, ldb, c + i * ldc, ldc);
  remaining_rows<kMicroRows - 1, VECTORS, LAYOUT, MODE>(m - i, depth, a + i * a_step, lda, b, ldb, c + i * ldc, ldc);
}

/// n is a multiple of kLanes. Each element of C is summed in ascending k whatever the tile's size.
template <A LAYOUT, C MODE>
void gemm(int64_t m, int64_t n, int64_t depth, const float* a, int64_t lda, const float* b, int64_t ldb, float* c,
          int64_t ldc) {
  int64_t j = 0;
  for (; j + kPanel <= n; j += kPanel) panel<kPanelVectors, LAYOUT, MODE>(m, depth, a, lda, b + j, ldb, c + j, ldc);
  for (; j < n; j += kLanes) panel<1, LAYOUT, MODE>(m, depth, a, lda, b + j, ldb, c + j, ldc);
}

}  // namespace
}  // namespace flashrt::cpu
