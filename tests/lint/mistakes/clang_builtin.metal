#include <metal_stdlib>
using namespace metal;

float fast_root(float x) {
  return __builtin_sqrtf(x);  // expect allow-list: `__builtin_sqrtf`
}
