#include <metal_stdlib>
using namespace metal;

float sum(thread const float* x) {
  float total = 0.0f;
#pragma clang loop vectorize(enable)  // expect allow-list: `#pragma clang loop vectorize`
  for (short i = 0; i < 4; ++i) {
    total += x[i];
  }
  return total;
}
