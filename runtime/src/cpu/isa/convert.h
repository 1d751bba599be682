// Rows of the problem's dtype to f32 and back; 16-bit values are rounded to nearest even.
#pragma once

#include "../job.h"
#include "simd.h"

#if defined(__F16C__)
#include <immintrin.h>
#endif

namespace flashrt::cpu {
namespace {

FLASHRT_INLINE uint32_t bits_of(float x) {
  uint32_t bits;
  memcpy(&bits, &x, 4);
  return bits;
}
FLASHRT_INLINE float from_bits(uint32_t bits) {
  float x;
  memcpy(&x, &bits, 4);
  return x;
}

FLASHRT_INLINE float from_bfloat16(uint16_t h) { return from_bits(static_cast<uint32_t>(h) << 16); }

FLASHRT_INLINE uint16_t to_bfloat16(float x) {
  const uint32_t bits = bits_of(x);
  const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  const uint32_t nan = (bits >> 16) | 0x40;
  return static_cast<uint16_t>((bits & 0x7fffffff) > 0x7f800000 ? nan : rounded);
}

FLASHRT_INLINE float from_float16(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000) << 16;
  const uint32_t magnitude = static_cast<uint32_t>(h & 0x7fff) << 13;
  // The exponent is rebiased by a product, which also normalises subnormals.
  const uint32_t finite = bits_of(from_bits(magnitude) * 0x1p112f);
  return from_bits(sign | ((h & 0x7c00) == 0x7c00 ? magnitude | 0x7f800000 : finite));
}

FLASHRT_INLINE uint16_t to_float16(float x) {
  const uint32_t bits = bits_of(x);
  const uint32_t sign = (bits >> 16) & 0x8000;
  const uint32_t magnitude = bits & 0x7fffffff;
  // Adding 0.5 aligns a subnormal result with the low mantissa bits, rounded by the addition itself.
  const uint32_t subnormal = bits_of(from_bits(magnitude) + 0.5f) - 0x3f000000;
  const uint32_t normal = (magnitude - 0x38000000 + 0xfff + ((magnitude >> 13) & 1)) >> 13;
  const uint32_t special = magnitude > 0x7f800000 ? 0x7e00 : 0x7c00;
  const uint32_t finite = magnitude < 0x38800000 ? subnormal : normal;
  return static_cast<uint16_t>(sign | (magnitude >= 0x47800000 ? special : finite));
}

inline void float16_row(const uint16_t* in, int64_t n, float* out) {
  int64_t i = 0;
#if defined(__F16C__)
  for (; i + 8 <= n; i += 8)
    _mm256_storeu_ps(out + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(in + i))));
#endif
  for (; i < n; ++i) out[i] = from_float16(in[i]);
}

inline void to_float16_row(const float* in, int64_t n, float scale, uint16_t* out) {
  int64_t i = 0;
#if defined(__F16C__)
  const __m256 factor = _mm256_set1_ps(scale);
  for (; i + 8 <= n; i += 8)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i),
                     _mm256_cvtps_ph(_mm256_mul_ps(_mm256_loadu_ps(in + i), factor), _MM_FROUND_TO_NEAREST_INT));
#endif
  for (; i < n; ++i) out[i] = to_float16(in[i] * scale);
}

/// n values of `base` from element `offset` on.
inline void load_row(Dtype dtype, const void* base, int64_t offset, int64_t n, float* out) {
  if (dtype == Dtype::float32) {
    memcpy(out, static_cast<const float*>(base) + offset, static_cast<size_t>(n) * 4);
  } else if (dtype == Dtype::bfloat16) {
    const uint16_t* in = static_cast<const uint16_t*>(base) + offset;
    for (int64_t i = 0; i < n; ++i) out[i] = from_bfloat16(in[i]);
  } else {
    float16_row(static_cast<const uint16_t*>(base) + offset, n, out);
  }
}

/// The one place where a result is rounded to the dtype.
inline void store_row(Dtype dtype, const float* in, int64_t n, float scale, void* base, int64_t offset) {
  if (dtype == Dtype::float32) {
    float* out = static_cast<float*>(base) + offset;
    for (int64_t i = 0; i < n; ++i) out[i] = in[i] * scale;
  } else if (dtype == Dtype::bfloat16) {
    uint16_t* out = static_cast<uint16_t*>(base) + offset;
    for (int64_t i = 0; i < n; ++i) out[i] = to_bfloat16(in[i] * scale);
  } else {
    to_float16_row(in, n, scale, static_cast<uint16_t*>(base) + offset);
  }
}

FLASHRT_INLINE float load_value(Dtype dtype, const void* base, int64_t offset) {
  if (dtype == Dtype::float32) return static_cast<const float*>(base)[offset];
  const uint16_t h = static_cast<const uint16_t*>(base)[offset];
  return dtype == Dtype::bfloat16 ? from_bfloat16(h) : from_float16(h);
}

}  // namespace
}  // namespace flashrt::cpu
