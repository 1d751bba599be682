"""A45 to A47: dtypes."""

from __future__ import annotations

import itertools
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

import flashrt
from tests import reference as ref
from tests.cases.support import DTYPES, agree, call, dtype_name, from_mx, normal, qkv, to_mx


@pytest.mark.parametrize("mix", [m for m in itertools.product(DTYPES, repeat=3) if len(set(m)) > 1])
def test_A45_mixed_dtypes_promote(mix: tuple[str, str, str]) -> None:
    shapes = (1, 4, 9, 32), (1, 2, 11, 32), (1, 2, 11, 32)
    arrays = [normal(d, *s, seed=i) for i, (d, s) in enumerate(zip(mix, shapes, strict=True))]
    q, k, v = map(to_mx, arrays)
    promoted = mx.result_type(q, k, v)

    def f(*x: mx.array) -> mx.array:
        return flashrt.attention(*x, causal=True)

    d_o = mx.ones((1, 4, 9, 32), promoted)
    (o,), grads = mx.vjp(f, [q, k, v], [d_o])
    assert o.dtype == promoted
    b = ref.backward(*arrays, d_o=np.ones(o.shape), causal=True)
    expected = [ref.attention(*arrays, causal=True).o, b.dq, b.dk, b.dv]
    for got, want, x in zip([o, *grads], expected, [o, q, k, v], strict=True):
        assert got.dtype == x.dtype
        close = {"float32": 2e-4, "float16": 8e-3, "bfloat16": 5e-2}[dtype_name(x)]
        np.testing.assert_allclose(ref.widen(from_mx(got)), want, atol=close * np.abs(want).max())


ROUTES: dict[str, dict[str, Any]] = {
    "short": {"qL": 1, "kL": 70},
    "few": {"qL": 8, "kL": 70},
    "long": {"qL": 130, "kL": 130},
    "masked": {"qL": 33, "kL": 33, "mask": np.tril(np.ones((33, 33), bool))},
    "windowed": {"qL": 33, "kL": 33, "causal": True, "window": (9, 0)},
    "odd": {"qL": 9, "kL": 9, "D": 27},
    "wide": {"qL": 9, "kL": 9, "D": 512},
    "no row": {"qL": 9, "kL": 9, "causal": True, "mask": np.zeros((9, 9), bool)},
}


@pytest.mark.parametrize("impl", ["auto", "reference"])
@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_A46_dtypes_of_outputs_and_gradients(dtype: str, route: str, impl: str) -> None:
    options = dict(ROUTES[route])
    qL, kL, D = options.pop("qL"), options.pop("kL"), options.pop("D", 64)
    q, k, v = qkv(dtype, 1, 4, 2, qL, kL, D)
    got = agree(q, k, v, impl=impl, **options)
    for array in (got.o, got.dq, got.dk, got.dv):
        assert array.dtype == q.dtype
    assert got.lse.dtype == np.float32


def test_A47_float64() -> None:
    q, k, v = qkv("float32", 1, 4, 2, 20, 30, 32)
    wide = [x.astype(np.float64) for x in (q, k, v)]
    with mx.stream(mx.cpu):
        arrays = [mx.array(x, mx.float64) for x in wide]
        try:
            got = call(*arrays, wide[0] * 0 + 1, causal=True)
        except (ValueError, TypeError) as error:
            assert "float64" in str(error)  # noqa: PT017 - either way is right, silence is not
            return
    f = ref.attention(*wide, causal=True)
    b = ref.backward(*wide, d_o=np.ones(q.shape), causal=True)
    for name, want in (("o", f.o), ("lse", f.lse), ("dq", b.dq), ("dk", b.dk), ("dv", b.dv)):
        np.testing.assert_allclose(getattr(got, name), want, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("dtype", [mx.int32, mx.uint8, mx.bool_, mx.complex64])
def test_dtypes_that_are_no_floats_are_refused(dtype: mx.Dtype) -> None:
    good, bad = mx.zeros((1, 2, 4, 8)), mx.zeros((1, 2, 4, 8)).astype(dtype)
    for i, name in enumerate("qkv"):
        arrays = [bad if i == j else good for j in range(3)]
        with pytest.raises((TypeError, ValueError), match=rf"\b{name}\b.*dtype"):
            flashrt.attention(*arrays)
