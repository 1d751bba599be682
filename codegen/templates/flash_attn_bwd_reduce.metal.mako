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
  const int64_t d = index % p.D, row = index / p.D;
  const int64_t l = row % p.L, head = row / p.L;
  out[head / p.H * p.out.b + head % p.H * p.out.h + l * p.out.l + d] = T(sum);
}
