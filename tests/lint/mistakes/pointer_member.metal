#include <metal_stdlib>
using namespace metal;

struct View {
  float* data;  // expect address-space: `data`
};
