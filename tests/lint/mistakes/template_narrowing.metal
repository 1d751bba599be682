#include <metal_stdlib>
using namespace metal;

template <typename T>
T scaled(T x, float by) {
  return float(x) * by;  // expect narrowing: `half`
}

half use(half x) { return scaled(x, 2.0f); }
