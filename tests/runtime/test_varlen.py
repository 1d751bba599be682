"""attention_varlen against one call per sequence."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest

import flashrt
from tests.runtime.arrays import assert_close, normal, to_numpy

H, HK, D, DV = 4, 2, 16, 8

PACKINGS = {
    "three": ((5, 40, 9), (5, 40, 9)),
    "keys longer": ((5, 1, 9), (70, 33, 9)),
    "queries longer": ((50, 9), (20, 9)),
    "empty ones": ((0, 7, 0, 5, 0), (3, 7, 0, 0, 4)),
    "one": ((33,), (65,)),
    "none": ((), ()),
}

OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"causal": True},
    "window": {"window_size": (6, 2)},
    "last keys": {"window_size": 4},
    "alibi": {"causal": True, "alibi_slopes": mx.array([0.1, 0.5, 0.02, 1.0])},
    "softcap and sinks": {"softcap": 2.0, "sinks": mx.array([0.3, -1.0, 2.0, 0.0])},
}


def offsets(lengths: tuple[int, ...]) -> mx.array:
    return mx.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))


def one_by_one(
    arrays: list[mx.array], lengths: tuple[tuple[int, ...], tuple[int, ...]], options: Any
) -> tuple[mx.array, mx.array]:
    """Call attention per sequence and put the results back to back."""
    q, k, v = arrays
    at_q = at_k = 0
    outputs, lses = [], []
    for n_q, n_k in zip(*lengths, strict=True):
        if n_q == 0:  # MLX divides by zero in the gradient of an empty slice
            at_k += n_k
            continue
        parts = (q[at_q : at_q + n_q], k[at_k : at_k + n_k], v[at_k : at_k + n_k])
        o, lse = flashrt.attention(
            *(x.swapaxes(0, 1)[None] for x in parts), **options, return_lse=True, impl="reference"
        )
        outputs.append(o[0].swapaxes(0, 1))
        lses.append(lse[0])
        at_q, at_k = at_q + n_q, at_k + n_k
    return mx.concatenate(outputs, 0), mx.concatenate(lses, 1)


@pytest.mark.parametrize("impl", ["kernel", "reference"])
@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("packing", [name for name in PACKINGS if name != "none"])
def test_equals_separate_calls(packing: str, option: str, impl: Any) -> None:
    """Values, LSE and gradients; every sequence has its own alignment."""
    rng = np.random.default_rng(1)
    lengths, options = PACKINGS[packing], OPTIONS[option]
    total_q, total_k = sum(lengths[0]), sum(lengths[1])
    arrays = [normal(rng, total_q, H, D), normal(rng, total_k, HK, D), normal(rng, total_k, HK, DV)]
    w, u = normal(rng, total_q, H, DV), normal(rng, H, total_q)

    def packed(*x: mx.array) -> tuple[mx.array, mx.array]:
        return flashrt.attention_varlen(
            *x, offsets(lengths[0]), offsets(lengths[1]), **options, return_lse=True, impl=impl
        )

    def loss(f: Any) -> Any:
        def value(*x: mx.array) -> mx.array:
            o, lse = f(*x)
            return (o * w).sum() + (mx.where(lse == -mx.inf, 0.0, lse) * u).sum()

        return value

    def separate(*x: mx.array) -> tuple[mx.array, mx.array]:
        return one_by_one(list(x), lengths, options)

    for found, expected in zip(packed(*arrays), separate(*arrays), strict=True):
        assert_close(found, to_numpy(expected))
    found = mx.grad(loss(packed), (0, 1, 2))(*arrays)
    expected = mx.grad(loss(separate), (0, 1, 2))(*arrays)
    for x, y in zip(found, expected, strict=True):
        assert_close(x, to_numpy(y), times=4)


def test_same_offsets_on_both_sides() -> None:
    """Self-attention needs no diagonals, and gives the same."""
    rng = np.random.default_rng(2)
    q, k, v = normal(rng, 54, H, D), normal(rng, 54, HK, D), normal(rng, 54, HK, DV)
    cu = offsets((5, 40, 9))
    found = flashrt.attention_varlen(q, k, v, cu, cu, causal=True)
    assert_close(found, to_numpy(one_by_one([q, k, v], ((5, 40, 9),) * 2, {"causal": True})[0]))


def test_rows_outside_every_sequence() -> None:
    """Padding behind (and before) sees nothing and is seen by nothing."""
    rng = np.random.default_rng(3)
    q, k, v = normal(rng, 30, H, D), normal(rng, 40, HK, D), normal(rng, 40, HK, DV)
    cu_q, cu_k = mx.array([2, 7, 20], mx.int32), mx.array([1, 9, 33], mx.int32)

    def run(k: mx.array) -> list[mx.array]:
        return list(flashrt.attention_varlen(q, k, v, cu_q, cu_k, causal=True, return_lse=True))

    o, lse = run(k)
    outside = [*range(2), *range(20, 30)]
    assert not o[mx.array(outside)].any().item()
    assert (lse[:, mx.array(outside)] == -mx.inf).all().item()
    gradient = mx.grad(lambda k: run(k)[0].sum())(k)
    assert not gradient[mx.array([0, *range(33, 40)])].any().item()
    expected = one_by_one([q[2:20], k[1:33], v[1:33]], ((5, 13), (8, 24)), {"causal": True})[0]
    assert_close(o[2:20], to_numpy(expected))


def test_no_sequence() -> None:
    """Offsets of length one: every row is outside."""
    q, k = mx.ones((3, 2, 8)), mx.ones((4, 2, 8))
    cu = mx.zeros((1,), mx.int32)
    o, lse = flashrt.attention_varlen(q, k, k, cu, cu, causal=True, return_lse=True)
    assert not o.any().item()
    assert (lse == -mx.inf).all().item()


def test_offsets_stay_on_the_device() -> None:
    """Offsets that are not computed yet, and a compiled call with other contents."""
    rng = np.random.default_rng(4)
    q, k, v = normal(rng, 20, H, D), normal(rng, 20, HK, D), normal(rng, 20, HK, DV)
    f = mx.compile(lambda cu: flashrt.attention_varlen(q, k, v, cu, cu, causal=True))
    for lengths in ((20,), (3, 17), (10, 10)):
        lazy = mx.cumsum(mx.array((0, *lengths), mx.int32))
        same = one_by_one([q, k, v], (lengths, lengths), {"causal": True})[0]
        assert_close(f(lazy), to_numpy(same))


@pytest.mark.parametrize("cu", [[0, 99, 5], [-7, 3, 20], [5, 5, 5], [20, 0]], ids=str)
def test_malformed_contents_are_harmless(cu: list[int]) -> None:
    """Contents are not checked; they never lead outside the arrays."""
    q, k = mx.ones((20, 2, 8)), mx.ones((20, 2, 8))
    offsets = mx.array(cu, mx.int32)
    o, g = mx.value_and_grad(
        lambda q: flashrt.attention_varlen(q, k, k, offsets, offsets, causal=True).sum()
    )(q)
    assert mx.isfinite(o).item()
    assert mx.isfinite(g).all().item()


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"q": mx.zeros((1, 20, 2, 8))}, ValueError, r"q has shape.*\(total, H, D\)"),
        ({"cu_seqlens_q": mx.array([0, 20])}, None, ""),
        ({"cu_seqlens_q": mx.array([0, 20], mx.int64)}, TypeError, "cu_seqlens_q has dtype int64"),
        ({"cu_seqlens_k": [0, 20]}, TypeError, "cu_seqlens_k is a list"),
        ({"cu_seqlens_k": mx.zeros((1, 2), mx.int32)}, ValueError, r"\(n \+ 1,\)"),
        ({"cu_seqlens_k": mx.array([0, 9, 20], mx.int32)}, ValueError, "one entry more"),
        ({"alibi_slopes": mx.zeros((1, 2))}, flashrt.UnsupportedError, "alibi_slopes has shape"),
        ({"alibi_slopes": mx.zeros((3,))}, ValueError, r"\(2,\)"),
        ({"sinks": mx.zeros((3,))}, ValueError, "sinks has shape"),
        ({"impl": "mlx"}, flashrt.UnsupportedError, "impl='mlx'"),
    ],
    ids=lambda x: next(iter(x)) if isinstance(x, dict) else "",
)
def test_refusals(change: dict[str, Any], error: type[Exception] | None, message: str) -> None:
    """The same kind of errors as attention()."""
    arguments: dict[str, Any] = {name: mx.zeros((20, 2, 8)) for name in ("q", "k", "v")}
    arguments |= {f"cu_seqlens_{side}": mx.array([0, 20], mx.int32) for side in "qk"}
    if error is None:
        flashrt.attention_varlen(**(arguments | change))
        return
    with pytest.raises(error, match=message):
        flashrt.attention_varlen(**(arguments | change))
