#include <metal_stdlib>
using namespace metal;

[[kernel]] void k(device float* out [[buffer(0)]], ushort lane [[thread_index_in_simdgroup]]) {
  throw 1;  // expect clang: exceptions
  out[lane] = 0.0f;
}
