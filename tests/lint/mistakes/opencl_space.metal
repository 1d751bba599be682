#include <metal_stdlib>
using namespace metal;

void clear(global float* p) {  // expect opencl-word: `global`
  p[0] = 0.0f;
}
