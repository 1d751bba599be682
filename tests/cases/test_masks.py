"""A09 to A18: masks."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

import flashrt
from tests import reference as ref
from tests.cases.support import Outcome, agree, call, normal, qkv, same_bits, to_mx


def test_A09_additive_mask_of_one_query_and_one_key() -> None:
    q, k, v = qkv("float32", 1, 8, 8, 1, 1, 64, spread=3.0)
    got = agree(q, k, v, mask=normal("float32", 8, 1, 1, spread=3.0))
    np.testing.assert_array_equal(got.o, v)


def test_A10_a_mask_of_batch_one() -> None:
    q, k, v = qkv("float32", 4, 8, 2, 1, 128, 64)
    mask = np.zeros((1, 1, 1, 128), np.float32)
    mask[..., 64:] = -np.inf
    same_bits(
        agree(q, k, v, mask=mask),
        agree(q, k, v, mask=np.broadcast_to(mask, (4, 1, 1, 128)).copy()),
    )


@pytest.mark.parametrize("length", [16, 40, 41])
def test_A11_a_triangular_mask_is_causal(length: int) -> None:
    q, k, v = qkv("bfloat16", 1, 2, 2, length, length, 64)
    lower = np.where(np.tril(np.ones((length, length), bool)), 0, -np.inf)
    masked = agree(q, k, v, mask=ref.narrow(lower, "bfloat16"))
    causal = agree(q, k, v, causal=True)
    np.testing.assert_allclose(ref.widen(masked.o), ref.widen(causal.o), atol=2**-8)


def test_A12_a_float_mask_is_always_added() -> None:
    q, k, v = qkv("bfloat16", 1, 2, 2, 8, 8, 8)
    ones = np.random.default_rng(1).random((8, 8)) < 0.5
    agree(q, k, v, mask=ref.narrow(ones.astype(np.float32), "bfloat16"))


@pytest.mark.parametrize("kind", ["zeros", "normal", "bool"])
def test_A13_a_mask_that_is_a_slice(kind: str) -> None:
    q, k, v = qkv("float32", 1, 8, 8, 77, 77, 64)
    wide = normal("float32", 1, 8, 77, 80) * (kind != "zeros")
    wide = wide > 0 if kind == "bool" else wide
    got = flashrt.attention(*map(to_mx, (q, k, v)), mask=mx.array(wide)[..., :77], impl="kernel")
    whole = agree(q, k, v, mask=wide[..., :77].copy())
    np.testing.assert_array_equal(np.array(got), whole.o)


def test_A14_a_square_mask_although_there_are_more_keys() -> None:
    q, k, v = map(to_mx, qkv("float32", 1, 1, 1, 4, 9, 64))
    with pytest.raises(ValueError, match=r"\(4, 4\).*\(1, 1, 4, 9\)"):
        flashrt.attention(q, k, v, mask=mx.ones((4, 4), mx.bool_))


@pytest.mark.parametrize("kind", ["bool", "additive"])
def test_A15_causal_and_a_mask(kind: str) -> None:
    q, k, v = qkv("float32", 1, 4, 2, 33, 65, 64)
    random = normal("float32", 1, 4, 33, 65)
    agree(q, k, v, causal=True, mask=random > -0.5 if kind == "bool" else random)


@pytest.mark.exhaustive
def test_A16_a_mask_of_more_than_two_billion_elements() -> None:
    """Rows 2^26 apart, as a mask of that many keys has them; only what is read differs from 0."""
    q, k, v = qkv("float32", 1, 1, 1, 33, 64, 64)
    pitch = 2**26
    keep = np.random.default_rng(2).random((33, 64)) < 0.3
    wide = np.zeros((33, pitch), bool)
    wide[:, :64] = keep
    mask = mx.array(wide)[:, :64]
    got = flashrt.attention(*map(to_mx, (q, k, v)), mask=mask, impl="kernel")
    np.testing.assert_array_equal(np.array(got), agree(q, k, v, mask=keep).o)


def test_A17_both_spellings_of_a_mask() -> None:
    q, k, v = qkv("float32", 1, 2, 2, 20, 20, 32)
    keep = np.random.default_rng(3).random((20, 20)) < 0.6
    keep[7] = False
    spelled: list[Outcome] = [
        agree(q, k, v, mask=keep),
        agree(q, k, v, mask=np.where(keep, 0, -np.inf).astype(np.float32)),
    ]
    same_bits(*spelled)
    for got in spelled:
        assert not got.o[:, :, 7].any()
        assert not got.dq[:, :, 7].any()


def test_A18_a_mask_for_every_head() -> None:
    q, k, v = qkv("float32", 1, 64, 64, 1, 300, 64)
    agree(q, k, v, mask=normal("float32", 1, 64, 1, 300, spread=2.0))


def test_mask_shapes_are_checked_when_attention_is_called() -> None:
    q, k, v = map(to_mx, qkv("float32", 2, 4, 2, 5, 7, 16))
    for shape in ((5, 6), (3, 1, 5, 7), (2, 3, 5, 7), (1, 1, 1, 5, 7), (7, 5), (2, 5, 7)):
        with pytest.raises((ValueError, TypeError), match="mask"):
            flashrt.attention(q, k, v, mask=mx.ones(shape, mx.bool_))
    for dtype in (mx.int32, mx.uint8, mx.complex64):
        with pytest.raises(TypeError, match="mask"):
            flashrt.attention(q, k, v, mask=mx.ones((5, 7), dtype))


def test_every_broadcastable_mask_shape() -> None:
    q, k, v = qkv("float32", 2, 4, 2, 5, 7, 16)
    full = (2, 4, 5, 7)
    for pattern in range(16):
        shape = tuple(n if pattern >> i & 1 else 1 for i, n in enumerate(full))
        for drop in range(next((i for i, n in enumerate(shape) if n > 1), 4) + 1):
            agree(q, k, v, mask=normal("float32", *shape[drop:]))
    assert call(*map(to_mx, (q, k, v)), impl="kernel").o.shape == (2, 4, 5, 16)
