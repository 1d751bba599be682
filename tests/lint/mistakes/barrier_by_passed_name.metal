#include <metal_stdlib>
using namespace metal;

METAL_FUNC void fill(threadgroup float* tile, ushort thread_index) {
  for (int i = thread_index; i < 100; i += 64) {
    tile[i] = 0.0f;
    threadgroup_barrier(mem_flags::mem_threadgroup);  // expect divergence: differs between lanes
  }
}

[[kernel]] void k(
    device float* out [[buffer(0)]],
    ushort simd [[simdgroup_index_in_threadgroup]],
    ushort lane [[thread_index_in_simdgroup]]) {
  threadgroup float tile[100];
  const ushort thread_index = simd * 32 + lane;
  fill(tile, thread_index);
  out[thread_index] = tile[thread_index];
}
