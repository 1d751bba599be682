#include <metal_stdlib>
using namespace metal;

bool swapped(bool x) {
  return simd_shuffle_xor(x, 1);  // expect clang: deleted
}
