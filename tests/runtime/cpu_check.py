"""Operands for the CPU kernels, and the comparison of all their outputs with the reference."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests import reference as ref
from tests import tolerance
from tests.runtime.cpu_kernels import Array, Call

LN2 = np.float32(np.log(2.0))


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
