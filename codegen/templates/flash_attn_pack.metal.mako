<%include file="provenance.mako"/>\
#include "flashrt/attention.h"

using namespace flashrt;

using T = ${cfg.dtype.msl};

// Makes an operand contiguous whose last axis is not: one element per thread.
[[kernel, max_total_threads_per_threadgroup(${cfg.threads})]]
void ${cfg.name}(
    constant PackParams& p [[buffer(kBufHelperParams)]], device T* packed [[buffer(kBufHelperOut)]],
    device const T* source [[buffer(kBufHelperIn0)]], uint3 threadgroup_pos [[threadgroup_position_in_grid]],
    ushort thread_index [[thread_index_in_threadgroup]]) {
  const int64_t index = p.first + int64_t(threadgroup_pos.x) * ${cfg.threads} + thread_index;
  if (index >= p.n) {
    return;
  }
  int64_t rest = index;
  int64_t from = 0;
  FLASHRT_UNROLL
  for (short axis = 3; axis >= 0; --axis) {
    const int64_t outer = quotient(rest, p.shape[axis]);
    from += (rest - outer * p.shape[axis]) * p.strides[axis];
    rest = outer;
  }
  packed[index] = source[from];
}
