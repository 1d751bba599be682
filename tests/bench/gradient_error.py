"""Error of dQ, dK and dV from the planned kernels, on the emulator, against float64.

Relative L2 error at growing logits, beside two models in numpy on the same inputs: one that keeps
S, dP, P and dS in float32, and one that rounds S, dP, P and dS to the input type, as a chain of
matrix products in that type does.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests import reference as ref
from tests.kernel import launch
from tests.kernel.abi import abi, slot
from tests.kernel.problems import Problem, Tensors, make_tensors
from tests.kernel.registry import by_kind, kernels

Array = NDArray[Any]
Gradients = Mapping[str, Array]


def _kernel(kind: str, p: Problem) -> Any:
    rows = (k for k in kernels() if (k.kind, k.dtype, k.d, k.dv) == (kind, p.dtype, p.d, p.dv))
    return next(k for k in rows if k.rank == 0)


def _delta(run: launch.Run, p: Problem, o: Array, d_o: Array) -> Array:
    (kernel,) = by_kind("bwd_delta", p.dtype)
    o_stored = run.tensor(p, o.shape, o)
    d_o_stored = run.tensor(p, d_o.shape, d_o)
    params = abi().structs["DeltaParams"](
        B=p.B,
        H=p.H,
        qL=p.qL,
        Dv=p.dv,
        o=launch.strides3(o_stored),
        d_o=launch.strides3(d_o_stored),
    )
    delta = launch.empty(p.B, p.H, p.qL)
    buffers = {
        slot("HelperParams"): bytes(params),
        slot("HelperOut"): delta,
        slot("HelperIn0"): launch.bind(o_stored),
        slot("HelperIn1"): launch.bind(d_o_stored),
        slot("HelperIn2"): launch.empty(1),
    }
    grid = launch.rows_grid(kernel, p.B * p.H * p.qL)
    run.launch(kernel, grid, buffers)
    return delta


def from_kernels(p: Problem, t: Tensors) -> Gradients:
    """Forward, delta, dQ and dK/dV, each from what the one before stored."""
    run = launch.Run()
    out = launch.forward(run, _kernel("fwd", p), p, t).arrays
    lse = np.ascontiguousarray(out["lse"])
    delta = _delta(run, p, out["o"], t.d_o)
    d_q = launch.gradient(run, _kernel("bwd_dq", p), p, t, lse, delta).arrays
    d_kv = launch.gradient(run, _kernel("bwd_dkv", p), p, t, lse, delta).arrays
    return {name: ref.widen(a) for name, a in {**d_q, **d_kv}.items()}


def _model(p: Problem, t: Tensors, between: Callable[[Array], Array]) -> Gradients:
    """One head in float32, `between` applied to S, P, dP and dS."""
    q, k, v, d_o = (ref.widen(x).astype(np.float32)[0, 0] for x in (t.q, t.k, t.v, t.d_o))
    scale = np.float32(p.scale_value)
    s = between(q @ k.T) * scale
    hidden = np.triu(np.ones_like(s, bool), 1 + p.off) if p.causal else np.zeros_like(s, bool)
    s[hidden] = -np.inf
    largest = s.max(-1, keepdims=True)
    total = np.exp(s - largest).sum(-1, keepdims=True)
    o = np.exp(s - largest) @ v / total
    stored = ref.widen(ref.narrow(o, p.dtype)).astype(np.float32)
    delta = (d_o * stored).sum(-1, keepdims=True)
    weights = np.exp(s - (largest + np.log(total)))
    d_s = between(weights * (between(d_o @ v.T) - delta))
    exact = {"dq": d_s @ k * scale, "dk": d_s.T @ q * scale, "dv": between(weights).T @ d_o}
    rounded = {name: ref.narrow(x, p.dtype) for name, x in exact.items()}
    return {name: ref.widen(x)[None, None] for name, x in rounded.items()}


def main(arguments: list[str]) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench gradient_error")
    parser.add_argument("--dtypes", nargs="+", default=["bfloat16", "float16"])
    parser.add_argument("--D", type=int, default=128)
    parser.add_argument("--L", type=int, default=512)
    options = parser.parse_args(arguments)
    print(f"causal, one head, L={options.L}, D={options.D}; relative L2 error x 1e-3")
    columns = ("kernels", "f32 kept", "kernels / f32 kept", "rounded between")
    print(f"{'dtype':<10}{'logit std':>10}{'':>6}" + "".join(f"{c:>20}" for c in columns))
    for dtype in options.dtypes:

        def rounded(x: Array, dtype: str = dtype) -> Array:
            return ref.widen(ref.narrow(x, dtype)).astype(np.float32)

        for deviation in (1, 3, 8):
            d, length, spread = options.D, options.L, deviation**0.5
            p = Problem(dtype, d, d, H=1, Hk=1, qL=length, kL=length, causal=True, spread=spread)
            t = make_tensors(p)
            f = ref.attention(t.q, t.k, t.v, **t.options)
            exact = ref.backward(t.q, t.k, t.v, d_o=t.d_o, forward=f, **_masks(t))
            results = (from_kernels(p, t), _model(p, t, lambda x: x), _model(p, t, rounded))
            for name in ("dq", "dk", "dv"):
                right = getattr(exact, name)
                ours, kept, chain = (
                    1e3 * np.linalg.norm(r[name] - right) / np.linalg.norm(right) for r in results
                )
                print(
                    f"{dtype:<10}{deviation:>10}{name:>6}{ours:>20.2f}{kept:>20.2f}"
                    f"{ours / kept:>20.3f}{chain:>20.2f}",
                    flush=True,
                )
    return 0


def _masks(t: Tensors) -> dict[str, Any]:
    return {name: value for name, value in t.options.items() if name != "scale"}
