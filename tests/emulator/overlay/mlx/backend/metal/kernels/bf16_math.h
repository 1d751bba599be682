// The shim's own functions take bfloat where MLX's kernels hand it over; what is left is named here.
#pragma once

#include <metal_stdlib>
