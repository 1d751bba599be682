// From the arrays of a primitive to the Problem that plan, encoder and CPU kernels share.
#pragma once

#include "attention.h"
#include "problem.h"

namespace flashrt {

Dtype problem_dtype(mx::Dtype dtype);

/// Shapes, options and the strides of the operands. Strides are those of evaluated arrays; what is not evaluated yet
/// counts as row-contiguous. Output strides are left for whoever allocates.
Problem problem_of(const Arrays& inputs, const Options& options, const Layout& layout);

Strides3 strides_of(const mx::array& a);

/// Strides of a rank-4 operand, 0 along axes of length one.
Strides4 broadcast_strides(const mx::array& a);

}  // namespace flashrt
