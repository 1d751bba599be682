#include <metal_stdlib>
using namespace metal;

METAL_FUNC void sync() { threadgroup_barrier(mem_flags::mem_device); }

[[kernel]] void k(device float* out [[buffer(0)]], ushort lane [[thread_index_in_simdgroup]]) {
  for (ushort i = lane; i < 100; i += 32) {
    sync();  // expect divergence: `sync`
  }
  out[lane] = 0.0f;
}
