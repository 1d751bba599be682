#include <metal_stdlib>
using namespace metal;

vec<half, 4> convert(float4 x) {
  vec<half, 4> y = x;  // expect clang:
  return y;
}
