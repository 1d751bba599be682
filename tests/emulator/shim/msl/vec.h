// vec<T, N> for N = 1..4: element-wise arithmetic, comparison and conversion. No swizzles beyond single elements.
#pragma once

#include "scalar.h"

namespace metal {

template <class T, int N>
struct vec;

template <class T, int N>
struct vec_storage;
template <class T>
struct alignas(sizeof(T)) vec_storage<T, 1> {
  T x;
};
template <class T>
struct alignas(2 * sizeof(T)) vec_storage<T, 2> {
  T x, y;
};
template <class T>
struct alignas(4 * sizeof(T)) vec_storage<T, 3> {
  T x, y, z;
};
template <class T>
struct alignas(4 * sizeof(T)) vec_storage<T, 4> {
  T x, y, z, w;
};

#define EMU_VEC_OPERATOR(op)                            \
  friend constexpr vec operator op(vec a, vec b) {      \
    vec r;                                              \
    for (int i = 0; i < N; ++i) r[i] = T(a[i] op b[i]); \
    return r;                                           \
  }                                                     \
  friend constexpr vec& operator op## = (vec & a, vec b) { return a = a op b; }
#define EMU_VEC_COMPARE(op)                                 \
  friend constexpr vec<bool, N> operator op(vec a, vec b) { \
    vec<bool, N> r;                                         \
    for (int i = 0; i < N; ++i) r[i] = a[i] op b[i];        \
    return r;                                               \
  }

template <class T, int N>
struct vec : vec_storage<T, N> {
  static_assert(N >= 1 && N <= 4, "vectors have up to four elements");
  using element_type = T;

  vec() = default;
  constexpr vec(T value) {
    for (int i = 0; i < N; ++i) (*this)[i] = value;
  }
  template <int M = N, class = std::enable_if_t<M == 2>>
  constexpr vec(T a, T b) : vec_storage<T, N>{a, b} {}
  template <int M = N, class = std::enable_if_t<M == 3>>
  constexpr vec(T a, T b, T c) : vec_storage<T, N>{a, b, c} {}
  template <int M = N, class = std::enable_if_t<M == 4>>
  constexpr vec(T a, T b, T c, T d) : vec_storage<T, N>{a, b, c, d} {}
  template <class U>
  explicit constexpr vec(vec<U, N> other) {
    for (int i = 0; i < N; ++i) (*this)[i] = T(other[i]);
  }

  // Elements lie next to each other: kernels are compiled with -fno-strict-aliasing.
  constexpr T& operator[](int i) { return (&this->x)[i]; }
  constexpr const T& operator[](int i) const { return (&this->x)[i]; }

  constexpr vec operator-() const {
    vec r;
    for (int i = 0; i < N; ++i) r[i] = T(-(*this)[i]);
    return r;
  }
  EMU_VEC_OPERATOR(+)
  EMU_VEC_OPERATOR(-)
  EMU_VEC_OPERATOR(*)
  EMU_VEC_OPERATOR(/)
  EMU_VEC_OPERATOR(%)
  EMU_VEC_OPERATOR(&)
  EMU_VEC_OPERATOR(|)
  EMU_VEC_OPERATOR(^)
  EMU_VEC_OPERATOR(<<)
  EMU_VEC_OPERATOR(>>)
  EMU_VEC_COMPARE(<)
  EMU_VEC_COMPARE(>)
  EMU_VEC_COMPARE(<=)
  EMU_VEC_COMPARE(>=)
  EMU_VEC_COMPARE(==)
  EMU_VEC_COMPARE(!=)
};

#undef EMU_VEC_OPERATOR
#undef EMU_VEC_COMPARE

}  // namespace metal

using metal::vec;

#define EMU_VEC_NAMES(type)            \
  using type##2 = metal::vec<type, 2>; \
  using type##3 = metal::vec<type, 3>; \
  using type##4 = metal::vec<type, 4>; \
  namespace metal {                    \
  using ::type##2;                     \
  using ::type##3;                     \
  using ::type##4;                     \
  }
EMU_VEC_NAMES(bool)
EMU_VEC_NAMES(char)
EMU_VEC_NAMES(uchar)
EMU_VEC_NAMES(short)
EMU_VEC_NAMES(ushort)
EMU_VEC_NAMES(int)
EMU_VEC_NAMES(uint)
EMU_VEC_NAMES(long)
EMU_VEC_NAMES(ulong)
EMU_VEC_NAMES(half)
EMU_VEC_NAMES(float)
EMU_VEC_NAMES(bfloat)
#undef EMU_VEC_NAMES
