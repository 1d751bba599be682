"""Calls flashrt as a user does and compares everything that comes back with the reference."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

import flashrt
from tests import reference as ref
from tests import tolerance as tol

Array = NDArray[Any]
API_NAMES = {"window": "window_size", "alibi": "alibi_slopes", "segments": "segment_ids"}
DTYPES = ("float32", "float16", "bfloat16")
# Largest error over largest value, for routes whose roundings are not ours; gradients get twice it.
CEILING = {"float32": 2e-4, "float16": 4e-3, "bfloat16": 2.5e-2, "float64": 2e-4}


def to_mx(x: Array) -> mx.array:
    """Hand over an array; uint16 is bfloat16."""
    return mx.array(x).view(mx.bfloat16) if x.dtype == np.uint16 else mx.array(x)


def from_mx(x: mx.array) -> Array:
    """Take an array back, bfloat16 as uint16."""
    return np.array(x.view(mx.uint16)) if x.dtype == mx.bfloat16 else np.array(x)


def dtype_name(x: mx.array) -> str:
    """``float16`` of ``mlx.core.float16``."""
    return str(x.dtype).rpartition(".")[2]


def normal(dtype: str, *shape: int, spread: float = 1.0, seed: int = 0) -> Array:
    """Draw normal values, rounded to a dtype."""
    rng = np.random.default_rng([seed, *shape])
    return ref.narrow(rng.standard_normal(shape) * spread, dtype)


def qkv(
    dtype: str,
    B: int,
    H: int,
    Hk: int,
    qL: int,
    kL: int,
    D: int,
    Dv: int | None = None,
    *,
    spread: float = 1.0,
) -> tuple[Array, Array, Array]:
    """Draw inputs of a shape."""
    return (
        normal(dtype, B, H, qL, D, spread=spread, seed=1),
        normal(dtype, B, Hk, kL, D, spread=spread, seed=2),
        normal(dtype, B, Hk, kL, D if Dv is None else Dv, seed=3),
    )


@dataclass
class Outcome:
    """What a call gave, as numpy arrays in the dtypes it gave them in."""

    o: Array
    lse: Array
    dq: Array
    dk: Array
    dv: Array
    dmask: Array | None = None
    dsinks: Array | None = None


def api_options(options: dict[str, Any]) -> dict[str, Any]:
    """Translate options of the reference into arguments of ``flashrt.attention``."""
    out = {}
    for name, value in options.items():
        if name == "segments":
            value = tuple(to_mx(ids) for ids in value)
        elif isinstance(value, np.ndarray):
            value = to_mx(value)
        out[API_NAMES.get(name, name)] = value
    return out


def call(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    d_o: Array | None = None,
    d_lse: Array | None = None,
    *,
    impl: str = "auto",
    wrap: Callable[..., Any] | None = None,
    **options: Any,
) -> Outcome:
    """Run forward and backward; ``options`` are those of the reference."""
    given = api_options(options)
    extra = [n for n in ("mask", "sinks") if n in given and given[n].dtype != mx.bool_]
    primals = [q, k, v, *(given.pop(n) for n in extra)]

    def f(*args: mx.array) -> list[mx.array]:
        named = dict(zip(extra, args[3:], strict=True))
        return list(flashrt.attention(*args[:3], **given, **named, return_lse=True, impl=impl))

    f = wrap(f) if wrap else f
    o, lse = f(*primals)
    co = mx.ones(o.shape, o.dtype) if d_o is None else to_mx(d_o)
    cl = mx.zeros(lse.shape) if d_lse is None else to_mx(d_lse)
    _, grads = mx.vjp(f, primals, [co, cl])
    mx.eval(o, lse, grads)
    named = {"d" + n: from_mx(g) for n, g in zip(extra, grads[3:], strict=True)}
    return Outcome(from_mx(o), from_mx(lse), *(from_mx(g) for g in grads[:3]), **named)


def agree(
    q: Array,
    k: Array,
    v: Array,
    d_o: Array | None = None,
    d_lse: Array | None = None,
    *,
    impl: str = "kernel",
    place: Callable[[Array], mx.array] = to_mx,
    **options: Any,
) -> Outcome:
    """Assert that O, LSE and all gradients are right; returns them.

    flashrt's own kernels are held to the derived bounds, other routes to ``CEILING``.
    """
    dtype = {np.float16: "float16", np.uint16: "bfloat16", np.float64: "float64"}.get(
        q.dtype.type, "float32"
    )
    shape = (*q.shape[:3], v.shape[3])
    d_o = normal(dtype, *shape, seed=4) if d_o is None else d_o
    got = call(place(q), place(k), place(v), d_o, d_lse, impl=impl, **options)
    f = ref.attention(q, k, v, **options)
    b = ref.backward(q, k, v, d_o=d_o, d_lse=d_lse, forward=f, **options)
    expected = {"o": f.o, "lse": f.lse, "dq": b.dq, "dk": b.dk, "dv": b.dv}
    expected |= {"dmask": b.dmask, "dsinks": b.dsinks}
    outputs = {n: x for n, x in expected.items() if x is not None}
    if impl == "kernel":
        bounds = _derived(q, k, v, d_o, f, b, dtype, options)
    else:
        bounds = {n: _ceiling(n, x, dtype) for n, x in outputs.items()}
    for name, want in outputs.items():
        array = getattr(got, name)
        stored = dtype if name in ("o", "dq", "dk", "dv") else "float32"
        unit = stored if stored in tol.UNIT else "float32"
        c = tol.compare(name, array, want, bounds[name], unit)
        assert not c.complaint, c.complaint
    return got


def _ceiling(name: str, x: ref.Floats, dtype: str) -> ref.Floats:
    finite = np.abs(np.where(np.isfinite(x), x, 0.0)).max(initial=0.0)
    share = CEILING[dtype] * (1 if name in ("o", "lse") else 2)
    return np.full(x.shape, share * max(finite, 1e-3))


def _derived(
    q: Array,
    k: Array,
    v: Array,
    d_o: Array,
    f: ref.Result,
    b: ref.Backward,
    dtype: str,
    options: dict[str, Any],
) -> dict[str, ref.Floats]:
    others = {n: x for n, x in options.items() if n != "scale"}
    fb = tol.forward_bounds(q, k, v, f, dtype, **others)
    bb = tol.backward_bounds(q, k, v, d_o, f, b, fb, dtype, **others)
    names = ("dq", "dk", "dv", "dmask", "dsinks")
    return {"o": fb.o, "lse": fb.lse, **{n: getattr(bb, n) for n in names}}


def same_bits(a: Outcome, b: Outcome, *names: str) -> None:
    """Assert equality of every bit."""
    for name in names or ("o", "lse", "dq", "dk", "dv"):
        x, y = getattr(a, name), getattr(b, name)
        assert x.shape == y.shape, name
        assert x.tobytes() == y.tobytes(), f"{name} differs"


def finite(outcome: Outcome, *names: str) -> None:
    """Assert that nothing is NaN or infinite."""
    for name in names or ("o", "dq", "dk", "dv"):
        assert np.isfinite(ref.widen(getattr(outcome, name))).all(), name
