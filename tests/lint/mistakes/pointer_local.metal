#include <metal_stdlib>
using namespace metal;

[[kernel]] void k(device float* out [[buffer(0)]], ushort lane [[thread_index_in_simdgroup]]) {
  float x = 1.0f;
  float* p = &x;  // expect address-space: `p`
  out[lane] = *p;
}
