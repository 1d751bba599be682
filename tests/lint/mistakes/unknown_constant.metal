#include <metal_stdlib>
using namespace metal;

constant bool has_mask [[function_constant(0)]];

[[kernel]] void k(device float* out [[buffer(0), function_constant(has_mast)]]) {  // expect function-constant: `has_mast`
  if (has_mask) {
    out[0] = 0.0f;
  }
}
