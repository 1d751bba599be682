#include <metal_stdlib>
using namespace metal;

[[kernel]] void k(device float* out [[buffer(0)]], ushort lane [[thread_index_in_simdgroup]]) {
  out[lane] *= 1e-3;  // expect float-literal: `1e-3`
}
