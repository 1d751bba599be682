"""One launch of one kernel beside the reference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests import reference as ref
from tests import tolerance as tol
from tests.emulator import EmulatorError
from tests.kernel import launch
from tests.kernel.abi import constant
from tests.kernel.problems import LOG2E, Problem, Tensors, make_tensors
from tests.kernel.registry import Kernel

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one launch gave."""

    problem: Problem
    comparisons: tuple[tol.Comparison, ...]
    complaints: tuple[str, ...]
    visible: float  # share of the scores that count
    arrays: dict[str, Array]


def _options(p: Problem, t: Tensors) -> dict[str, Any]:
    return {name: value for name, value in t.options.items() if name != "scale"}


def stored_statistics(f: ref.Result, b: ref.Backward) -> tuple[Array, Array]:
    """LSE (log2) and delta as a right forward and delta kernel leave them in memory."""
    delta = b.delta.astype(np.float32)
    # delta of a row that sees nothing is whatever -dLSE is there; it must not matter.
    delta[np.isneginf(f.lse)] = 3.0
    # Visible logits, and so the LSE, are clamped to kFloor: a mask may pass the range of float32.
    lse = np.where(np.isneginf(f.lse), f.lse, np.maximum(f.lse * LOG2E, constant("kFloor")))
    return lse.astype(np.float32), delta


def check(
    kernel: Kernel, p: Problem, run: launch.Run | None = None, tensors: Tensors | None = None
) -> Verdict:
    """Launch a tiled kernel on a problem and compare every output, element by element.

    ``tensors`` stand in for the problem's own.
    """
    run = run or launch.Run()
    try:
        return _compare(kernel, p, run, tensors or make_tensors(p))
    except EmulatorError as error:  # a launch that could not go on
        return Verdict(p, (), (str(error), *run.faults[:5]), 0.0, {})


def _compare(kernel: Kernel, p: Problem, run: launch.Run, t: Tensors) -> Verdict:
    f = ref.attention(t.q, t.k, t.v, **t.options)
    options = _options(p, t)
    bounds = tol.forward_bounds(t.q, t.k, t.v, f, p.dtype, **options)
    results = []
    if kernel.kind == "fwd":
        out = launch.forward(run, kernel, p, t)
        lse = out.arrays["lse"].astype(np.float64) / LOG2E
        results.append(tol.compare("o", out.arrays["o"], f.o, bounds.o, p.dtype))
        results.append(tol.compare("lse", lse, f.lse, bounds.lse, "float32"))
    else:
        b = ref.backward(t.q, t.k, t.v, d_o=t.d_o, forward=f, **t.options)
        lse2, delta = stored_statistics(f, b)
        size = np.where(np.isfinite(f.lse), np.abs(f.lse), 0.0)
        limits = tol.backward_bounds(
            t.q,
            t.k,
            t.v,
            t.d_o,
            f,
            b,
            bounds,
            p.dtype,
            lse_error=2 * tol.U32 * size,
            delta_error=tol.U32 * np.abs(b.delta),
            slot=kernel.uses_slot and p.dtype != "float32",
            **options,
        )
        out = launch.gradient(run, kernel, p, t, lse2, delta)
        for name, got in out.arrays.items():
            if name == "dmask":
                results.append(_compare_dmask(p, b, limits, got))
                continue
            expected, bound = getattr(b, name), getattr(limits, name)
            results.append(tol.compare(name, got, expected, bound, p.dtype))
    complaints = [c.complaint for c in results if c.complaint]
    complaints += [f"{name}: {n} elements beside it written" for name, n in out.stray.items() if n]
    complaints += run.faults[:5]
    visible = float(np.isfinite(f.logits).mean()) if f.logits.size else 0.0
    return Verdict(p, tuple(results), tuple(complaints), visible, out.arrays)


def _compare_dmask(
    p: Problem, b: ref.Backward, limits: tol.BackwardBounds, got: Array
) -> tol.Comparison:
    terms = b.dlogits.size // got.size
    errors = limits.dlogits + terms * tol.U32 * np.abs(b.dlogits)
    expected = ref.reduce_to_shape(b.dlogits, got.shape)
    bound = ref.reduce_to_shape(errors, got.shape)
    return tol.compare("dmask", got, expected, bound, "float32")


def explain(kernel: Kernel, verdict: Verdict) -> str:
    """Name kernel, shape, constants and what is wrong."""
    p = verdict.problem
    on = [name for name, value in launch.constants(kernel, p).items() if value]
    lines = "\n    ".join(verdict.complaints)
    return f"{kernel.name}\n  {p}\n  constants: {' '.join(on) or 'none'}\n    {lines}"
