#include <metal_stdlib>
using namespace metal;

float apply(float (*f)(float), float x) {  // expect clang: pointers to functions
  return f(x);
}
