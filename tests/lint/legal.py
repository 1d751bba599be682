"""Metal that MLX's kernel headers do not use, each with the public place where it was read.

Keys are names, `[[attribute]]` or `#pragma words`. An entry is a claim about Apple's compiler: keep
the list short.
"""

from __future__ import annotations

from typing import Final

LEGAL: Final[dict[str, str]] = {}

# Not a name, but the same kind of claim: in D = A * B + D, the types of D, A and B that the stub's
# simdgroup_multiply_accumulate accepts beyond one common type. The evidence is the intrinsic that
# Apple's compiler made of it, which a test looks for in the metallib of MLX's wheel.
_MMA = "air.simdgroup_matrix_8x8_multiply_accumulate"
MIXED_MMA: Final[dict[tuple[str, str, str], str]] = {
    ("float", "half", "half"): f"{_MMA}.v64f32.v64f16.v64f16.v64f32",
    ("float", "bfloat", "bfloat"): f"{_MMA}.v64f32.v64bf16.v64bf16.v64f32",
    ("float", "float", "half"): f"{_MMA}.v64f32.v64f32.v64f16.v64f32",
    ("float", "float", "bfloat"): f"{_MMA}.v64f32.v64f32.v64bf16.v64f32",
}
