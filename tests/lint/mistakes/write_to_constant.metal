#include <metal_stdlib>
using namespace metal;

struct Params {
  int n;
};

[[kernel]] void k(constant Params& p [[buffer(0)]]) {
  p.n = 1;  // expect clang: read-only
}
