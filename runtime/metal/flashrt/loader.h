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

/// Copies chunk c of a tile that is kChunks chunks wide.
template <typename T, int kChunks, int LD>
METAL_FUNC void copy_chunk(threadgroup T* tile, device const T* src, int64_t ld, int c) {
  const int row = c / kChunks;
  const int col = c % kChunks * int(16 / sizeof(T));
  *((threadgroup Chunk<T>*)(tile + row * LD + col)) = *((device const Chunk<T>*)(src + row * ld + col));
}

/// tile[r][0..kCols) = src[r][0..kCols) for r < n_rows, zeros below: what lies outside an array never reaches a
/// product.
template <typename T, int kRows, int kCols, int LD, int kThreads>
METAL_FUNC void stage_rows(threadgroup T* tile, device const T* src, int64_t ld, int n_rows, ushort thread_index) {
  constexpr int kPerChunk = 16 / sizeof(T);
  constexpr int kChunks = kCols / kPerChunk;
  constexpr int kTotal = kRows * kChunks;
  constexpr int kRounds = kTotal / kThreads;  // in which every thread has a chunk
  constexpr int kRest = kTotal % kThreads;
  static_assert(kCols % kPerChunk == 0, "rows are whole chunks");
  if (n_rows >= kRows) {
    // No row is missing, which is the same for all threads: without a branch among them, the loads overlap.
    if (kRest == 0 && kThreads % kChunks == 0) {
      constexpr int kStep = kThreads / kChunks;  // a thread keeps its column and steps down the rows
      FLASHRT_UNROLL_4
      for (short i = 0; i < kRounds; ++i) {
        copy_chunk<T, kChunks, LD>(tile, src, ld, thread_index);
        tile += kStep * LD;
        src += kStep * ld;
      }
    } else {
      FLASHRT_UNROLL_4
      for (short i = 0; i < kRounds; ++i) {
        copy_chunk<T, kChunks, LD>(tile, src, ld, thread_index + i * kThreads);
      }
      if (thread_index < kRest) {
        copy_chunk<T, kChunks, LD>(tile, src, ld, thread_index + kRounds * kThreads);
      }
    }
    return;
  }
  for (int c = thread_index; c < kTotal; c += kThreads) {
    if (c / kChunks < n_rows) {
      copy_chunk<T, kChunks, LD>(tile, src, ld, c);
    } else {
      threadgroup T* to = tile + c / kChunks * LD + c % kChunks * kPerChunk;
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
