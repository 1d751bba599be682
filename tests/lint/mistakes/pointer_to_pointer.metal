#include <metal_stdlib>
using namespace metal;

template <typename T>
T first(device const T** rows) {  // expect address-space: `rows` of type
  return rows[0][0];
}
