// Vectors of the instruction set this file is compiled for, and the few functions of them that attention needs.
//
// Every header of this folder is included by the isa_*.cpp files only. They live in an unnamed namespace and call no
// library template: a weak symbol compiled for a newer CPU could otherwise replace the baseline's copy at link time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__AVX512F__)
#include <immintrin.h>
#define FLASHRT_VECTOR_LANES 16
#elif defined(__AVX2__)
#define FLASHRT_VECTOR_LANES 8
#else
#define FLASHRT_VECTOR_LANES 4
#endif

namespace flashrt::cpu {
namespace {

constexpr int kLanes = FLASHRT_VECTOR_LANES;

#if defined(__AVX512F__)
constexpr int kPanelVectors = 2;  // 32 registers: 24 accumulators
constexpr int kMicroRows = 12;
#elif defined(__AVX2__)
constexpr int kPanelVectors = 2;  // 16 registers: 12 accumulators
constexpr int kMicroRows = 6;
#elif defined(__aarch64__)
constexpr int kPanelVectors = 4;  // 32 registers: 24 accumulators
constexpr int kMicroRows = 6;
#else
constexpr int kPanelVectors = 2;
constexpr int kMicroRows = 6;
#endif
constexpr int kPanel = kPanelVectors * kLanes;

typedef float Vec __attribute__((vector_size(4 * kLanes)));
typedef int32_t IntVec __attribute__((vector_size(4 * kLanes)));
typedef float UnalignedVec __attribute__((vector_size(4 * kLanes), aligned(4), may_alias));
typedef int32_t UnalignedIntVec __attribute__((vector_size(4 * kLanes), aligned(4), may_alias));

#define FLASHRT_INLINE inline __attribute__((always_inline))

FLASHRT_INLINE Vec load(const float* p) { return *reinterpret_cast<const UnalignedVec*>(p); }
FLASHRT_INLINE IntVec load(const int32_t* p) { return *reinterpret_cast<const UnalignedIntVec*>(p); }
FLASHRT_INLINE void store(float* p, Vec v) { *reinterpret_cast<UnalignedVec*>(p) = v; }
FLASHRT_INLINE Vec broadcast(float x) { return x - Vec{}; }  // x - 0 is x, also for -0 and NaN
FLASHRT_INLINE IntVec broadcast(int32_t x) { return x - IntVec{}; }

// A NaN in either argument may be dropped: callers keep NaN alive elsewhere.
FLASHRT_INLINE Vec max(Vec a, Vec b) { return a > b ? a : b; }

template <typename T>
FLASHRT_INLINE T min_of(T a, T b) {
  return b < a ? b : a;
}
template <typename T>
FLASHRT_INLINE T max_of(T a, T b) {
  return a < b ? b : a;
}
FLASHRT_INLINE int64_t round_up(int64_t n, int64_t step) { return (n + step - 1) / step * step; }

constexpr float kLog2e = 1.44269504088896340736f;
constexpr float kInfinity = __builtin_inff();
// Start of a running maximum: below every visible score (masks are clamped to half of it), and finite.
constexpr float kLowest = -3.402823466e38f;
constexpr float kMaskLimit = 1.7e38f;

/// 2^x to 2 ulp for x <= 127; exactly 1 at 0; 0 below -126 and for -inf; NaN stays.
FLASHRT_INLINE Vec exp2(Vec x) {
#if defined(__AVX512DQ__)
  const Vec f = (Vec)_mm512_reduce_ps((__m512)x, 0x09);  // x - floor(x)
  Vec p = 0x1.e97618p-10f * f + 0x1.27780ap-7f;
  p = p * f + 0x1.c91cf4p-5f;
  p = p * f + 0x1.ebdb56p-3f;
  p = p * f + 0x1.62e4bap-1f;
  p = p * f + 1.0f;
  const __mmask16 normal = _mm512_cmp_ps_mask((__m512)x, _mm512_set1_ps(-126.0f), _CMP_NLT_UQ);
  return (Vec)_mm512_maskz_scalef_ps(normal, (__m512)p, (__m512)x);
#else
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer in the low mantissa bits
  const Vec shifted = x + kRound;
  const Vec f = x - (shifted - kRound);  // in [-0.5, 0.5]
  Vec p = 0x1.5bba0ep-10f * f + 0x1.3cea94p-7f;
  p = p * f + 0x1.c6b754p-5f;
  p = p * f + 0x1.ebf9bcp-3f;
  p = p * f + 0x1.62e42ap-1f;
  p = p * f + 1.0f;
  const IntVec exponent = ((IntVec)shifted + 127) << 23;
  return x < -126.0f ? Vec{} : p * (Vec)exponent;
#endif
}

/// tanh to a few ulp, relative also near 0 (a large softcap must not add noise).
FLASHRT_INLINE Vec tanh(Vec x) {
  const Vec a = (Vec)((IntVec)x & 0x7fffffff);
  const Vec z = x * x;
  Vec p = -0x1.90a27ap-8f * z + 0x1.583abep-6f;
  p = p * z - 0x1.b92c3p-5f;
  p = p * z + 0x1.110e3ep-3f;
  p = p * z - 0x1.555552p-2f;
  const Vec small = p * z * x + x;
  const Vec clamped = a > 40.0f ? broadcast(40.0f) : a;
  const Vec large = 1.0f - 2.0f / (exp2(clamped * (2.0f * kLog2e)) + 1.0f);
  const Vec signed_large = (Vec)((IntVec)large | ((IntVec)x & (int32_t)0x80000000));
  return a < 0.625f ? small : (a == a ? signed_large : x);
}

}  // namespace
}  // namespace flashrt::cpu
