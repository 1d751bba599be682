#include <metal_stdlib>
using namespace metal;

void use() {
  simdgroup_matrix<float, 16, 16> m;  // expect clang: only 8x8 matrices exist
  m.thread_elements();
}
