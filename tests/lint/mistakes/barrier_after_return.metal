#include <metal_stdlib>
using namespace metal;

[[kernel]] void k(device float* out [[buffer(0)]], ushort lane [[thread_index_in_simdgroup]]) {
  const ushort pair = lane / 2;
  if (pair > 3) {
    return;
  }
  simdgroup_barrier(mem_flags::mem_none);  // expect divergence: differs between lanes
  out[lane] = 0.0f;
}
