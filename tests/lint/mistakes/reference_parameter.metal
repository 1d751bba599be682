#include <metal_stdlib>
using namespace metal;

void clear(float& x) { x = 0.0f; }  // expect address-space: `x` of type `float &`
