// Attention written out in MLX operations over the primitives' input lists.
#pragma once

#include "attention.h"

namespace flashrt {

inline constexpr float kLog2e = 1.44269504088896341f;
inline constexpr float kLn2 = 0.693147180559945309f;

/// {O, natural-log LSE} from q, k, v, extras. Works in f32, or f64 for f64 inputs.
Arrays composed_attention(const Arrays& inputs, const Options& options, const Layout& layout, mx::Stream stream);

/// {O, LSE2}: the outputs of the Attention primitive.
Arrays composed_forward(const Arrays& inputs, const Options& options, const Layout& layout, mx::Stream stream);

}  // namespace flashrt
