#include <metal_stdlib>
using namespace metal;

enum Slots : int {
  kA = 0,
  kB = 1,
};

[[kernel]] void k(
    device const float* a [[buffer(kA)]],
    device float* b [[buffer(kB)]],
    device float* c [[buffer(1)]]) {  // expect buffer-index: `c` takes buffer 1, which `b` of k already has
  c[0] = a[0] + b[0];
}
