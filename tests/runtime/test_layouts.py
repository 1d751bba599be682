"""Inputs and cotangents that are not contiguous; no copy where none is needed."""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx
import numpy as np
import pytest

import flashrt
from tests import reference
from tests.runtime.arrays import assert_close, normal, to_numpy, widen

View = Callable[[mx.array], mx.array]

LEFTOVER = 3e4  # what lies around a view must never reach a result


def padded(x: mx.array, *widths: tuple[int, int]) -> mx.array:
    return mx.pad(x, list(widths), constant_values=LEFTOVER)


NO = (0, 0)
# Each makes a view with the given values from a larger or rearranged array.
VIEWS: dict[str, View] = {
    "contiguous": lambda x: x,
    "heads inside": lambda x: mx.contiguous(x.swapaxes(1, 2)).swapaxes(1, 2),
    "last axis strided": lambda x: mx.contiguous(x.swapaxes(2, 3)).swapaxes(2, 3),
    "slice of a cache": lambda x: padded(x, NO, NO, (0, 5), NO)[:, :, : x.shape[2]],
    "behind an offset": lambda x: padded(x, (1, 0), NO, (3, 0), NO)[1:, :, 3:],
    "slice of the last axis": lambda x: padded(x, NO, NO, NO, (4, 4))[..., 4:-4],
    "every other row": lambda x: mx.repeat(x, 2, 2)[:, :, ::2],
    "rows backwards": lambda x: mx.contiguous(x[:, :, ::-1])[:, :, ::-1],
    "last axis backwards": lambda x: mx.contiguous(x[..., ::-1])[..., ::-1],
    "one of three": lambda x: mx.stack([x, x * 0 + LEFTOVER, x], 3)[:, :, :, 0],
}


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("operand", ["q", "k", "v", "d_o"])
def test_views(operand: str, name: str) -> None:
    """Bit-equal to contiguous arrays of the same values, and equal to the reference."""
    rng = np.random.default_rng(1)
    arrays = {
        "q": normal(rng, 2, 4, 19, 16),
        "k": normal(rng, 2, 2, 35, 16),
        "v": normal(rng, 2, 2, 35, 8),
        "d_o": normal(rng, 2, 4, 19, 8),
    }
    mx.eval(arrays)

    def run(a: dict[str, mx.array]) -> list[mx.array]:
        (o,), gradients = mx.vjp(
            lambda q, k, v: [flashrt.attention(q, k, v, causal=True)],
            [a["q"], a["k"], a["v"]],
            [a["d_o"]],
        )
        return [o, *gradients]

    view = VIEWS[name](arrays[operand])
    assert mx.array_equal(view, arrays[operand])
    plain, viewed = run(arrays), run(arrays | {operand: view})
    assert all(mx.array_equal(x, y) for x, y in zip(plain, viewed, strict=True))
    expected = reference.attention(*(to_numpy(arrays[n]) for n in "qkv"), causal=True)
    assert_close(viewed[0], expected.o)


def test_expanded_heads_and_batch() -> None:
    """Zero strides: the gradient of what was expanded is the sum over the expansion."""
    rng = np.random.default_rng(2)
    small = normal(rng, 1, 1, 20, 16)
    q = normal(rng, 2, 4, 20, 16)

    def loss(kv: mx.array, expand: View) -> mx.array:
        full = expand(kv)
        return (flashrt.attention(q, full, full) ** 2).sum()

    broadcast = mx.grad(loss)(small, lambda x: mx.broadcast_to(x, (2, 4, 20, 16)))
    copied = mx.grad(loss)(small, lambda x: mx.concatenate([mx.concatenate([x] * 4, 1)] * 2, 0))
    assert_close(broadcast, to_numpy(copied))


@pytest.mark.parametrize("reduce", [mx.sum, mx.mean], ids=["sum", "mean"])
def test_broadcast_cotangent(reduce: Callable[[mx.array], mx.array]) -> None:
    """The cotangent of a sum is one number with zero strides."""
    rng = np.random.default_rng(3)
    q, k, v = (normal(rng, 1, 2, 20, 16) for _ in range(3))
    found = mx.grad(lambda *x: reduce(flashrt.attention(*x)), (0, 1, 2))(q, k, v)
    d_o = np.full((1, 2, 20, 16), 1.0 if reduce is mx.sum else 1 / (2 * 20 * 16))
    expected = reference.gradients(*(to_numpy(x) for x in (q, k, v)), d_o=d_o)
    for name, gradient in zip("qkv", found, strict=True):
        assert_close(gradient, expected["d" + name], times=2)


