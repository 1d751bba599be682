#include <metal_stdlib>
using namespace metal;

void helper() {
  threadgroup float tile[32];  // expect clang: local address space
  tile[0] = 0.0f;
}
