// Function constants and the few numbers that every kernel shares.
#pragma once

#include <metal_simdgroup>
#include <metal_simdgroup_matrix>
#include <metal_stdlib>

using namespace metal;

#include "flashrt/abi.h"

#define FLASHRT_DECLARE(index, name) constant bool name [[function_constant(index)]];
FLASHRT_FUNCTION_CONSTANTS(FLASHRT_DECLARE)
#undef FLASHRT_DECLARE

#define FLASHRT_UNROLL _Pragma("clang loop unroll(full)")
#define FLASHRT_UNROLL_4 _Pragma("clang loop unroll_count(4)")

namespace flashrt {

constant constexpr float kLog2E = 1.44269504088896340736f;

// Logits of visible keys are clamped to [kFloor, -kFloor] where they leave the hot loop, hidden ones are kMasked. As
// exp2(kMasked - m) is 0 for every m >= kFloor, and a running maximum starts at kFloor, a hidden key never counts and a
// row of visible but hugely negative logits still does: nothing is ever inferred from the size of a logit.
constant constexpr float kFloor = -1.7e38f;
constant constexpr float kMasked = -3.4e38f;

// Stands for the LSE of a row that sees no key (stored as -inf): exp2(s - kNoKeysLse) is 0 for every logit.
constant constexpr float kNoKeysLse = 3.4e38f;

constant constexpr int kSimd = 32;
constant constexpr int kFrag = 8;  // rows and columns of a simdgroup_matrix

}  // namespace flashrt
