#include <metal_stdlib>
using namespace metal;

[[kernel]] void k(device float* out [[buffer(0)]], ushort lane [[thread_index_in_simdgroup]]) {
  goto end;  // expect goto: MSL has no goto
end:
  out[lane] = 0.0f;
}
