#include <metal_stdlib>
using namespace metal;

half scaled(half x, float by) {
  x *= by;  // expect narrowing: `*=`
  return x;
}
