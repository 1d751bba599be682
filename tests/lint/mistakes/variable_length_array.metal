#include <metal_stdlib>
using namespace metal;

float sum(int n) {
  float values[n];  // expect clang:
  return values[0];
}
