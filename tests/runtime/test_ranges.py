"""One attention cut into several primitives: the same values, every option, every derivative."""

from __future__ import annotations

import io
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

import flashrt
from flashrt import _C
from flashrt._call import Call, check
from flashrt._pieces import pieces_of, ranges_of
from flashrt._work import predicted_ms
from flashrt.attention import in_pieces
from tests.runtime.arrays import assert_close, normal, to_numpy, widen
from tests.runtime.test_attention import COMBINATIONS, options

B, H, HK, QL, KL, D, DV = 2, 4, 2, 37, 70, 32, 24
L = (QL, KL)


def split(ranges: int | None, inputs: list[mx.array], given: dict[str, Any]) -> list[mx.array]:
    """Call the primitives directly: O and LSE, whole or in so many ranges."""
    unset = dict.fromkeys(
        ("mask", "window_size", "softcap", "scale", "sinks", "alibi_slopes", "block_mask")
    )
    call = check(*inputs, **{**unset, "causal": False, "segment_ids": None, **given})
    arguments = (*call.operands(), *call.options(), True)
    if ranges is None:
        return list(_C.attention(*arguments))
    return list(_C.attention_in_ranges(*arguments, ranges=ranges))


@pytest.mark.parametrize("ranges", [1, 2, 5])
@pytest.mark.parametrize("names", COMBINATIONS, ids=lambda names: "+".join(names) or "plain")
def test_same_values_and_gradients(names: tuple[str, ...], ranges: int) -> None:
    """Ranges of queries in the forward and for dQ and dMask, of keys for dK and dV."""
    rng = np.random.default_rng(7)
    given, _ = options(rng, names)
    trained = [n for n in ("mask", "sinks") if n in given and given[n].dtype != mx.bool_]
    inputs = [normal(rng, B, H, QL, D), normal(rng, B, HK, KL, D), normal(rng, B, HK, KL, DV)]
    inputs += [given[n] for n in trained]
    cotangents = [normal(rng, B, H, QL, DV), normal(rng, B, H, QL)]

    def forward(count: int | None) -> Any:
        return lambda *x: split(count, list(x[:3]), given | dict(zip(trained, x[3:], strict=True)))

    outputs, found = mx.vjp(forward(ranges), inputs, cotangents)
    outputs_whole, expected = mx.vjp(forward(None), inputs, cotangents)
    for x, y in zip([*outputs, *found], [*outputs_whole, *expected], strict=True):
        assert_close(x, widen(y))


def test_parts_are_separate_primitives() -> None:
    """What is cut is cut: tiles of 32 rows and keys, no more parts than tiles."""
    q, k = mx.zeros((1, 2, 100, 8)), mx.zeros((1, 2, 130, 8))
    three = split(3, [q, k, k], {"causal": True})
    assert primitives(three, "FlashAttention") == 3
    assert primitives(three, "JoinedFlashAttention") == 1
    assert primitives(split(99, [q, k, k], {}), "FlashAttention") == 4
    gradients = mx.grad(lambda *x: split(2, list(x), {})[0].sum(), (0, 1, 2))(q, k, k)
    assert primitives(gradients, "FlashAttentionBackward") == 3 + 4


def primitives(arrays: list[mx.array], name: str) -> int:
    """Count the primitives of this name in a graph."""
    text = io.StringIO()
    mx.export_to_dot(text, *arrays)
    return text.getvalue().count(f'label ="{name}"')


def test_other_transforms() -> None:
    """vmap, jvp, second derivatives and compile go through the joined call as well."""
    rng = np.random.default_rng(8)
    inputs = [normal(rng, 1, H, 40, D), normal(rng, 1, HK, 70, D), normal(rng, 1, HK, 70, DV)]
    mx.eval(inputs)

    def loss(count: int | None) -> Any:
        def value(*x: mx.array) -> mx.array:
            o, lse = split(count, list(x), {"causal": True})
            return (mx.sin(o)).sum() + mx.cos(lse).sum()

        return value

    def squares(f: Any) -> Any:
        return lambda *x: sum((g**2).sum() for g in mx.grad(f, (0, 1, 2))(*x))

    transforms: tuple[Any, ...] = (
        lambda f: mx.jvp(lambda *x: [f(*x)], inputs, inputs)[1],
        lambda f: mx.grad(squares(f), (0, 1, 2))(*inputs),
        lambda f: mx.compile(mx.grad(f, (0, 1, 2)))(*inputs),
        lambda f: [mx.vmap(f, in_axes=(0, None, None))(mx.stack([inputs[0]] * 2), *inputs[1:])],
        lambda f: [
            mx.vmap(mx.grad(f), in_axes=(0, None, None))(mx.stack([inputs[0]] * 2), *inputs[1:])
        ],
    )
    for transform in transforms:
        for x, y in zip(transform(loss(2)), transform(loss(None)), strict=True):
            assert_close(x, to_numpy(y), times=20)


def test_slopes_keep_their_typed_error() -> None:
    """Also when cut."""
    q = mx.ones((1, 2, 64, 8))
    with pytest.raises(flashrt.UnsupportedError, match="alibi_slopes"):
        mx.grad(lambda s: split(2, [q, q, q], {"alibi_slopes": s})[0].sum())(mx.ones((2,)))


def test_how_many_ranges() -> None:
    """Batches and key heads come first; ranges follow where one of each is still too much."""

    def call(length: int) -> Call:
        q = mx.zeros((2, 32, length, 128), mx.bfloat16)
        return Call(q, q[:, :8], q[:, :8], scale=1.0, causal=True)

    for length in (4096, 65536, 1048576):
        for architecture in ("applegpu_g13g", "applegpu_g13s"):
            milliseconds = predicted_ms(call(length), architecture)
            pieces = pieces_of(call(length), milliseconds, 500.0)
            ranges = ranges_of(call(length), milliseconds, 500.0)
            if ranges > 1:
                assert pieces == (2, 8)
            # Whole, a backward is one primitive; in ranges the parts of each half are as long.
            longest = max(milliseconds.values()) if ranges == 1 else milliseconds["forward"]
            assert longest / (pieces[0] * pieces[1] * ranges) <= 500.0
    assert ranges_of(call(4096), predicted_ms(call(4096), "applegpu_g13g"), None) == 1
    assert ranges_of(call(1048576), predicted_ms(call(1048576), "applegpu_g13g"), None) > 1


def test_pieces_in_ranges() -> None:
    """Both cuts at once."""
    rng = np.random.default_rng(9)
    q, k, v = normal(rng, B, H, QL, D), normal(rng, B, HK, KL, D), normal(rng, B, HK, KL, DV)
    call = Call(q, k, v, scale=0.2, causal=True)
    for found, expected in zip(
        in_pieces(call, 2, 2, True, ranges=2), in_pieces(call, 1, 1, True), strict=True
    ):
        assert_close(found, widen(expected))
