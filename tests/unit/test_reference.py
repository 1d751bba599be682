"""The reference against finite differences, a scalar loop and hand-made values."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tests import reference as ref

B, H, HK, QL, KL, D, DV = 2, 4, 2, 35, 41, 8, 6


def tensors(seed: int = 0, qL: int = QL, kL: int = KL) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(seed)
    return (
        rng.standard_normal((B, H, qL, D)),
        rng.standard_normal((B, HK, kL, D)),
        rng.standard_normal((B, HK, kL, DV)),
        rng.standard_normal((B, H, qL, DV)),
        rng.standard_normal((B, H, qL)),
    )


def feature_sets() -> dict[str, dict[str, Any]]:
    rng = np.random.default_rng(1)
    holes = rng.random((B, 1, QL, KL)) < 0.6
    holes[:, :, 3] = False  # one row sees nothing
    segments = (np.sort(rng.integers(0, 3, (B, QL)), 1), np.sort(rng.integers(0, 3, (B, KL)), 1))
    return {
        "plain": {},
        "scale": {"scale": -0.7},
        "causal": {"causal": True},
        "top-left": {"causal": True, "q_off": 0},
        "future": {"causal": True, "q_off": -17},
        "window": {"window": (5, 3)},
        "half-window": {"window": (-1, 2)},
        "bool": {"mask": holes},
        "additive": {"mask": rng.standard_normal((1, H, 1, KL))},
        "additive-inf": {"mask": np.where(holes, rng.standard_normal((B, H, QL, KL)), -np.inf)},
        "softcap": {"softcap": 0.8},
        "sinks": {"sinks": rng.standard_normal(H), "mask": holes},
        "alibi": {"alibi": np.array([0.5, 0.25, 0.125, 0.0625])},
        "block": {"block_mask": np.array([[1, 0], [0, 1]], np.uint8), "causal": True},
        "segments": {"segments": segments},
        "diagonals": {
            "row_diagonals": np.arange(QL)[None] + np.array([[4], [-9]]),
            "causal": True,
            "window": (9, 0),
            "alibi": rng.random((B, H)),
        },
        "all": {
            "causal": True,
            "window": (20, 0),
            "mask": rng.standard_normal((H, QL, 1)),
            "softcap": 3.0,
            "sinks": rng.standard_normal(H),
            "alibi": rng.random(H),
            "segments": segments,
            "block_mask": np.ones((1, H, 2, 2), bool),
        },
    }


def loss(
    args: dict[str, np.ndarray], d_o: np.ndarray, d_lse: np.ndarray, options: dict[str, Any]
) -> float:
    options = dict(options)
    for name in ("mask", "sinks"):
        if name in args:
            options[name] = args[name]
    r = ref.attention(args["q"], args["k"], args["v"], **options)
    return float((d_o * r.o).sum() + (d_lse * np.where(np.isneginf(r.lse), 0.0, r.lse)).sum())


@pytest.mark.parametrize("name", feature_sets())
def test_gradients_equal_finite_differences(name: str) -> None:
    options = feature_sets()[name]
    q, k, v, d_o, d_lse = tensors()
    args = {"q": q, "k": k, "v": v}
    if options.get("mask") is not None and options["mask"].dtype != bool:
        args["mask"] = options["mask"]
    if "sinks" in options:
        args["sinks"] = options["sinks"]
    analytic = ref.gradients(q, k, v, d_o=d_o, d_lse=d_lse, **options)
    rng = np.random.default_rng(2)
    for argument, value in args.items():
        gradient = analytic["d" + argument]
        assert gradient is not None
        assert gradient.shape == value.shape
        for _ in range(3):
            step = rng.standard_normal(value.shape)
            h = 1e-5
            up = loss({**args, argument: value + h * step}, d_o, d_lse, options)
            down = loss({**args, argument: value - h * step}, d_o, d_lse, options)
            slope = (up - down) / (2 * h)
            assert (gradient * step).sum() == pytest.approx(slope, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("name", feature_sets())
def test_forward_equals_a_scalar_loop(name: str) -> None:
    options = feature_sets()[name]
    q, k, v, _, _ = tensors()
    got = ref.attention(q, k, v, **options)
    for b, h, i in [(0, 0, 0), (1, 3, 3), (1, 2, QL - 1), (0, 1, 17)]:
        o, lse = scalar_row(q, k, v, b, h, i, options)
        np.testing.assert_allclose(got.o[b, h, i], o, rtol=1e-12, atol=1e-12)
        assert got.lse[b, h, i] == pytest.approx(lse, rel=1e-12)


def scalar_row(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, b: int, h: int, i: int, options: dict[str, Any]
) -> tuple[np.ndarray, float]:
    """One row by the definition, written without any of the reference's array code."""
    at = i + options.get("q_off", KL - QL)
    if "row_diagonals" in options:
        at = int(options["row_diagonals"][b, i])
    weights, total = {}, 0.0
    for j in range(KL):
        s = options.get("scale", D**-0.5) * float(np.dot(q[b, h, i], k[b, h // 2, j]))
        if "softcap" in options:
            s = options["softcap"] * math.tanh(s / options["softcap"])
        if "alibi" in options:
            s -= float(np.broadcast_to(options["alibi"], (B, H))[b, h]) * abs(at - j)
        if "mask" in options:
            m = np.broadcast_to(options["mask"], (B, H, QL, KL))[b, h, i, j]
            if m.dtype == bool:
                if not m:
                    continue
            elif math.isinf(m):
                continue
            else:
                s += float(m)
        left, right = options.get("window", (-1, -1))
        if options.get("causal") and j > at:
            continue
        if (left >= 0 and j < at - left) or (right >= 0 and j > at + right):
            continue
        if "segments" in options and options["segments"][0][b, i] != options["segments"][1][b, j]:
            continue
        if "block_mask" in options:
            blocks = np.broadcast_to(options["block_mask"], (B, H, 2, 2))
            if not blocks[b, h, i // 32, j // 32]:
                continue
        weights[j] = math.exp(s)
        total += weights[j]
    if "sinks" in options:
        total += math.exp(float(options["sinks"][h]))
    o = np.zeros(DV)
    for j, w in weights.items():
        o += w / total * v[b, h // 2, j]
    return o, math.log(total) if total else -math.inf


def test_row_without_keys() -> None:
    q, k, v, d_o, d_lse = tensors(qL=9, kL=5)
    r = ref.attention(q, k, v, causal=True)
    assert np.all(r.o[:, :, :4] == 0)
    assert np.all(np.isneginf(r.lse[:, :, :4]))
    assert np.all(np.isfinite(r.lse[:, :, 4:]))
    g = ref.gradients(q, k, v, d_o=d_o, d_lse=d_lse, causal=True)
    assert g["dq"] is not None
    assert np.all(g["dq"][:, :, :4] == 0)
    sinks = np.arange(4.0)
    r = ref.attention(q, k, v, causal=True, sinks=sinks)
    np.testing.assert_allclose(r.lse[:, :, 0], np.broadcast_to(sinks, (B, H)))
    assert np.all(r.o[:, :, :4] == 0)


@pytest.mark.parametrize(("qL", "kL"), [(0, 5), (5, 0), (0, 0)])
def test_empty(qL: int, kL: int) -> None:
    q, k, v, d_o, d_lse = tensors(qL=qL, kL=kL)
    r = ref.attention(q, k, v, causal=True)
    assert r.o.shape == (B, H, qL, DV)
    assert np.all(r.o == 0)
    assert np.all(np.isneginf(r.lse))
    g = ref.gradients(q, k, v, d_o=d_o, d_lse=d_lse)
    assert g["dk"] is not None
    assert g["dk"].shape == k.shape
    assert np.all(g["dk"] == 0)


def test_mask_of_lowest_finite_is_a_shift_that_swallows_the_scores() -> None:
    q, k, v, _, _ = tensors()
    mask = np.zeros((QL, 1), np.float32)
    mask[3] = np.finfo(np.float32).min
    r = ref.attention(q, k, v, mask=mask)
    np.testing.assert_allclose(r.o[:, :, 3], ref.repeat_heads(v, H).mean(2), rtol=1e-12, atol=1e-15)


def test_bf16_rounds_to_nearest_even() -> None:
    exact = np.array([0.0, -0.0, 1.0, -2.5, np.inf, -np.inf, 3.3895314e38], np.float32)
    np.testing.assert_array_equal(ref.bf16_to_float32(ref.float_to_bf16(exact)), exact)
    half_way = np.array([1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20], np.float32)
    expected = np.array([1, 1 + 2**-6, 1 + 2**-7], np.float32)
    np.testing.assert_array_equal(ref.bf16_to_float32(ref.float_to_bf16(half_way)), expected)
    assert np.isnan(ref.bf16_to_float32(ref.float_to_bf16(np.array([np.nan], np.float32)))).all()
    assert np.isinf(ref.widen(ref.narrow(np.array([np.finfo(np.float32).max]), "bfloat16"))).all()
