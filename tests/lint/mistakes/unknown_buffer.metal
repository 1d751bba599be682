#include <metal_stdlib>
using namespace metal;

constant constexpr int kOut = 0;

[[kernel]] void k(device float* out [[buffer(kOther)]]) {  // expect buffer-index: `kOther`
  out[kOut] = 0.0f;
}
