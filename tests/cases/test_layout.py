"""A33 to A39: layouts."""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx
import numpy as np
import pytest

import flashrt
from tests import reference as ref
from tests.cases.support import agree, call, from_mx, normal, qkv, same_bits, to_mx
from tests.cases.test_sizes import inside


def transposed(*axes: int) -> Callable[[np.ndarray], mx.array]:
    """Make a placement in which the array is a transposition of contiguous memory."""

    def place(x: np.ndarray) -> mx.array:
        back = np.argsort(axes)
        memory = to_mx(np.ascontiguousarray(x.transpose(axes)))
        mx.eval(memory)
        return memory.transpose(*map(int, back))

    return place


BLHD, BHDL = transposed(0, 2, 1, 3), transposed(0, 1, 3, 2)


def test_A33_everything_transposed_from_blhd() -> None:
    q, k, v = qkv("float32", 84, 3, 3, 3, 3, 64)
    same_bits(agree(q, k, v, place=BLHD), agree(q, k, v))


def test_A34_only_v_is_a_view() -> None:
    q, k, v = qkv("bfloat16", 1, 16, 16, 62, 62, 128)
    d_o = normal("bfloat16", *q.shape, seed=4)
    viewed = call(to_mx(q), to_mx(k), BLHD(v), d_o, impl="kernel")
    same_bits(viewed, agree(q, k, v, d_o))


@pytest.mark.parametrize("reduce", [mx.sum, mx.mean])
def test_A35_a_cotangent_that_is_a_broadcast_scalar(reduce: Callable[..., mx.array]) -> None:
    q, k, v = qkv("float32", 2, 4, 2, 33, 33, 32)
    grads = mx.grad(
        lambda *x: reduce(flashrt.attention(*x, causal=True, impl="kernel")), argnums=(0, 1, 2)
    )(*map(to_mx, (q, k, v)))
    weight = 1.0 if reduce is mx.sum else 1.0 / q.size
    d_o = np.full(q.shape, weight, np.float32)
    want = ref.gradients(q, k, v, d_o=d_o, causal=True)
    for name, got in zip(("dq", "dk", "dv"), grads, strict=True):
        np.testing.assert_allclose(np.array(got), want[name], rtol=1e-4, atol=2e-5 * weight)


def test_A36_head_dim_not_of_unit_stride() -> None:
    q, k, v = qkv("float32", 2, 4, 2, 35, 41, 48)
    same_bits(agree(q, k, v, place=BHDL, causal=True), agree(q, k, v, causal=True))


def test_A37_keys_and_values_are_expansions_of_one_head() -> None:
    q, k, v = qkv("float32", 2, 4, 1, 50, 50, 64)
    d_o = normal("float32", *q.shape, seed=4)

    def f(q: mx.array, k: mx.array, v: mx.array) -> mx.array:
        k, v = (mx.broadcast_to(x, (2, 4, 50, 64)) for x in (k, v))
        return flashrt.attention(q, k, v, causal=True, impl="kernel")

    o, grads = mx.vjp(f, list(map(to_mx, (q, k, v))), [to_mx(d_o)])
    want = ref.backward(q, k, v, d_o=d_o, causal=True)
    np.testing.assert_allclose(np.array(o[0]), ref.attention(q, k, v, causal=True).o, atol=1e-5)
    for name, got in zip(("dq", "dk", "dv"), grads, strict=True):
        assert got.shape == getattr(want, name).shape
        np.testing.assert_allclose(np.array(got), getattr(want, name), rtol=1e-4, atol=3e-5)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_A38_slices_of_a_longer_cache(dtype: str, causal: bool) -> None:
    q, k, v = qkv(dtype, 1, 2, 1, 3, 1031, 64)
    d_o = normal(dtype, *q.shape, seed=4)
    cached = call(
        to_mx(q), inside(3e4, 249)(k), inside(3e4, 249)(v), d_o, impl="kernel", causal=causal
    )
    same_bits(cached, agree(q, k, v, d_o, causal=causal))


def test_A39_meaningless_strides_of_unit_axes() -> None:
    large = normal("float32", 3, 5, 7, 64)
    x = to_mx(large)
    views = [
        x[1:2, 2:3, 3:4],
        x.transpose(2, 0, 1, 3)[4:5, :1, 2:3],
        mx.as_strided(x, (1, 1, 1, 64), (12345, 7, 3, 1), 128),
    ]
    for q in views:
        for v in views:
            o = flashrt.attention(q, q, v, impl="kernel")
            np.testing.assert_array_equal(np.array(o), np.array(v))


@pytest.mark.parametrize("name", ["blhd", "bhdl", "slice", "reversed", "strided rows", "padded"])
def test_views_of_every_kind_equal_their_copies(name: str) -> None:
    places: dict[str, Callable[[np.ndarray], mx.array]] = {
        "blhd": BLHD,
        "bhdl": BHDL,
        "slice": inside(float("nan"), 5),
        "reversed": lambda x: to_mx(np.ascontiguousarray(x[:, :, ::-1]))[:, :, ::-1],
        "strided rows": lambda x: to_mx(np.repeat(x, 2, 2))[:, :, ::2],
        "padded": lambda x: to_mx(np.pad(x, ((0, 0),) * 3 + ((2, 1),)))[..., 2:-1],
    }
    for dtype in ("float32", "bfloat16"):
        q, k, v = qkv(dtype, 2, 4, 2, 37, 43, 40)
        same_bits(agree(q, k, v, place=places[name], causal=True), agree(q, k, v, causal=True))
    assert from_mx(places[name](q)).tobytes() == q.tobytes()
