// Scalar types, traits and limits.
#pragma once

#include <type_traits>

#include "../../runtime/interface.h"

using int8_t = __INT8_TYPE__;
using int16_t = __INT16_TYPE__;
using int32_t = __INT32_TYPE__;
using int64_t = __INT64_TYPE__;
using uint8_t = __UINT8_TYPE__;
using uint16_t = __UINT16_TYPE__;
using uint32_t = __UINT32_TYPE__;
using uint64_t = __UINT64_TYPE__;
using size_t = __SIZE_TYPE__;
using ptrdiff_t = __PTRDIFF_TYPE__;
using uchar = unsigned char;
using ushort = unsigned short;
using uint = unsigned int;
using ulong = unsigned long;

using half = _Float16;  // with -ffloat16-excess-precision=none every operation rounds

/// Widens implicitly to float and to nothing else; nothing but bfloat becomes bfloat implicitly.
class bfloat {
 public:
  bfloat() = default;

  template <class T, class = std::enable_if_t<std::is_arithmetic_v<T> || std::is_same_v<T, half>>>
  explicit constexpr bfloat(T x) : bits_(round(static_cast<float>(x))) {}

  template <class T, class = std::enable_if_t<std::is_same_v<T, float>>>
  constexpr operator T() const {
    return __builtin_bit_cast(float, uint32_t(bits_) << 16);
  }
  template <class T,
            class = std::enable_if_t<!std::is_same_v<T, float> && (std::is_arithmetic_v<T> || std::is_same_v<T, half>)>,
            class = void>
  explicit constexpr operator T() const {
    return static_cast<T>(__builtin_bit_cast(float, uint32_t(bits_) << 16));
  }

  constexpr bfloat operator-() const { return from_bits(bits_ ^ 0x8000); }

  static constexpr bfloat from_bits(uint16_t bits) {
    bfloat x{};
    x.bits_ = bits;
    return x;
  }

 private:
  static constexpr uint16_t round(float x) {  // to nearest, ties to even
    const uint32_t bits = __builtin_bit_cast(uint32_t, x);
    if ((bits & 0x7fffffff) > 0x7f800000) return uint16_t(bits >> 16 | 0x40);
    return uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
  }

  uint16_t bits_;
};

#define EMU_BFLOAT_OPERATOR(op)                                                             \
  constexpr bfloat operator op(bfloat x, bfloat y) { return bfloat(float(x) op float(y)); } \
  template <class I, class = std::enable_if_t<std::is_integral_v<I>>>                       \
  constexpr bfloat operator op(bfloat x, I y) {                                             \
    return x op bfloat(y);                                                                  \
  }                                                                                         \
  template <class I, class = std::enable_if_t<std::is_integral_v<I>>>                       \
  constexpr bfloat operator op(I x, bfloat y) {                                             \
    return bfloat(x) op y;                                                                  \
  }                                                                                         \
  constexpr bfloat& operator op## = (bfloat & x, bfloat y) { return x = x op y; }
EMU_BFLOAT_OPERATOR(+)
EMU_BFLOAT_OPERATOR(-)
EMU_BFLOAT_OPERATOR(*)
EMU_BFLOAT_OPERATOR(/)
#undef EMU_BFLOAT_OPERATOR

#define EMU_BFLOAT_COMPARE(op) \
  constexpr bool operator op(bfloat x, bfloat y) { return float(x) op float(y); }
EMU_BFLOAT_COMPARE(<)
EMU_BFLOAT_COMPARE(>)
EMU_BFLOAT_COMPARE(<=)
EMU_BFLOAT_COMPARE(>=)
EMU_BFLOAT_COMPARE(==)
EMU_BFLOAT_COMPARE(!=)
#undef EMU_BFLOAT_COMPARE

static_assert(sizeof(half) == 2 && sizeof(bfloat) == 2 && std::is_trivially_copyable_v<bfloat>);

namespace metal {

using ::bfloat;
using ::half;
using ::uchar;
using ::uint;
using ::ulong;
using ::ushort;

using std::bool_constant;
using std::conditional_t;
using std::enable_if;
using std::enable_if_t;
using std::false_type;
using std::integral_constant;
using std::is_convertible_v;
using std::is_integral;
using std::is_integral_v;
using std::is_same;
using std::is_same_v;
using std::is_signed_v;
using std::is_unsigned_v;
using std::remove_cv_t;
using std::true_type;

template <class T>
using remove_addrspace_t = T;

template <class T>
constexpr bool is_floating_point_v = std::is_floating_point_v<T> || is_same_v<T, half> || is_same_v<T, bfloat>;
template <class T>
struct is_floating_point : bool_constant<is_floating_point_v<T>> {};
template <class T>
struct is_arithmetic : bool_constant<is_floating_point_v<T> || std::is_arithmetic_v<T>> {};
template <class T>
constexpr bool is_arithmetic_v = is_arithmetic<T>::value;

template <class T>
struct numeric_limits {  // integers
  static constexpr T max() { return is_signed_v<T> ? T(~(T(1) << (8 * sizeof(T) - 1))) : T(~T(0)); }
  static constexpr T min() { return is_signed_v<T> ? T(T(1) << (8 * sizeof(T) - 1)) : T(0); }
  static constexpr T lowest() { return min(); }
};

#define EMU_FLOAT_LIMITS(type, largest, smallest, eps)                     \
  template <>                                                              \
  struct numeric_limits<type> {                                            \
    static constexpr type max() { return type(largest); }                  \
    static constexpr type min() { return type(smallest); }                 \
    static constexpr type lowest() { return type(-(largest)); }            \
    static constexpr type epsilon() { return type(eps); }                  \
    static constexpr type infinity() { return type(__builtin_inff()); }    \
    static constexpr type quiet_NaN() { return type(__builtin_nanf("")); } \
  };
EMU_FLOAT_LIMITS(float, __FLT_MAX__, __FLT_MIN__, __FLT_EPSILON__)
EMU_FLOAT_LIMITS(half, 65504.0f, 0x1p-14f, 0x1p-10f)
EMU_FLOAT_LIMITS(bfloat, 0x1.fep127f, 0x1p-126f, 0x1p-7f)
#undef EMU_FLOAT_LIMITS

}  // namespace metal

template <class To, class From>
constexpr To as_type(From x) {
  static_assert(sizeof(To) == sizeof(From), "as_type keeps the size");
  return __builtin_bit_cast(To, x);
}
namespace metal {
using ::as_type;
}
