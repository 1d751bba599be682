"""Arrays for the runtime's tests: made in numpy, seen by MLX and by the float64 reference alike."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np

from tests import reference

MX_DTYPES = {"float16": mx.float16, "bfloat16": mx.bfloat16, "float32": mx.float32}

# Relative to the largest |reference|: generous next to the derived bounds of tests/tolerance.py,
# small next to any wrong formula. Gradients get twice this.
TOLERANCE = {"float16": 4e-3, "bfloat16": 2.5e-2, "float32": 2e-5}


def to_mx(values: np.ndarray[Any, Any], dtype: str = "float32") -> mx.array:
    """Round to a float dtype; bools and integers stay."""
    if values.dtype.kind != "f":
        return mx.array(values)
    return mx.array(values.astype(np.float32)).astype(MX_DTYPES[dtype])


def to_numpy(x: mx.array) -> np.ndarray[Any, Any]:
    """What the reference reads: bfloat16 as its bits."""
    if x.dtype == mx.bfloat16:
        return np.array(x.view(mx.uint16))
    return np.array(x)


def widen(x: mx.array) -> np.ndarray[Any, Any]:
    """float64 values."""
    return reference.widen(to_numpy(x))


def normal(rng: np.random.Generator, *shape: int, dtype: str = "float32") -> mx.array:
    """Draw standard normal values."""
    return to_mx(rng.standard_normal(shape), dtype)


def error(actual: mx.array, expected: Any) -> float:
    """Largest error over the largest |expected|; shapes and infinities must agree exactly."""
    got, want = widen(actual), np.asarray(expected, dtype=np.float64)
    assert got.shape == want.shape, f"shape {got.shape}, expected {want.shape}"
    finite = np.isfinite(want)
    assert np.array_equal(got[~finite], want[~finite]), "infinities differ"
    if not finite.any():
        return 0.0
    scale = max(np.abs(want[finite]).max(), 1e-6)
    return float(np.abs(got[finite] - want[finite]).max() / scale)


def assert_close(actual: mx.array, expected: Any, dtype: str = "float32", times: float = 1) -> None:
    """Compare with the reference within the dtype's tolerance."""
    found = error(actual, expected)
    assert found <= times * TOLERANCE[dtype], f"error {found:.3g} of the largest value"
