#include <metal_stdlib>
using namespace metal;

half convert(bfloat x) {
  half y = x;  // expect clang: cannot initialize a variable of type
  return y;
}
