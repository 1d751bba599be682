#include <metal_stdlib>
using namespace metal;

bfloat narrow(float x) {
  bfloat y = x;  // expect narrowing: `bfloat`
  return y;
}
