#include <metal_stdlib>
using namespace metal;

[[kernel]] void k(device const float* in [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  in[i] = 0.0f;  // expect clang: read-only variable
}
