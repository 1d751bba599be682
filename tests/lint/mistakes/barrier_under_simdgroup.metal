#include <metal_stdlib>
using namespace metal;

[[kernel]] void k(device float* out [[buffer(0)]], ushort simd [[simdgroup_index_in_threadgroup]]) {
  if (simd == 0) {
    simdgroup_barrier(mem_flags::mem_none);
    threadgroup_barrier(mem_flags::mem_none);  // expect divergence: differs between simdgroups
  }
  out[simd] = 0.0f;
}
