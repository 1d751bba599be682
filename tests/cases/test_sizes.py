"""A27 to A32: ragged sizes and head sizes."""

from __future__ import annotations

import itertools

import mlx.core as mx
import numpy as np
import pytest

from tests import reference as ref
from tests.cases.support import agree, qkv, to_mx


def inside(leftover: float, rows: int = 50):
    """Make a placement that slices arrays out of longer ones filled with ``leftover``."""

    def place(x: np.ndarray) -> mx.array:
        B, H, L, D = x.shape
        fill = ref.narrow(
            np.full(1, leftover), "bfloat16" if x.dtype == np.uint16 else x.dtype.name
        )
        longer = np.full((B, H, L + rows, D), fill[0], x.dtype)
        longer[:, :, :L] = x
        return to_mx(longer)[:, :, :L]

    return place


@pytest.mark.parametrize("qL", [1, 8])
@pytest.mark.parametrize("kL", [38, 39, 70])
@pytest.mark.parametrize("D", [64, 96, 128])
def test_A27_nothing_behind_the_last_key_is_read(qL: int, kL: int, D: int) -> None:
    q, k, v = qkv("float32", 1, 4, 2, qL, kL, D)
    agree(q, k, v, place=inside(1e4))
    agree(q, k, v, place=inside(1e4), causal=True)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_A28_odd_everything(dtype: str, causal: bool) -> None:
    agree(*qkv(dtype, 1, 3, 3, 33, 15, 27), causal=causal)


@pytest.mark.parametrize("D", [1, 2, 3, 7, 9, 31, 33, 65, 100, 127, 129, 255, 256])
def test_A28_every_odd_head_dim(D: int) -> None:
    agree(*qkv("float32", 1, 2, 1, 11, 13, D), causal=True)


def test_A29_all_columns_of_a_wide_head_count() -> None:
    q, k, v = qkv("float32", 1, 2, 2, 40, 40, 128)
    q[..., :64] = 0
    got = agree(q, k, v)
    assert np.abs(got.o - v.mean(2, keepdims=True)).max() > 0.1
    k[..., :64] = 0
    agree(q, k, v)


@pytest.mark.parametrize(("D", "Dv"), [(32, 64), (64, 32), (72, 8), (8, 72)])
def test_A30_values_of_another_width(D: int, Dv: int) -> None:
    agree(*qkv("float32", 1, 4, 2, 45, 45, D, Dv), causal=True)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_A31_decode_with_192_and_128(dtype: str) -> None:
    agree(*qkv(dtype, 1, 4, 2, 1, 700, 192, 128))


@pytest.mark.parametrize("impl", ["auto", "kernel"])
def test_A32_every_pair_of_head_dims(impl: str) -> None:
    dims = (32, 64, 80, 96, 128, 192, 256, 512)
    for D, Dv in itertools.product(dims, dims):
        if impl == "kernel" and max(D, Dv) > 256:
            with pytest.raises(ValueError, match=r"512|head dim"):
                agree(*qkv("float16", 1, 2, 1, 9, 35, D, Dv), impl=impl)
            continue
        agree(*qkv("float16", 1, 2, 1, 9, 35, D, Dv), impl=impl, causal=True)


@pytest.mark.parametrize("qL", [1, 2, 7, 8, 9, 31, 32, 33, 63, 64, 65, 129])
def test_every_edge_of_a_block(qL: int) -> None:
    for kL in (1, 7, 8, 31, 32, 33, 63, 64, 65, 129):
        agree(*qkv("float32", 1, 1, 1, qL, kL, 16), causal=True)
