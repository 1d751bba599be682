#include <metal_stdlib>
using namespace metal;

[[kernel]] void k(device float* out [[buffer(0)]], ushort lane [[thread_index_in_simdgroup]]) {
  auto twice = [](float x) { return 2.0f * x; };  // expect lambda:
  out[lane] = twice(out[lane]);
}
