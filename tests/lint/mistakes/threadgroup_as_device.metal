#include <metal_stdlib>
using namespace metal;

[[kernel]] void k(device float* out [[buffer(0)]], ushort lane [[thread_index_in_simdgroup]]) {
  threadgroup float tile[32];
  device float* p = tile;  // expect clang: cannot initialize a variable
  p[lane] = out[lane];
}
