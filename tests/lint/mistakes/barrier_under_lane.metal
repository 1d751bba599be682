#include <metal_stdlib>
using namespace metal;

[[kernel]] void k(device float* out [[buffer(0)]], ushort lane [[thread_index_in_simdgroup]]) {
  if (lane < 16) {
    threadgroup_barrier(mem_flags::mem_threadgroup);  // expect divergence: differs between lanes
  }
  out[lane] = 0.0f;
}
