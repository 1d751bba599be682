#include <metal_stdlib>
using namespace metal;

[[kernel]] void k(
    device const float* a [[buffer(30)]],
    device float* out [[buffer(31)]]) {  // expect buffer-index: `out` takes buffer 31; Metal has 0 to 30
  out[0] = a[0];
}
