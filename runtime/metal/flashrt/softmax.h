// Online softmax over the rows of a score tile, in log2 domain and f32.
//
// All 32 lanes of a simdgroup call together. Lanes that differ in bits 0 and 3 share a row.
#pragma once

#include "flashrt/scores.h"

namespace flashrt {

/// Running maximum m (log2 logits) and this lane's share of the running sum l, per fragment row.
template <int TR>
struct SoftmaxState {
  float m[TR];
  float l[TR];
};

METAL_FUNC float row_max(float x) {
  x = metal::max(x, metal::simd_shuffle_xor(x, ushort(1)));
  return metal::max(x, metal::simd_shuffle_xor(x, ushort(8)));
}

METAL_FUNC float row_sum(float x) {
  x += metal::simd_shuffle_xor(x, ushort(1));
  return x + metal::simd_shuffle_xor(x, ushort(8));
}

/// No key seen yet; or only the sink, a key of logit sink and value zero.
template <int TR>
METAL_FUNC void start(thread SoftmaxState<TR>& state, bool with_sink, float sink_log2, LanePos at) {
  FLASHRT_UNROLL
  for (short i = 0; i < TR; ++i) {
    state.m[i] = with_sink ? clamp_logit(sink_log2) : kFloor;
    state.l[i] = with_sink && at.col == 0 ? 1.0f : 0.0f;  // one lane of the row: l is summed over lanes at the end
  }
}

/// scores -> P = exp2(scale_log2 * scores - m) with the new m; l and acc are rescaled to it. The scale costs nothing:
/// it rides in the multiply-add under the exponential.
template <int TR, int TC, int TD>
METAL_FUNC void update(thread SoftmaxState<TR>& state, thread Tile<TR, TC>& scores, thread Tile<TR, TD>& acc,
                       float scale_log2) {
  FLASHRT_UNROLL
  for (short i = 0; i < TR; ++i) {
    float largest = metal::max(scores.frag[i * TC].x, scores.frag[i * TC].y);
    FLASHRT_UNROLL
    for (short j = 1; j < TC; ++j) {
      largest = metal::max(largest, metal::max(scores.frag[i * TC + j].x, scores.frag[i * TC + j].y));
    }
    const float m = metal::max(state.m[i], scale_log2 * row_max(largest));
    const float rescale = metal::fast::exp2(state.m[i] - m);
    float sum = 0.0f;
    FLASHRT_UNROLL
    for (short j = 0; j < TC; ++j) {
      FLASHRT_UNROLL
      for (short e = 0; e < 2; ++e) {
        const float p = metal::fast::exp2(metal::fma(scores.frag[i * TC + j][e], scale_log2, -m));
        scores.frag[i * TC + j][e] = p;
        sum += p;
      }
    }
    state.m[i] = m;
    state.l[i] = state.l[i] * rescale + sum;
    FLASHRT_UNROLL
    for (short d = 0; d < TD; ++d) {
      acc.frag[i * TD + d] *= rescale;
    }
  }
}

/// acc -> O = acc / l (zero for a row that saw nothing); state.l becomes the whole row's sum.
template <int TR, int TD>
METAL_FUNC void finish(thread SoftmaxState<TR>& state, thread Tile<TR, TD>& acc) {
  FLASHRT_UNROLL
  for (short i = 0; i < TR; ++i) {
    state.l[i] = row_sum(state.l[i]);
    const float inverse = state.l[i] == 0.0f ? 0.0f : 1.0f / state.l[i];
    FLASHRT_UNROLL
    for (short d = 0; d < TD; ++d) {
      acc.frag[i * TD + d] *= inverse;
    }
  }
}

/// LSE = m + log2(l), taken from the sum that finish() left; -inf for a row that saw nothing.
template <int TR>
METAL_FUNC void store_lse(thread const SoftmaxState<TR>& state, device float* lse, int row0, int n_rows, LanePos at) {
  FLASHRT_UNROLL
  for (short i = 0; i < TR; ++i) {
    const int row = row0 + i * kFrag + at.row;
    if (at.col == 0 && row < n_rows) {
      lse[row] = state.l[i] == 0.0f ? -metal::numeric_limits<float>::infinity()
                                    : state.m[i] + metal::precise::log2(state.l[i]);
    }
  }
}

}  // namespace flashrt
