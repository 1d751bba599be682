// Moves rows between device and threadgroup memory.
//
// Called by every thread of the threadgroup; the caller places the barriers.
#pragma once

#include "flashrt/constants.h"

namespace flashrt {

/// The widest copy one thread makes: 16 bytes, aligned only as an element is.
template <typename T>
struct Chunk {
  T v[16 / sizeof(T)];
};

/// tile[r][0..kCols) = src[r][0..kCols) for r < n_rows, zeros below: what lies outside an array never reaches a
/// product.
template <typename T, int kRows, int kCols, int LD, int kThreads>
METAL_FUNC void stage_rows(threadgroup T* tile, device const T* src, int64_t ld, int n_rows, ushort thread_index) {
  constexpr int kPerChunk = 16 / sizeof(T);
  constexpr int kChunks = kCols / kPerChunk;
  static_assert(kCols % kPerChunk == 0, "rows are whole chunks");
  for (int c = thread_index; c < kRows * kChunks; c += kThreads) {
    const int row = c / kChunks;
    const int col = (c % kChunks) * kPerChunk;
    threadgroup T* to = tile + row * LD + col;
    if (row < n_rows) {
      *((threadgroup Chunk<T>*)to) = *((device const Chunk<T>*)(src + row * ld + col));
    } else {
      FLASHRT_UNROLL
      for (short e = 0; e < kPerChunk; ++e) {
        to[e] = T(0);
      }
    }
  }
}

/// Where this lane's first pair of each fragment row of an owner block stands, for mma_abt.
template <typename T, int TR>
struct DeviceRows {
  device const T* row[TR];
};
template <typename T, int TR>
struct StagedRows {
  threadgroup const T* row[TR];
};

/// Rows in device memory. Rows past the last one repeat it: their results are never stored.
template <typename T, int TR>
METAL_FUNC DeviceRows<T, TR> owner_rows(device const T* src, int64_t ld, int row0, int n_rows, LanePos at) {
  DeviceRows<T, TR> rows;
  FLASHRT_UNROLL
  for (short i = 0; i < TR; ++i) {
    rows.row[i] = src + metal::min(row0 + i * kFrag + at.row, n_rows - 1) * ld + at.col;
  }
  return rows;
}

/// Rows staged in threadgroup memory with pitch LD.
template <typename T, int TR, int LD>
METAL_FUNC StagedRows<T, TR> staged_rows(threadgroup const T* tile, int row0, LanePos at) {
  StagedRows<T, TR> rows;
  FLASHRT_UNROLL
  for (short i = 0; i < TR; ++i) {
    rows.row[i] = tile + (row0 + i * kFrag + at.row) * LD + at.col;
  }
  return rows;
}

}  // namespace flashrt
