// The pieces of the backward pass: P from the stored LSE, dS = P * (dP - delta), and the row statistics they need.
//
// All 32 lanes of a simdgroup call together; stage_stats by every thread, the caller places the barriers.
#pragma once

#include "flashrt/tile.h"

namespace flashrt {

/// The LSE of a row as exp2 wants it: a row that saw no key (-inf) gives P = 0.
METAL_FUNC float usable_lse(float lse) {
  if (lse == -metal::numeric_limits<float>::infinity()) {
    return kNoKeysLse;
  }
  return lse;
}

/// LSE and delta of this lane's query rows. Rows past the last one repeat it; they are never stored.
template <int TR>
METAL_FUNC void load_row_stats(thread float* lse, thread float* delta, device const float* lse_in,
                               device const float* delta_in, int row0, int n_rows, LanePos at) {
  FLASHRT_UNROLL
  for (short i = 0; i < TR; ++i) {
    const int row = metal::min(row0 + i * kFrag + at.row, n_rows - 1);
    lse[i] = usable_lse(lse_in[row]);
    delta[i] = delta_in[row];
  }
}

/// stats[2c], stats[2c + 1] = LSE and delta of query row c; rows past the end give P = 0.
template <int kRows, int kThreads>
METAL_FUNC void stage_stats(threadgroup float* stats, device const float* lse, device const float* delta, int n_rows,
                            ushort thread_index) {
  for (int c = thread_index; c < kRows; c += kThreads) {
    stats[2 * c] = c < n_rows ? usable_lse(lse[c]) : kNoKeysLse;
    stats[2 * c + 1] = c < n_rows ? delta[c] : 0.0f;
  }
}

/// scores -> P = exp2(scale_log2 * scores - LSE), rows are queries.
template <int TR, int TC>
METAL_FUNC void probabilities(thread Tile<TR, TC>& scores, thread const float* lse, float scale_log2) {
  FLASHRT_UNROLL
  for (short i = 0; i < TR; ++i) {
    FLASHRT_UNROLL
    for (short j = 0; j < TC; ++j) {
      FLASHRT_UNROLL
      for (short e = 0; e < 2; ++e) {
        scores.frag[i * TC + j][e] = metal::fast::exp2(metal::fma(scores.frag[i * TC + j][e], scale_log2, -lse[i]));
      }
    }
  }
}

/// d_p -> dS = P * (dP - delta), rows are queries.
template <int TR, int TC>
METAL_FUNC void score_gradients(thread Tile<TR, TC>& d_p, thread const Tile<TR, TC>& p, thread const float* delta) {
  FLASHRT_UNROLL
  for (short i = 0; i < TR; ++i) {
    FLASHRT_UNROLL
    for (short j = 0; j < TC; ++j) {
      d_p.frag[i * TC + j] = p.frag[i * TC + j] * (d_p.frag[i * TC + j] - delta[i]);
    }
  }
}

/// scores -> P, columns are queries and their LSE stands in the staged stats.
template <int TR, int TC>
METAL_FUNC void probabilities_t(thread Tile<TR, TC>& scores, threadgroup const float* stats, float scale_log2,
                                LanePos at) {
  FLASHRT_UNROLL
  for (short j = 0; j < TC; ++j) {
    FLASHRT_UNROLL
    for (short e = 0; e < 2; ++e) {
      const float lse = stats[2 * (j * kFrag + at.col + e)];
      FLASHRT_UNROLL
      for (short i = 0; i < TR; ++i) {
        scores.frag[i * TC + j][e] = metal::fast::exp2(metal::fma(scores.frag[i * TC + j][e], scale_log2, -lse));
      }
    }
  }
}

/// d_p -> dS, columns are queries and their delta stands in the staged stats.
template <int TR, int TC>
METAL_FUNC void score_gradients_t(thread Tile<TR, TC>& d_p, thread const Tile<TR, TC>& p,
                                  threadgroup const float* stats, LanePos at) {
  FLASHRT_UNROLL
  for (short j = 0; j < TC; ++j) {
    FLASHRT_UNROLL
    for (short e = 0; e < 2; ++e) {
      const float delta = stats[2 * (j * kFrag + at.col + e) + 1];
      FLASHRT_UNROLL
      for (short i = 0; i < TR; ++i) {
        d_p.frag[i * TC + j][e] = p.frag[i * TC + j][e] * (d_p.frag[i * TC + j][e] - delta);
      }
    }
  }
}

/// d_mask += dS inside the score matrix; rows are queries. Launches that share an element run one after the other.
template <int TR, int TC>
METAL_FUNC void add_mask_gradient(device float* d_mask, thread const Tile<TR, TC>& d_s, constant AttnParams& p,
                                  int row0, int col0, LanePos at) {
  FLASHRT_UNROLL
  for (short i = 0; i < TR; ++i) {
    const int q = row0 + i * kFrag + at.row;
    FLASHRT_UNROLL
    for (short j = 0; j < TC; ++j) {
      FLASHRT_UNROLL
      for (short e = 0; e < 2; ++e) {
        const int k = col0 + j * kFrag + at.col + e;
        if (q < p.qL && k < p.kL) {
          d_mask[q * p.d_mask.q + k * p.d_mask.k] += d_s.frag[i * TC + j][e];
        }
      }
    }
  }
}

template <int TR, int TC>
METAL_FUNC void multiply_tiles(thread Tile<TR, TC>& tile, thread const Tile<TR, TC>& factor) {
  FLASHRT_UNROLL
  for (short f = 0; f < TR * TC; ++f) {
    tile.frag[f] *= factor.frag[f];
  }
}

}  // namespace flashrt
