#include <metal_stdlib>
using namespace metal;

[[kernel]] void k(device float* out [[buffer(0)]], uint i) {  // expect kernel-parameter: `uint i`
  out[i] = 0.0f;
}
