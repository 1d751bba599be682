#include <metal_stdlib>
using namespace metal;

[[kernel]] void k(device float* out [[buffer(0)]], ushort lane [[thread_index_in_simdgroup]]) {
  out[lane] = *(const float*)(out + 1);  // expect address-space: cast to
}
