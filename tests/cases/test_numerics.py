"""A01 to A08: numerics and NaN."""

from __future__ import annotations

import numpy as np
import pytest

import flashrt
from tests import reference as ref
from tests.cases.support import agree, call, finite, from_mx, normal, qkv, to_mx

MIN = np.finfo(np.float32).min


def test_A01_rows_that_a_boolean_mask_empties() -> None:
    q, k, v = qkv("float32", 1, 1, 1, 8, 8, 8)
    mask = np.zeros((8, 8), bool)
    mask[:4, :4] = True
    got = agree(q, k, v, mask=mask)
    finite(got)
    assert not got.o[:, :, 4:].any()
    assert np.isneginf(got.lse[:, :, 4:]).all()
    assert not got.dq[:, :, 4:].any()
    assert not got.dk[:, :, 4:].any()
    assert not got.dv[:, :, 4:].any()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_A02_one_query_and_one_key(dtype: str) -> None:
    q, k, v = qkv(dtype, 1, 1, 1, 1, 1, 16, spread=3.0)
    v = normal(dtype, *v.shape, spread=3.0, seed=9)
    d_o = np.ones_like(v) if dtype != "bfloat16" else ref.float_to_bf16(np.ones(v.shape))
    got = agree(q, k, v, d_o)
    np.testing.assert_array_equal(got.o, v)
    np.testing.assert_array_equal(got.dv, d_o)
    for gradient in (got.dq, got.dk):
        assert np.abs(ref.widen(gradient)).max() <= 1e-3


def test_A03_inputs_three_times_wider_than_unit_normal() -> None:
    q, k, v = qkv("float16", 1, 1, 1, 1024, 1024, 128, spread=3.0)
    finite(agree(q, k, normal("float16", *v.shape, spread=3.0), causal=True))


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_A04_products_beyond_the_range_of_half(sign: int, dtype: str) -> None:
    q = ref.narrow(np.full((1, 1, 4, 128), 300.0), dtype)
    rows = np.array([1.0, 0.9, 0.8, 0.7])[:, None]
    k = ref.narrow(np.broadcast_to(sign * 300.0 * rows, (1, 1, 4, 128)), dtype)
    v = normal(dtype, 1, 1, 4, 128)
    got = agree(q, k, v)
    finite(got)
    winner = v[:, :, 0 if sign > 0 else 3]
    for i in range(4):
        np.testing.assert_array_equal(got.o[:, :, i], winner)


def test_A05_key_blocks_that_are_masked_from_the_start() -> None:
    q, k, v = qkv("float32", 1, 2, 2, 40, 257, 64)
    mask = np.ones((40, 257), bool)
    mask[:, :200] = False
    got = agree(q, k, v, mask=mask)
    assert not got.dk[:, :, :200].any()
    assert not got.dv[:, :, :200].any()
    agree(q, k[:, :, 200:], v[:, :, 200:])
    rest = ref.attention(q, k[:, :, 200:], v[:, :, 200:])
    np.testing.assert_allclose(got.o, rest.o, atol=1e-5)


@pytest.mark.parametrize("length", [2 + 4, 17, 40])
def test_A06_nan_in_a_key_that_the_mask_removes(length: int) -> None:
    """O only: the gradients of such a call are a documented limit."""
    q, k, v = qkv("float32", 1, 1, 1, length, length, 64)
    k[:, :, 5] = np.nan
    mask = np.ones((length, length), bool)
    mask[:, 5] = False
    got = call(to_mx(q), to_mx(k), to_mx(v), impl="kernel", mask=mask)
    kept = [j for j in range(length) if j != 5]
    f = ref.attention(q, k[:, :, kept], v[:, :, kept], q_off=0)
    np.testing.assert_allclose(got.o, f.o, atol=1e-5)
    np.testing.assert_allclose(got.lse, f.lse, atol=1e-5)


@pytest.mark.parametrize("mask_dtype", ["float32", "bfloat16"])
def test_A07_a_mask_row_of_the_lowest_finite_number(mask_dtype: str) -> None:
    q, k, v = qkv("float32" if mask_dtype == "float32" else "bfloat16", 1, 1, 1, 9, 9, 64)
    lowest = np.zeros((9, 9), np.float32)
    lowest[3] = MIN
    mask = ref.narrow(lowest, mask_dtype)
    if mask_dtype == "bfloat16":
        mask[3] = 0xFF7F  # bfloat16's own
    got = agree(q, k, v, mask=mask)
    finite(got)
    assert np.isfinite(got.lse).all()
    mean = ref.widen(v).mean(2)
    np.testing.assert_allclose(
        ref.widen(got.o)[:, :, 3], mean, atol=1e-6 + 4e-3 * (v.itemsize == 2)
    )
    hidden = np.where(lowest < 0, -np.inf, 0).astype(np.float32)
    assert not agree(q, k, v, mask=hidden).o[:, :, 3].any()


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_A08_masked_keys_with_the_largest_logits(dtype: str) -> None:
    q, k, v = qkv(dtype, 1, 2, 2, 70, 70, 64)
    mask = np.random.default_rng(8).random((70, 70)) < 0.5
    mask[:, ::7] = False
    direction = np.ones(64) / 8
    k = ref.widen(k)
    k[:, :, ::7] = 15 * direction * 8
    q = ref.widen(q) * 0.2 + 8 * direction
    assert (q @ k.swapaxes(-1, -2) / 8)[..., ::7].min() > 100
    got = agree(ref.narrow(q, dtype), ref.narrow(k, dtype), v, mask=mask)
    finite(got)
    assert not got.dk[:, :, ::7].any()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("causal", [False, True])
def test_a_query_that_is_not_finite_spoils_its_own_row_alone(value: float, causal: bool) -> None:
    q, k, v = qkv("float32", 1, 2, 2, 40, 40, 64)
    good = from_mx(flashrt.attention(*map(to_mx, (q, k, v)), causal=causal, impl="kernel"))
    q[:, :, 7, 3] = value
    got = from_mx(flashrt.attention(*map(to_mx, (q, k, v)), causal=causal, impl="kernel"))
    others = np.arange(40) != 7
    np.testing.assert_array_equal(got[:, :, others], good[:, :, others])
    assert np.isnan(got[:, :, 7]).all() or not np.isnan(value)
