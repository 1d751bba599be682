#include <metal_stdlib>
using namespace metal;

void multiply(thread simdgroup_matrix<half, 8, 8>& d, simdgroup_matrix<float, 8, 8> a) {
  simdgroup_multiply_accumulate(d, a, a, d);  // expect clang: no matching function
}
