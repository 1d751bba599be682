"""Calls in pieces: how many, and the same results as the whole."""

from __future__ import annotations

import inspect
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

import flashrt
from flashrt._call import Call, check
from flashrt._pieces import cut, pieces_of, ranges_of
from flashrt._work import predicted_ms
from flashrt.attention import in_pieces

B, H, HK, QL, KL, D = 3, 6, 3, 40, 50, 16


def normal(*shape: int, seed: int = 0) -> mx.array:
    values = np.random.default_rng(seed).standard_normal(shape)
    return mx.array(values.astype(np.float32))


def checked(*qkv: mx.array, **named: Any) -> Call:
    absent = dict.fromkeys(inspect.signature(check).parameters.keys() - {"q", "k", "v"})
    return check(*qkv, **{**absent, "causal": False, **named})


def operands() -> tuple[mx.array, mx.array, mx.array]:
    return normal(B, H, QL, D, seed=1), normal(B, HK, KL, D, seed=2), normal(B, HK, KL, D, seed=3)


def options() -> dict[str, dict[str, Any]]:
    ids = mx.array(np.arange(QL)[None] // 9, dtype=mx.int32)
    keys = mx.array(np.arange(KL)[None] // 9, dtype=mx.int32)
    visible = np.random.default_rng(4).random((B, 1, QL, KL)) < 0.7
    return {
        "causal": {"causal": True},
        "mask of every batch": {"mask": mx.array(visible)},
        "mask of every head": {"mask": normal(1, H, 1, KL, seed=5)},
        "sinks and slopes": {"sinks": normal(H, seed=6), "alibi_slopes": normal(B, H, seed=7)},
        "slopes of a head": {"alibi_slopes": normal(H, seed=7)},
        "segments": {
            "segment_ids": (
                mx.broadcast_to(ids, (B, QL)),
                mx.broadcast_to(keys, (B, KL)),
            )
        },
        "block mask": {"block_mask": mx.array(np.random.default_rng(8).random((B, H, 2, 2)) < 0.7)},
    }


@pytest.mark.parametrize("name", options())
@pytest.mark.parametrize("parts", [(1, 2), (3, 1), (2, 2), (3, 3)])
def test_pieces_give_what_the_whole_gives(name: str, parts: tuple[int, int]) -> None:
    q, k, v = operands()
    named = options()[name]
    weights = normal(B, H, QL, D, seed=9)

    def whole(q: mx.array, k: mx.array, v: mx.array) -> mx.array:
        o, lse = flashrt.attention(q, k, v, return_lse=True, impl="kernel", **named)
        return (o * weights).sum() + mx.where(mx.isinf(lse), 0.0, lse).sum()

    def apart(q: mx.array, k: mx.array, v: mx.array) -> mx.array:
        o, lse2 = in_pieces(checked(q, k, v, **named), *parts, True)
        lse = lse2 * np.log(2.0).item()
        return (o * weights).sum() + mx.where(mx.isinf(lse), 0.0, lse).sum()

    expected = mx.value_and_grad(whole, argnums=(0, 1, 2))(q, k, v)
    got = mx.value_and_grad(apart, argnums=(0, 1, 2))(q, k, v)
    assert got[0].item() == pytest.approx(expected[0].item(), rel=1e-5)
    for a, b in zip(got[1], expected[1], strict=True):
        np.testing.assert_allclose(np.array(a), np.array(b), rtol=0, atol=2e-6)


def test_every_head_is_in_one_piece() -> None:
    q, k, v = operands()
    rows = cut(checked(q, k, v), 2, 2)
    assert [[c.q.shape[:2] for c in row] for row in rows] == [[(2, 4), (2, 2)], [(1, 4), (1, 2)]]
    assert [[c.v.shape[:2] for c in row] for row in rows] == [[(2, 2), (2, 1)], [(1, 2), (1, 1)]]


@pytest.mark.parametrize(
    ("milliseconds", "budget", "expected"),
    [
        (900.0, None, (1, 1)),
        (1001.0, None, (2, 1)),
        (10.0, 5.0, (2, 1)),
        (40.0, 10.0, (3, 2)),
        (1e9, 1.0, (B, HK)),
    ],
)
def test_pieces_fit_the_budget(
    milliseconds: float, budget: float | None, expected: tuple[int, int]
) -> None:
    times = {"forward": 1.0, "backward": milliseconds}
    assert pieces_of(checked(*operands()), times, budget) == expected


def test_predicted_time_grows_with_what_is_visible() -> None:
    q = normal(1, 2, 512, D)
    dense = predicted_ms(checked(q, q, q), "applegpu_g13g")
    causal = predicted_ms(checked(q, q, q, causal=True), "applegpu_g13g")
    assert causal["forward"] == pytest.approx(dense["forward"] * 513 / 1024)
    bigger = predicted_ms(checked(q, q, q), "applegpu_g13s")
    assert bigger["backward"] == pytest.approx(dense["backward"] / 2)


def test_explain_tells_time_and_pieces() -> None:
    q = mx.zeros((1, 8, 32768, 128), dtype=mx.bfloat16)
    told = flashrt.explain(q, q, q, causal=True, architecture="applegpu_g13g", impl="kernel")
    assert told["predicted_ms"]["backward"] > told["predicted_ms"]["forward"] > 0
    assert told["pieces"][1] > 1
    assert "pieces" in str(told)


@pytest.mark.parametrize("budget", [5e-324, 1e-12, 1e-6, 1e-3])
def test_no_budget_asks_for_more_than_can_be_cut(budget: float) -> None:
    """Tiny budgets are taken: one head a piece, one tile of 32 rows or keys a range."""
    call = checked(normal(1, 2, 256, 16), normal(1, 2, 300, 16), normal(1, 2, 300, 16))
    milliseconds = {"forward": 1.0, "backward": 3.0}
    assert pieces_of(call, milliseconds, budget) == (1, 2)
    assert ranges_of(call, milliseconds, budget) == 10
