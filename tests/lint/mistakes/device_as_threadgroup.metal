#include <metal_stdlib>
using namespace metal;

void fill(threadgroup float* tile, ushort i) { tile[i] = 0.0f; }

[[kernel]] void k(device float* out [[buffer(0)]], ushort lane [[thread_index_in_simdgroup]]) {
  fill(out, lane);  // expect clang: no matching function
}
