#include <metal_stdlib>
using namespace metal;

float first(float* p) { return p[0]; }  // expect address-space: `p` of type `float *`
