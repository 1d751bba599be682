#include <metal_stdlib>
using namespace metal;

bfloat one() {
  return 1.0f;  // expect narrowing: `bfloat`
}
