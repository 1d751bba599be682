// A complex number as far as MLX's shared utilities name it; attention computes with none.
#pragma once

#include <metal_stdlib>

#include "mlx/backend/metal/kernels/bf16.h"

template <class T>
struct complex_t {
  using value_type = T;
  T real;
  T imag;
  constexpr complex_t(T re, T im = T(0)) : real(re), imag(im) {}
};

using complex32_t = complex_t<half>;
using complex64_t = complex_t<float>;
