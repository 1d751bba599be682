#include <metal_stdlib>
using namespace metal;

bfloat zero() {
  return 0;  // expect narrowing: `bfloat`
}
