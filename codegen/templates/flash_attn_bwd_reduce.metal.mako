<%include file="provenance.mako"/>\
#include "flashrt/attention.h"

using namespace flashrt;

using T = ${cfg.dtype.msl};

// Sums the f32 partials of one gradient in ascending split order and rounds once: one element per thread.
[[kernel, max_total_threads_per_threadgroup(${cfg.threads})]]
void ${cfg.name}(
    constant ReduceParams& p [[buffer(kBufHelperParams)]], device T* out [[buffer(kBufHelperOut)]],
    device const float* partials [[buffer(kBufHelperIn0)]], uint3 threadgroup_pos [[threadgroup_position_in_grid]],
    ushort thread_index [[thread_index_in_threadgroup]]) {
  const int64_t index = p.first + int64_t(threadgroup_pos.x) * ${cfg.threads} + thread_index;
  if (index >= p.n) {
    return;
  }
  float sum = 0.0f;
  for (int s = 0; s < p.n_splits; ++s) {
    sum += partials[s * p.n + index];
  }
  const int64_t row = quotient(index, p.D), d = index - row * p.D;
  const int64_t head = quotient(row, p.L), l = row - head * p.L;
  const int64_t b = quotient(head, p.H), h = head - b * p.H;
  out[b * p.out.b + h * p.out.h + l * p.out.l + d] = T(sum);
}
