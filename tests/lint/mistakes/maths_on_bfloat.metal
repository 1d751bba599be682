#include <metal_stdlib>
using namespace metal;

float grow(bfloat x) {
  return exp2(x);  // expect clang: deleted
}
