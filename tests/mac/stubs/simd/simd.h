// Vector types of metal-cpp's ray tracing signatures.
#pragma once

namespace simd {
struct float4 {
  float x, y, z, w;
};
struct float4x4 {
  float4 columns[4];
};
}  // namespace simd
