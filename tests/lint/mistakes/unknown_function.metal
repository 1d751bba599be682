#include <metal_stdlib>
using namespace metal;

float both(float x) {
  return metal::simd_exclusive_or(x);  // expect clang: no member named
}
