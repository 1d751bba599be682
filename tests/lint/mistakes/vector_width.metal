#include <metal_stdlib>
using namespace metal;

float2 half_of(float4 x) {
  float2 y = x;  // expect clang:
  return y;
}
