// The part of the Metal Shading Language that the kernels use, as C++. Included before every kernel.
//
// Types convert as in MSL where C++ allows it: half behaves as IEEE binary16 operation by operation, bfloat takes
// floats only explicitly, literals are float (-cl-single-precision-constant).
#pragma once

#include "msl/scalar.h"
// scalar types first
#include "msl/vec.h"
// vectors before what takes them
#include "msl/math.h"
#include "msl/simd.h"
#include "msl/simdgroup_matrix.h"
// everything above is MSL; this binds kernels to launches
#include "msl/entry.h"

// Address spaces mean nothing here; `constant` at least still means const. Last: the shim itself uses these words.
#define device
#define thread
#define threadgroup
#define constant const
