// Scalar math. half results round once from float; no MSL function takes bfloat, which widens to float.
#pragma once

#include "vec.h"

namespace metal {

// Mixed integer types meet in C++'s common type, as they do through MSL's overloads.
template <class T, class U>
using common_t = std::conditional_t<is_same_v<T, U>, T, decltype(T{} + U{})>;

template <class T>
constexpr bool is_scalar_v = is_arithmetic_v<T>;

template <class T, class U, class = std::enable_if_t<is_scalar_v<T> && is_scalar_v<U>>>
constexpr common_t<T, U> min(T x, U y) {
  using C = common_t<T, U>;
  const C a = C(x), b = C(y);
  return b < a || a != a ? b : a;
}
template <class T, class U, class = std::enable_if_t<is_scalar_v<T> && is_scalar_v<U>>>
constexpr common_t<T, U> max(T x, U y) {
  using C = common_t<T, U>;
  const C a = C(x), b = C(y);
  return a < b || a != a ? b : a;
}
template <class T>
constexpr T min3(T x, T y, T z) {
  return min(min(x, y), z);
}
template <class T>
constexpr T max3(T x, T y, T z) {
  return max(max(x, y), z);
}
template <class T, class U, class V, class = std::enable_if_t<is_scalar_v<T>>>
constexpr T clamp(T x, U low, V high) {
  return T(min(max(x, T(low)), T(high)));
}
template <class T>
constexpr T select(T if_false, T if_true, bool condition) {
  return condition ? if_true : if_false;
}
constexpr float fmin(float x, float y) { return min(x, y); }
constexpr float fmax(float x, float y) { return max(x, y); }

template <class T, int N>
constexpr vec<T, N> min(vec<T, N> x, vec<T, N> y) {
  for (int i = 0; i < N; ++i) x[i] = min(x[i], y[i]);
  return x;
}
template <class T, int N>
constexpr vec<T, N> max(vec<T, N> x, vec<T, N> y) {
  for (int i = 0; i < N; ++i) x[i] = max(x[i], y[i]);
  return x;
}

template <class T, class = std::enable_if_t<is_integral_v<T>>>
constexpr T abs(T x) {
  return x < 0 ? T(-x) : x;
}
constexpr float abs(float x) { return __builtin_fabsf(x); }
constexpr half abs(half x) { return half(__builtin_fabsf(float(x))); }
constexpr float fabs(float x) { return __builtin_fabsf(x); }

inline float fma(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
inline half fma(half x, half y, half z) { return half(__builtin_fma(double(x), double(y), double(z))); }
template <int N>
inline vec<float, N> fma(vec<float, N> x, vec<float, N> y, vec<float, N> z) {
  for (int i = 0; i < N; ++i) x[i] = fma(x[i], y[i], z[i]);
  return x;
}

#define EMU_MATH(name)                                          \
  inline float name(float x) { return __builtin_##name##f(x); } \
  inline half name(half x) { return half(__builtin_##name##f(float(x))); }
#define EMU_MATH_ALL                                                                                         \
  EMU_MATH(exp)                                                                                              \
  EMU_MATH(log)                                                                                              \
  EMU_MATH(log2)                                                                                             \
  EMU_MATH(log10)                                                                                            \
  EMU_MATH(sqrt)                                                                                             \
  EMU_MATH(sin)                                                                                              \
  EMU_MATH(cos)                                                                                              \
  EMU_MATH(tan)                                                                                              \
  EMU_MATH(asin)                                                                                             \
  EMU_MATH(acos)                                                                                             \
  EMU_MATH(atan)                                                                                             \
  EMU_MATH(sinh)                                                                                             \
  EMU_MATH(cosh)                                                                                             \
  EMU_MATH(tanh)                                                                                             \
  EMU_MATH(floor) EMU_MATH(ceil) EMU_MATH(round) EMU_MATH(rint) EMU_MATH(trunc) inline float exp2(float x) { \
    return emu_exp2(x);                                                                                      \
  }                                                                                                          \
  inline half exp2(half x) { return half(emu_exp2(float(x))); }                                              \
  inline float rsqrt(float x) { return 1.0f / __builtin_sqrtf(x); }                                          \
  inline float pow(float x, float y) { return __builtin_powf(x, y); }                                        \
  inline float atan2(float y, float x) { return __builtin_atan2f(y, x); }

EMU_MATH_ALL
namespace fast {
EMU_MATH_ALL
}
namespace precise {
EMU_MATH_ALL
}
#undef EMU_MATH_ALL
#undef EMU_MATH

inline float copysign(float x, float y) { return __builtin_copysignf(x, y); }
inline bool isinf(float x) { return __builtin_isinf(x); }
inline bool isnan(float x) { return __builtin_isnan(x); }
inline bool isfinite(float x) { return __builtin_isfinite(x); }
inline uint popcount(uint x) { return uint(__builtin_popcount(x)); }
inline uint clz(uint x) { return x == 0 ? 32 : uint(__builtin_clz(x)); }
inline uint ctz(uint x) { return x == 0 ? 32 : uint(__builtin_ctz(x)); }

template <int N>
constexpr float dot(vec<float, N> x, vec<float, N> y) {
  float sum = 0;
  for (int i = 0; i < N; ++i) sum += x[i] * y[i];
  return sum;
}

}  // namespace metal
