#include <metal_stdlib>
using namespace metal;

int factorial(int n) {  // expect recursion: `factorial`
  return n < 2 ? 1 : n * factorial(n - 1);
}
