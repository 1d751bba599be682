// Register tiles of 8x8 fragments, and the three matrix products that attention needs.
//
// A simdgroup holds a fragment as two neighbouring columns of one row per lane. Every product accumulates in f32.
// Called by all 32 lanes of a simdgroup together; no barriers inside.
#pragma once

#include "flashrt/constants.h"

namespace flashrt {

/// Where a lane's pair stands in an 8x8 fragment: (row, col) and (row, col + 1).
struct LanePos {
  short row;
  short col;
};

METAL_FUNC LanePos lane_pos(ushort lane) {
  LanePos at;
  at.row = short(((lane >> 4) << 2) | ((lane >> 1) & 3));
  at.col = short((((lane >> 3) & 1) << 2) | ((lane & 1) << 1));
  return at;
}

template <typename T>
METAL_FUNC metal::vec<T, 2> pair(T first, T second) {
  metal::vec<T, 2> both;
  both[0] = first;
  both[1] = second;
  return both;
}

/// TR x TC fragments; fragment (i, j) is frag[i * TC + j].
template <int TR, int TC>
struct Tile {
  metal::vec<float, 2> frag[TR * TC];
};

template <int TR, int TC>
METAL_FUNC void clear(thread Tile<TR, TC>& tile) {
  FLASHRT_UNROLL
  for (short f = 0; f < TR * TC; ++f) {
    tile.frag[f] = pair(0.0f, 0.0f);
  }
}

template <int TR, int TC>
METAL_FUNC void multiply(thread Tile<TR, TC>& tile, float factor) {
  FLASHRT_UNROLL
  for (short f = 0; f < TR * TC; ++f) {
    tile.frag[f] *= factor;
  }
}

/// acc += a * b for one fragment each. P and dS stay f32 beside 16-bit operands: Apple's compiler takes the mixed form
/// (the D = 256 attention of MLX 0.32.4 is built from it), so they are never rounded. Widening b here is the fallback.
template <typename TA, typename TB>
METAL_FUNC void mma(thread metal::vec<float, 2>& acc, thread const metal::vec<TA, 2>& a,
                    thread const metal::vec<TB, 2>& b) {
  metal::simdgroup_matrix<float, 8, 8> c_mat;
  metal::simdgroup_matrix<TA, 8, 8> a_mat;
  metal::simdgroup_matrix<TB, 8, 8> b_mat;
  reinterpret_cast<thread metal::vec<float, 2>&>(c_mat.thread_elements()) = acc;
  reinterpret_cast<thread metal::vec<TA, 2>&>(a_mat.thread_elements()) = a;
  reinterpret_cast<thread metal::vec<TB, 2>&>(b_mat.thread_elements()) = b;
  metal::simdgroup_multiply_accumulate(c_mat, a_mat, b_mat, c_mat);
  acc = reinterpret_cast<thread metal::vec<float, 2>&>(c_mat.thread_elements());
}

/// scores += A * X^T over kDepth columns.
///
/// a says where this lane's pair of each fragment row of A stands: DeviceRows or StagedRows. x is a threadgroup tile of
/// 8 * TC rows of pitch LD, moved to the first column of the product.
template <typename T, int kDepth, int LD, int TR, int TC, typename Rows>
METAL_FUNC void mma_abt(thread Tile<TR, TC>& scores, thread const Rows& a, threadgroup const T* x, LanePos at) {
  // Rolled by four: fully unrolled, the compiler hoists operand loads until registers spill.
  FLASHRT_UNROLL_4
  for (short d = 0; d < kDepth; d += kFrag) {
    metal::vec<T, 2> pairs[TR];
    FLASHRT_UNROLL
    for (short i = 0; i < TR; ++i) {
      pairs[i] = pair<T>(a.row[i][d], a.row[i][d + 1]);
    }
    FLASHRT_UNROLL
    for (short j = 0; j < TC; ++j) {
      threadgroup const T* column = x + (j * kFrag + at.col) * LD + d + at.row;  // X^T: read transposed
      const metal::vec<T, 2> b = pair<T>(column[0], column[LD]);
      FLASHRT_UNROLL
      for (short i = 0; i < TR; ++i) {
        mma<T, T>(scores.frag[i * TC + j], pairs[i], b);
      }
    }
  }
}

/// acc += P * X for kWidth columns. P (f32) is in registers, x a threadgroup tile of 8 * TC rows of pitch LD, moved to
/// its first column. acc may be wider than kWidth: the role-split kernels share one accumulator between two widths.
template <typename T, int kWidth, int LD, int TR, int TC, int TD>
METAL_FUNC void mma_ab(thread Tile<TR, TD>& acc, thread const Tile<TR, TC>& p, threadgroup const T* x, LanePos at) {
  static_assert(kWidth <= TD * kFrag, "the accumulator holds every column");
  FLASHRT_UNROLL
  for (short d = 0; d < kWidth / kFrag; ++d) {
    FLASHRT_UNROLL
    for (short j = 0; j < TC; ++j) {
      threadgroup const T* row = x + (j * kFrag + at.row) * LD + d * kFrag + at.col;
      const metal::vec<T, 2> b = pair<T>(row[0], row[1]);
      FLASHRT_UNROLL
      for (short i = 0; i < TR; ++i) {
        mma<float, T>(acc.frag[i * TD + d], p.frag[i * TC + j], b);
      }
    }
  }
}

/// Writes kWidth columns of this lane's rows: row0 + 8i of the matrix at out, where it is below n_rows.
template <typename U, int kWidth, int TR, int TD>
METAL_FUNC void store_rows(thread const Tile<TR, TD>& acc, device U* out, int64_t ld, int row0, int n_rows,
                           LanePos at) {
  FLASHRT_UNROLL
  for (short i = 0; i < TR; ++i) {
    const int row = row0 + i * kFrag + at.row;
    if (row < n_rows) {
      device U* to = out + row * ld + at.col;
      FLASHRT_UNROLL
      for (short d = 0; d < kWidth / kFrag; ++d) {
        to[d * kFrag] = U(acc.frag[i * TD + d].x);
        to[d * kFrag + 1] = U(acc.frag[i * TD + d].y);
      }
    }
  }
}

}  // namespace flashrt
