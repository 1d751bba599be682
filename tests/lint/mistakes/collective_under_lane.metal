#include <metal_stdlib>
using namespace metal;

[[kernel]] void k(device float* out [[buffer(0)]], ushort lane [[thread_index_in_simdgroup]]) {
  float x = out[lane];
  if (x > 0.0f && lane != 0) {
    x = simd_sum(x);  // expect divergence: `simd_sum`
  } else {
    x = simd_max(x);  // expect divergence: `simd_max`
  }
  out[lane] = x;
}
