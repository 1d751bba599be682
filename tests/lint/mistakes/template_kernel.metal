#include <metal_stdlib>
using namespace metal;

template <typename T>
[[kernel]] void k(device T* out [[buffer(0)]]) {  // expect clang:
  out[0] = T(0);
}
