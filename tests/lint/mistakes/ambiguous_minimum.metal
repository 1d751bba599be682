#include <metal_stdlib>
using namespace metal;

int least(int a, uint b) {
  return min(a, b);  // expect clang: ambiguous
}
