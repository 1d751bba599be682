#include <metal_stdlib>
using namespace metal;

half narrow(float x) {
  return x;  // expect narrowing: `half`
}
