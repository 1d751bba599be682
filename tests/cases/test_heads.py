"""A40 to A44: grouped heads."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

import flashrt
from tests import reference as ref
from tests.cases.support import agree, qkv, same_bits, to_mx


def test_A40_sixteen_query_heads_per_key_head() -> None:
    agree(*qkv("bfloat16", 1, 32, 2, 1, 1024, 128))


def test_A41_no_jump_at_any_length() -> None:
    for kL in (*range(1022, 1027), *range(4095, 4098)):
        q, k, v = qkv("float16", 1, 32, 8, 1, kL, 128)
        o = np.array(flashrt.attention(*map(to_mx, (q, k, v)), impl="kernel"))
        np.testing.assert_allclose(o, ref.attention(q, k, v).o, rtol=1e-3, atol=1e-4)
    agree(*qkv("float16", 1, 32, 8, 1, 1025, 128))


@pytest.mark.parametrize(("H", "Hk"), [(6, 2), (12, 3), (3, 1), (8, 8), (7, 7), (16, 2)])
@pytest.mark.parametrize("B", [1, 3])
def test_A42_heads_are_split_by_the_right_count(H: int, Hk: int, B: int) -> None:
    got = agree(*qkv("float32", B, H, Hk, 50, 50, 32), causal=True)
    for gradient in (got.dk, got.dv):
        assert np.abs(gradient).max((-1, -2)).min() > 0, "a head that nothing was written to"


def test_A43_grouped_heads_and_a_mask_at_tiny_sizes() -> None:
    q, k, v = qkv("float32", 2, 4, 2, 3, 3, 8)
    same_bits(agree(q, k, v, mask=np.ones((3, 3), bool)), agree(q, k, v))


@pytest.mark.parametrize(("H", "Hk"), [(5, 2), (2, 4), (4, 0), (0, 2), (3, 2)])
def test_A44_heads_that_do_not_divide(H: int, Hk: int) -> None:
    q, k = mx.zeros((1, H, 4, 16)), mx.zeros((1, Hk, 4, 16))
    for impl in ("auto", "kernel", "reference", "mlx"):
        with pytest.raises((ValueError, TypeError), match="head"):
            flashrt.attention(q, k, k, impl=impl)


def test_every_query_head_reads_its_own_key_head() -> None:
    """With one key per head O is that head's value, for every head."""
    q, k, v = qkv("float32", 2, 12, 4, 3, 1, 16)
    o = np.array(flashrt.attention(*map(to_mx, (q, k, v)), impl="kernel"))
    for h in range(12):
        for i in range(3):
            np.testing.assert_array_equal(o[:, h, i], v[:, h // 3, 0])
