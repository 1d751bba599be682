#include <metal_stdlib>
using namespace metal;

[[kernel]] void k(device float* out [[buffer(0)]], ushort lane [[thread_index_in_simdgroup]]) {
  threadgroup_barrier(2);  // expect clang: no matching function
  out[lane] = 0.0f;
}
