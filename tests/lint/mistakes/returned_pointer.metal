#include <metal_stdlib>
using namespace metal;

device float& at(device float* p) { return p[1]; }

float& here(device float* p) {  // expect address-space: return type
  return (device float&)p[0];  // expect address-space: `device float` is used as
}
