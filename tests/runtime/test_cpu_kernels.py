"""The CPU kernels against the float64 reference, on every instruction set of this machine."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import reference as ref
from tests import tolerance
from tests.runtime import cpu_kernels
from tests.runtime.cpu_kernels import Array, Call

LN2 = np.float32(np.log(2.0))


@pytest.fixture(params=cpu_kernels.isas())
def isa(request: pytest.FixtureRequest) -> str:
    if not cpu_kernels.runs(request.param):
        pytest.skip(f"this CPU has no {request.param}")
    return str(request.param)


@pytest.fixture(params=list(cpu_kernels.DTYPES))
def dtype(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def normal(seed: int, shape: tuple[int, ...], dtype: str = "float32", scale: float = 1.0) -> Array:
    values = np.random.default_rng(seed).standard_normal(shape) * scale
    return ref.narrow(values, dtype)


def operands(
    B: int, H: int, Hk: int, qL: int, kL: int, D: int, Dv: int, dtype: str
) -> tuple[Array, Array, Array, Array]:
    shapes = ((B, H, qL, D), (B, Hk, kL, D), (B, Hk, kL, Dv), (B, H, qL, Dv))
    q, k, v, d_o = (normal(i, s, dtype) for i, s in enumerate(shapes))
    return q, k, v, d_o


def check(
    q: Array,
    k: Array,
    v: Array,
    d_o: Array,
    dtype: str,
    isa: str | None = None,
    d_lse: Array | None = None,
    threads: int = 0,
    **options: Any,
) -> None:
    """Forward, backward and the gradient of an additive mask, each within its derived bound."""
    f = ref.attention(q, k, v, **options)
    b = ref.backward(q, k, v, d_o=d_o, d_lse=d_lse, forward=f, **options)
    bounds = tolerance.forward_bounds(q, k, v, f, dtype, **options)
    of_b = tolerance.backward_bounds(q, k, v, d_o, f, b, bounds, dtype, **options)

    call = Call(q, k, v, dtype, options, isa=isa, threads=threads).forward()
    d_mask = None if b.dmask is None else np.full(b.dmask.shape, np.nan, np.float32)
    d_lse2 = None if d_lse is None else (d_lse * LN2).astype(np.float32)
    got = call.backward(d_o, d_lse2, d_mask=d_mask)
    assert call.o is not None
    assert call.lse is not None
    results = [
        tolerance.compare("o", call.o, f.o, bounds.o, dtype),
        tolerance.compare("lse", call.lse * LN2, f.lse, bounds.lse, "float32"),
        tolerance.compare("d_q", got["d_q"], b.dq, of_b.dq, dtype),
        tolerance.compare("d_k", got["d_k"], b.dk, of_b.dk, dtype),
        tolerance.compare("d_v", got["d_v"], b.dv, of_b.dv, dtype),
    ]
    if d_mask is not None:
        results.append(tolerance.compare("d_mask", d_mask, b.dmask, of_b.dmask, "float32"))
    complaints = [r.complaint for r in results if r.complaint]
    assert not complaints, "\n".join(complaints)


# (B, H, Hk, qL, kL, D, Dv): one element, tile edges, more rows than keys, grouped heads, padded
# and unequal head dims, several super-blocks of keys, key splits.
SHAPES = [
    (1, 1, 1, 1, 1, 16, 16),
    (2, 4, 2, 65, 131, 64, 64),
    (1, 6, 2, 200, 150, 72, 40),
    (1, 3, 3, 33, 15, 27, 33),
    (1, 8, 1, 5, 1100, 64, 96),
    (1, 1, 1, 300, 520, 256, 128),
    (1, 2, 2, 64, 64, 1, 256),
]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_shapes(shape: tuple[int, ...], causal: bool, dtype: str, isa: str) -> None:
    check(*operands(*shape, dtype=dtype), dtype, isa, causal=causal)


def test_per_isa_objects_hold_no_weak_symbols(tmp_path: Path) -> None:
    """A weak symbol compiled for a newer CPU could replace the baseline's copy of it."""
    objects = cpu_kernels.compile_objects(tmp_path)
    for path in objects:
        if not path.name.startswith("isa_"):
            continue
        listing = subprocess.run(
            ["nm", "-C", str(path)], check=True, capture_output=True, text=True
        ).stdout
        kinds = {
            line.split()[-2] if line[0] == " " else line.split()[1] for line in listing.splitlines()
        }
        assert "R" in kinds or "D" in kinds, listing  # the table itself: the listing was understood
        weak = [line for line in listing.splitlines() if line[17:18] in "WVwvu"]
        assert not weak, "\n".join(weak)
