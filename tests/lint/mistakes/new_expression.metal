#include <metal_stdlib>
using namespace metal;

[[kernel]] void k(device float* out [[buffer(0)]], ushort lane [[thread_index_in_simdgroup]]) {
  thread float* p = new float(1.0f);  // expect clang:
  out[lane] = *p;
}
