// Tiles that cross between simdgroups through threadgroup memory, lane by lane: both sides hold the same fragments in
// the same lanes, so no coordinates are needed. The caller places the barriers.
#pragma once

#include "flashrt/tile.h"

namespace flashrt {

/// Writes this simdgroup's partial tile; buffer holds TR * TC * 64 floats of its own.
template <int TR, int TC>
METAL_FUNC void put_tile(threadgroup float* buffer, thread const Tile<TR, TC>& tile, ushort lane) {
  FLASHRT_UNROLL
  for (short f = 0; f < TR * TC; ++f) {
    buffer[(2 * f) * kSimd + lane] = tile.frag[f].x;
    buffer[(2 * f + 1) * kSimd + lane] = tile.frag[f].y;
  }
}

/// tile += the partner's partial. Addition commutes, so both partners get the same bits.
template <int TR, int TC>
METAL_FUNC void add_tile(thread Tile<TR, TC>& tile, threadgroup const float* buffer, ushort lane) {
  FLASHRT_UNROLL
  for (short f = 0; f < TR * TC; ++f) {
    tile.frag[f].x += buffer[(2 * f) * kSimd + lane];
    tile.frag[f].y += buffer[(2 * f + 1) * kSimd + lane];
  }
}

/// P crosses between roles as U: float as it is; half as 2^14 * P, so that P down to 2^-28 stays a normal number.
template <typename U>
struct SlotScale {
  static constant constexpr const float value = 1.0f;
};
template <>
struct SlotScale<half> {
  static constant constexpr const float value = 16384.0f;
};

/// tile -> the value that get_slot() will read.
template <typename U, int TR, int TC>
METAL_FUNC void round_to_slot(thread Tile<TR, TC>& tile) {
  FLASHRT_UNROLL
  for (short f = 0; f < TR * TC; ++f) {
    FLASHRT_UNROLL
    for (short e = 0; e < 2; ++e) {
      tile.frag[f][e] = float(U(tile.frag[f][e] * SlotScale<U>::value)) * (1.0f / SlotScale<U>::value);
    }
  }
}

template <typename U, int TR, int TC>
METAL_FUNC void put_slot(threadgroup U* slot, thread const Tile<TR, TC>& tile, ushort lane) {
  FLASHRT_UNROLL
  for (short f = 0; f < TR * TC; ++f) {
    slot[(2 * f) * kSimd + lane] = U(tile.frag[f].x * SlotScale<U>::value);
    slot[(2 * f + 1) * kSimd + lane] = U(tile.frag[f].y * SlotScale<U>::value);
  }
}

template <typename U, int TR, int TC>
METAL_FUNC void get_slot(thread Tile<TR, TC>& tile, threadgroup const U* slot, ushort lane) {
  FLASHRT_UNROLL
  for (short f = 0; f < TR * TC; ++f) {
    tile.frag[f].x = float(slot[(2 * f) * kSimd + lane]) * (1.0f / SlotScale<U>::value);
    tile.frag[f].y = float(slot[(2 * f + 1) * kSimd + lane]) * (1.0f / SlotScale<U>::value);
  }
}

}  // namespace flashrt