@pytest.mark.parametrize(
    "view",
    [
        lambda m: m,
        lambda m: mx.contiguous(m.swapaxes(2, 3)).swapaxes(2, 3),
        lambda m: mx.pad(m, [NO, NO, NO, (0, 3)])[..., :-3],
        lambda m: m[..., ::-1][..., ::-1],
        lambda m: mx.broadcast_to(m[:, :1], m.shape),
        lambda m: m[:1, :, :, :1],
        lambda m: m[0, 0],
        lambda m: m[0, :, :1],
        lambda m: m[0, 0, 0],
    ],
)
@pytest.mark.parametrize("kind", ["bool", "additive"])
def test_mask_views(kind: str, view: View) -> None:
    """Masks of any broadcastable shape and stride, as they are."""
    rng = np.random.default_rng(4)
    q, k, v = (normal(rng, 2, 4, n, 16) for n in (19, 35, 35))
    full = rng.standard_normal((2, 4, 19, 35)).astype(np.float32)
    mask = view(mx.array(full > -0.5 if kind == "bool" else full))
    found, gradient = mx.value_and_grad(
        lambda v: (flashrt.attention(q, k, v, mask=mask) ** 2).sum()
    )(v)
    dense = mx.array(np.broadcast_to(np.array(mask), (2, 4, 19, 35)).copy())
    expected, same = mx.value_and_grad(
        lambda v: (flashrt.attention(q, k, v, mask=dense, impl="reference") ** 2).sum()
    )(v)
    assert_close(found.reshape(1), to_numpy(expected.reshape(1)))
    assert_close(gradient, to_numpy(same), times=2)


def test_gradient_of_every_mask_shape() -> None:
    """DMask adds over what the mask broadcasts, in float32, and has the mask's dtype."""
    rng = np.random.default_rng(5)
    q, k, v = (normal(rng, 2, 4, n, 16) for n in (19, 35, 35))
    d_o = normal(rng, 2, 4, 19, 16)
    for shape in [(2, 4, 19, 35), (1, 4, 1, 35), (4, 19, 1), (19, 35), (2, 1, 1, 35), (1,)]:
        for dtype, tolerance in (("float32", 2e-5), ("bfloat16", 1e-2)):
            mask = normal(rng, *shape, dtype=dtype)
            _, (found,) = mx.vjp(lambda m: [flashrt.attention(q, k, v, mask=m)], [mask], [d_o])
            assert found.dtype == mask.dtype
            expected = reference.gradients(
                *(to_numpy(x) for x in (q, k, v)), d_o=to_numpy(d_o), mask=to_numpy(mask)
            )["dmask"]
            # Over all keys of a row the true sum is 0, so errors are counted next to 1.
            worst = np.abs(widen(found) - expected).max()
            assert worst <= tolerance * max(1.0, np.abs(expected).max())


def test_output_memory_is_heads_inside() -> None:
    """The transpose and reshape that follow attention in a model copy nothing."""
    rng = np.random.default_rng(6)
    q, k, v = (normal(rng, 2, 4, 64, 32) for _ in range(3))
    o = flashrt.attention(q, k, v)
    merged = o.swapaxes(1, 2).reshape(2, 64, 128)
    mx.eval(o)
    before = mx.get_active_memory()
    mx.eval(merged)
    assert mx.get_active_memory() == before


def test_gradients_have_the_memory_order_of_their_inputs() -> None:
    """So the transposes in front of attention cost nothing in the backward either."""
    rng = np.random.default_rng(7)
    projected = [normal(rng, 2, 64, 4, 32) for _ in range(3)]

    def loss(*x: mx.array) -> mx.array:
        return flashrt.attention(*(y.swapaxes(1, 2) for y in x)).sum()

    gradients = mx.grad(loss, (0, 1, 2))(*projected)
    mx.eval(gradients)
    before = mx.get_active_memory()
    flat = [g.reshape(2, 64, 128) for g in gradients]
    mx.eval(flat)
    assert mx.get_active_memory() == before


def test_views_are_not_copied() -> None:
    """Only what has no contiguous last axis is packed."""
    rng = np.random.default_rng(8)
    x = normal(rng, 1, 512, 8, 64)
    mx.eval(x)
    view = x.swapaxes(1, 2)[:, :, 1:]
    mx.reset_peak_memory()
    base = mx.get_active_memory()
    o = flashrt.attention(view, view, view)
    mx.eval(o)
    lse = 4 * 8 * 511
    assert mx.get_peak_memory() - base <= o.nbytes + lse + 2**14
    # A cotangent that repeats one number is not spelled out.
    gradient = mx.grad(lambda q: flashrt.attention(q, view, view).sum())
    mx.eval(gradient(view))
    mx.clear_cache()
    mx.reset_peak_memory()
    base = mx.get_active_memory()
    mx.eval(gradient(view))
    assert mx.get_peak_memory() - base <= 2 * o.nbytes + lse + 2**14
    strided = mx.contiguous(x.swapaxes(1, 3)).transpose(0, 2, 3, 1)
    mx.eval(strided)
    mx.reset_peak_memory()
    base = mx.get_active_memory()
    mx.eval(flashrt.attention(strided, view, view))
    assert mx.get_peak_memory() - base > o.nbytes + lse + 2**14
