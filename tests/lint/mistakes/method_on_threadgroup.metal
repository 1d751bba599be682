#include <metal_stdlib>
using namespace metal;

struct Counter {
  int n;
  void add(int by) { n += by; }
};

[[kernel]] void k(device float* out [[buffer(0)]], ushort lane [[thread_index_in_simdgroup]]) {
  threadgroup Counter counter;
  counter.add(lane);  // expect address-space: `threadgroup Counter` is used as
  out[lane] = 0.0f;
}
