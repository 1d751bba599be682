#include <metal_stdlib>
using namespace metal;

int next() {
  static int n = 0;  // expect clang:
  return ++n;
}
