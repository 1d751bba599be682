#include <metal_stdlib>
using namespace metal;

template <typename T>
T first(const T* p) {  // expect address-space: names no address space
  return p[0];
}
