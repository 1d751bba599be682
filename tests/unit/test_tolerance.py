"""The bounds hold for float32 arithmetic on rounded inputs, and for nothing much worse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests import reference as ref
from tests import tolerance as tol

F32 = np.float32
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"causal": True},
    "softcap": {"softcap": 2.0, "causal": True},
    "additive": {"mask": np.random.default_rng(5).standard_normal((4, 70, 77)).astype(F32)},
    "large mask": {"mask": np.where(np.arange(77) % 3, 0, -1e9).astype(F32)},
    "sinks": {"sinks": np.array([0.5, 3, -2, 9], F32)},
    "alibi": {"alibi": np.array([0.5, 0.25, 0.125, 0.01], F32), "causal": True},
}


def case(dtype: str, spread: float = 1.0) -> list[np.ndarray]:
    rng = np.random.default_rng(7)
    shapes = (2, 4, 70, 64), (2, 2, 77, 64), (2, 2, 77, 48), (2, 4, 70, 48)
    scales = (spread, spread, 1.0, 1.0)
    return [
        ref.narrow(rng.standard_normal(s) * a, dtype) for s, a in zip(shapes, scales, strict=True)
    ]


def in_float32(
    arrays: list[np.ndarray], dtype: str, options: dict[str, Any], slot: bool
) -> dict[str, np.ndarray]:
    """Compute as the kernels do: float32 throughout, one rounding of each output."""
    q, k, v, d_o = (ref.widen(x).astype(F32) for x in arrays)
    H, hk, D = q.shape[1], k.shape[1], q.shape[3]
    k, v = ref.repeat_heads(k, H), ref.repeat_heads(v, H)
    scale = F32(D**-0.5)
    raw = (q @ k.swapaxes(-1, -2)) * scale
    cap = F32(options.get("softcap", 0))
    s = cap * np.tanh(raw / cap) if cap else raw
    shape = s.shape
    if "alibi" in options:
        distance = np.abs(np.arange(70)[:, None] + 7 - np.arange(77)).astype(F32)
        s = s - options["alibi"][:, None, None] * distance
    if "mask" in options:
        s = s + options["mask"]
    s = np.where(ref.visibility(shape, causal=options.get("causal", False)), s, F32(-np.inf))
    m = s.max(-1, keepdims=True)
    e = np.exp(s - m)
    total = e.sum(-1, keepdims=True)
    if "sinks" in options:
        total = total + np.exp(options["sinks"][:, None, None] - m)
    o = ref.narrow((e @ v) / total, dtype)
    lse = m + np.log(total)
    p = np.exp(s - lse)
    assert p.dtype == F32
    if slot and dtype != "float32":
        p = (p * F32(2**14)).astype(np.float16).astype(F32) / F32(2**14)
    delta = (d_o * ref.widen(o).astype(F32)).sum(-1, keepdims=True)
    ds = p * (d_o @ v.swapaxes(-1, -2) - delta)
    draw = ds * (1 - np.tanh(raw / cap) ** 2) if cap else ds
    out = {
        "o": o,
        "lse": lse[..., 0],
        "delta": delta[..., 0],
        "dq": ref.narrow((draw @ k) * scale, dtype),
        "dk": ref.narrow(ref.sum_heads((draw.swapaxes(-1, -2) @ q) * scale, hk), dtype),
        "dv": ref.narrow(ref.sum_heads(p.swapaxes(-1, -2) @ d_o, hk), dtype),
    }
    if "mask" in options:
        out["dmask"] = ref.reduce_to_shape(ds, options["mask"].shape)
    if "sinks" in options:
        p_sink = np.exp(options["sinks"][:, None] - lse[..., 0])
        out["dsinks"] = -(p_sink * delta[..., 0]).sum((0, 2))
    return out


def comparisons(
    arrays: list[np.ndarray],
    got: dict[str, np.ndarray],
    dtype: str,
    options: dict[str, Any],
    slot: bool = False,
) -> dict[str, tol.Comparison]:
    q, k, v, d_o = arrays
    f = ref.attention(q, k, v, **options)
    b = ref.backward(q, k, v, d_o=d_o, forward=f, **options)
    fb = tol.forward_bounds(q, k, v, f, dtype, **options)
    bb = tol.backward_bounds(q, k, v, d_o, f, b, fb, dtype, slot=slot, **options)
    expected = {"o": f.o, "lse": f.lse, "delta": b.delta, "dq": b.dq, "dk": b.dk, "dv": b.dv}
    expected |= {"dmask": b.dmask, "dsinks": b.dsinks}
    result = {}
    for name, array in got.items():
        bound = getattr(fb if name in ("o", "lse") else bb, name)
        is_output = name in ("o", "dq", "dk", "dv")
        result[name] = tol.compare(
            name, array, expected[name], bound, dtype if is_output else "float32"
        )
    return result


@pytest.mark.parametrize("spread", [1.0, 3.0])
@pytest.mark.parametrize("slot", [False, True])
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("dtype", tol.UNIT)
def test_float32_arithmetic_is_within_bounds(
    dtype: str, options: str, slot: bool, spread: float
) -> None:
    arrays = case(dtype, spread)
    got = in_float32(arrays, dtype, OPTIONS[options], slot)
    for c in comparisons(arrays, got, dtype, OPTIONS[options], slot).values():
        assert not c.complaint
        assert c.share > 1e-4 or c.dtype == "float32", f"{c.name}: a bound that nothing can miss"


@pytest.mark.parametrize("dtype", tol.UNIT)
def test_smallest_faults_are_beyond_bounds(dtype: str) -> None:
    arrays = case(dtype)
    options = OPTIONS["causal"]
    good = in_float32(arrays, dtype, options, False)
    unit = tol.UNIT[dtype]
    for name, array in good.items():
        is_output = name in ("o", "dq", "dk", "dv")
        # 3 units of rounding of a 16-bit output; in f32 sums of D terms have their own error.
        # delta inherits the rounding of the stored O, as often as it has terms.
        off = 3 * unit if is_output and dtype != "float32" else 1e-3
        off = 20 * unit + 1e-3 if name == "delta" else off
        wrong = ref.widen(array) * (1 + off)
        wrong = ref.narrow(wrong, dtype) if is_output else wrong.astype(F32)
        c = comparisons(arrays, {name: wrong}, dtype, options)[name]
        assert c.complaint.startswith(f"{name}: ")

    keys_short = [x[:, :, :-1] if i in (1, 2) else x for i, x in enumerate(arrays)]
    dropped = ref.attention(*keys_short[:3], causal=True, q_off=7)
    assert comparisons(arrays, {"o": ref.narrow(dropped.o, dtype)}, dtype, options)["o"].complaint
    leaked = ref.attention(*arrays[:3], causal=True, q_off=8)
    assert comparisons(arrays, {"o": ref.narrow(leaked.o, dtype)}, dtype, options)["o"].complaint


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_non_finite_values_are_beyond_every_bound(bad: float) -> None:
    arrays = case("float32")
    got = in_float32(arrays, "float32", {}, False)
    for name, array in got.items():
        array.flat[5] = bad
        c = comparisons(arrays, {name: array}, "float32", {})[name]
        assert "elements beyond" in c.complaint
