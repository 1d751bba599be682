"""How far from the float64 reference a right result may be, element by element.

Nothing here is fitted: each term is the worst case of one rounding that the kernels make. They hold
S, P, dP, dS and all sums in f32 and round once at the end; only the role-split backward passes P
through a 16-bit slot.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests import reference as ref
from tests.reference import Floats

U32 = 2.0**-24  # half a unit in the last place of float32
FUNCTION = 2.0**-21  # relative error of exp2, log2, tanh: 4 units of float32, as Apple documents
UNIT = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": U32}
# Half the spacing of subnormals. 32-bit (and so bfloat16) ones may be flushed to zero on a GPU.
SUBNORMAL = {"float16": 2.0**-25, "bfloat16": 2.0**-126, "float32": 2.0**-126}
CLAMPED = 1e37
# The slot of the role split holds half(2^14 P): 11 bits, and half a subnormal of half below 2^-28.
SLOT_UNIT = 2.0**-11
SLOT_SUBNORMAL = 2.0**-25 * 2.0**-14


@dataclass(frozen=True, slots=True)
class ForwardBounds:
    """Largest errors that rounding explains."""

    o: Floats
    lse: Floats
    logits: Floats  # of each visible logit, 0 elsewhere
    raw: Floats  # of each scaled score


@dataclass(frozen=True, slots=True)
class BackwardBounds:
    """Largest errors that rounding explains."""

    dq: Floats
    dk: Floats
    dv: Floats
    dmask: Floats | None
    dsinks: Floats | None
    delta: Floats
    dlogits: Floats  # of each score's gradient, before any sum


def _relative(exponent_error: Floats) -> Floats:
    """Relative error of exp(x) from an error of x; past 30 the value is noise in any case."""
    with np.errstate(over="ignore"):
        return np.expm1(np.minimum(exponent_error, 30.0))


def _logit_errors(
    q: Floats, k: Floats, f: ref.Result, options: dict[str, Any]
) -> tuple[Floats, Floats]:
    D, H = q.shape[-1], q.shape[1]
    # A dot product of D terms, in any order, is off by at most D u |q|.|k|; two more for the scale.
    products = np.abs(f.scale) * ref.times_group(np.abs(q), np.abs(k).swapaxes(-1, -2))
    raw = (D + 2) * U32 * products
    softcap = options.get("softcap")
    # softcap has slope <= 1; tanh itself, the division and the product add their own.
    capped = softcap * np.abs(np.tanh(f.raw / softcap)) if softcap else np.abs(f.raw)
    logits = raw + (FUNCTION + 3 * U32) * capped if softcap else raw
    seen = np.isfinite(f.logits)
    # What bias was added, as seen from the result: a product by log2(e), then an addition, each
    # rounded, for the slope and for the mask; the intermediate sum is at most the sum of both.
    added = np.zeros(f.logits.shape)
    if options.get("mask") is not None and options["mask"].dtype != np.bool_:
        mask = ref.widen(options["mask"])
        added = added + np.abs(np.where(np.isneginf(mask), 0.0, mask))
    if options.get("alibi") is not None:
        mask_free = {n: options.get(n) for n in ("q_off", "row_diagonals")}
        B, _, qL, kL = f.logits.shape
        distance = np.abs(ref.diagonals(B, qL, kL, **mask_free) - np.arange(kL))
        slopes = np.abs(np.broadcast_to(ref.widen(options["alibi"]), (B, H)))[:, :, None, None]
        added = added + slopes * distance
    biased = options.get("mask") is not None or options.get("alibi") is not None
    logits = logits + (4 * U32 * (added + capped) if biased else 0.0)
    return np.where(seen, logits, 0.0), raw


def forward_bounds(
    q: NDArray[Any],
    k: NDArray[Any],
    v: NDArray[Any],
    f: ref.Result,
    dtype: str,
    *,
    u_p: float = 0.0,
    **options: Any,
) -> ForwardBounds:
    """Bounds of O and LSE for the result ``f`` of the same arguments.

    ``u_p`` is the rounding of P, for a route that rounds it before multiplying V.
    """
    q, k, v = ref.widen(q), ref.widen(k), ref.widen(v)
    kL = k.shape[2]
    logits, raw = _logit_errors(q, k, f, options)
    seen = np.isfinite(f.logits)
    top = np.max(np.where(seen, f.logits, -np.inf), -1, initial=-np.inf, keepdims=True)
    below = np.where(seen, np.where(np.isfinite(top), top, 0.0) - np.where(seen, f.logits, 0.0), 0)
    # exp2(s - m): the subtraction is rounded, then exp2. Both in units of log2, so within 2 of u.
    weight = _relative(logits + 2 * U32 * below + FUNCTION)
    # A sum of kL terms is off by kL u, and is rescaled at most once per 8 keys (product and exp2).
    summing = kL * U32 + (kL // 8 + 2) * (U32 + FUNCTION)
    # Relative error of l, the mean error of its terms; sinks are one more term.
    of_l = (f.p * weight).sum(-1) + summing + FUNCTION
    if options.get("sinks") is not None:
        sinks = ref.widen(options["sinks"])[:, None]
        away = np.abs(sinks - np.where(np.isfinite(top[..., 0]), top[..., 0], sinks))
        of_l = of_l + _relative(2 * U32 * (away + np.abs(sinks)) + FUNCTION)
    # O = sum(p v) / l: errors of each p, of P's own rounding, of the sum, of l, and of the output.
    o = (
        ref.times_group(f.p * (weight + u_p), np.abs(v))
        + ref.times_group(f.p, np.abs(v)) * (summing + 4 * U32)
        + np.abs(f.o) * of_l[..., None]
        + UNIT[dtype] * np.abs(f.o)
        + SUBNORMAL[dtype]
    )
    # LSE = m + log2(l), each rounded, then the conversion of base.
    size = np.where(np.isfinite(f.lse), np.abs(f.lse), 0.0)
    peak = np.where(np.isfinite(top[..., 0]), np.abs(top[..., 0]), 0.0)
    lse = of_l + FUNCTION * np.abs(size - peak) + 4 * U32 * (size + peak) + 2 * U32
    # A mask near the end of the range is clamped there in log2 units: such rows promise O alone.
    lse = np.where(size > CLAMPED, np.finfo(np.float64).max, lse)
    return ForwardBounds(o, np.where(np.isfinite(f.lse), lse, 0.0), logits, raw)


def backward_bounds(
    q: NDArray[Any],
    k: NDArray[Any],
    v: NDArray[Any],
    d_o: NDArray[Any],
    f: ref.Result,
    b: ref.Backward,
    bounds: ForwardBounds,
    dtype: str,
    *,
    lse_error: Floats | None = None,
    delta_error: Floats | None = None,
    slot: bool = False,
    u_p: float = 0.0,
    **options: Any,
) -> BackwardBounds:
    """Bounds of the gradients.

    By default LSE and O come from a forward that was as wrong as ``bounds`` allows;
    ``lse_error`` and ``delta_error`` say otherwise, for kernels that are fed with the reference's.
    ``slot`` is the 16-bit slot of the role split, ``u_p`` the rounding of P and dS on other routes.
    """
    q, k, v, d_o = (ref.widen(x) for x in (q, k, v, d_o))
    H, Hk, qL, kL, Dv = q.shape[1], k.shape[1], q.shape[2], k.shape[2], v.shape[3]
    softcap = options.get("softcap")

    # delta = rowsum(dO O) - dLSE from the stored O, a sum of Dv terms; O as wrong as its bound.
    products = (np.abs(d_o) * np.abs(f.o)).sum(-1)
    d_lse = np.abs(b.delta - (d_o * f.o).sum(-1))
    delta = (np.abs(d_o) * bounds.o).sum(-1) + (Dv + 2) * U32 * products + 4 * U32 * d_lse
    if delta_error is None:
        delta_error = delta
    if lse_error is None:
        lse_error = bounds.lse

    # p = exp2(s - LSE), the difference rounded, then exp2; each in units of log2.
    size = np.where(np.isfinite(f.lse), np.abs(f.lse), 0.0)[..., None]
    below = np.where(f.p > 0, np.abs(np.where(f.p > 0, f.logits, 0.0)) + size, 0.0)
    of_p = f.p * (
        _relative(bounds.logits + lse_error[..., None] + 2 * U32 * below + FUNCTION) + u_p
    )
    if slot:
        of_p = of_p + np.where(f.p > 0, SLOT_UNIT * f.p + SLOT_SUBNORMAL, 0.0)
    # dP is a dot product of Dv terms; dS = P (dP - delta) takes three roundings more.
    of_dp = (Dv + 1) * U32 * ref.times_group(np.abs(d_o), np.abs(v).swapaxes(-1, -2))
    difference = np.abs(b.dp - b.delta[..., None])
    of_ds = of_p * difference + (f.p + of_p) * (of_dp + delta_error[..., None])
    of_ds = (
        of_ds
        + f.p * 3 * U32 * (np.abs(b.dp) + np.abs(b.delta[..., None]))
        + u_p * np.abs(b.dlogits)
    )
    of_draw = of_ds
    if softcap:
        # 1 - t^2 moves by 2 |t| dt, and dt is the score's error over the cap plus tanh's own.
        t = np.abs(np.tanh(f.raw / softcap))
        of_t = bounds.raw / softcap + (FUNCTION + 2 * U32) * t
        slope = 2 * t * of_t + of_t**2 + 3 * U32
        of_draw = of_ds * (1 - t**2) + (np.abs(b.dlogits) + of_ds) * slope
        if slot:
            # The slot holds P times the slope: its smallest step does not shrink with the slope.
            of_draw = of_draw + np.where(f.p > 0, SLOT_SUBNORMAL * t**2 * difference, 0.0)

    def closing(gradient: Floats) -> Floats:
        return (UNIT[dtype] + 3 * U32) * np.abs(gradient) + SUBNORMAL[dtype]

    # Each gradient is a sum of n products: the terms' errors, n u of the sum, the closing rounding.
    scale, group = abs(f.scale), H // max(Hk, 1)
    draw = np.abs(b.draw)
    over_keys, over_rows = (kL + 2) * U32, (qL * group + 2) * U32
    dmask = dsinks = None
    if b.dmask is not None:
        mask_dtype = "float32" if options["mask"].dtype != np.uint16 else "bfloat16"
        mask_dtype = "float16" if options["mask"].dtype == np.float16 else mask_dtype
        terms = b.dlogits.size // max(b.dmask.size, 1) + 2
        summed = ref.reduce_to_shape(of_ds + terms * U32 * np.abs(b.dlogits), b.dmask.shape)
        dmask = summed + UNIT[mask_dtype] * np.abs(b.dmask) + SUBNORMAL[mask_dtype]
    if b.dsinks is not None:
        sinks = ref.widen(options["sinks"])[:, None]
        p_sink = np.exp(sinks - f.lse)
        of_sink = _relative(lse_error + 2 * U32 * (np.abs(sinks) + size[..., 0]) + FUNCTION)
        terms = b.delta.size // max(H, 1) + 4
        dsinks = (
            p_sink * ((of_sink + terms * U32) * np.abs(b.delta) + (1 + of_sink) * delta_error)
        ).sum((0, 2)) + 4 * U32 * np.abs(b.dsinks)
    return BackwardBounds(
        dq=scale * ref.times_group(of_draw + over_keys * draw, np.abs(k)) + closing(b.dq),
        dk=scale * ref.summed_over_group(of_draw + over_rows * draw, np.abs(q), Hk) + closing(b.dk),
        dv=ref.summed_over_group(of_p + over_rows * f.p, np.abs(d_o), Hk) + closing(b.dv),
        dmask=dmask,
        dsinks=dsinks,
        delta=delta,
        dlogits=of_ds,
    )


@dataclass(frozen=True, slots=True)
class Comparison:
    """One output beside the reference."""

    name: str
    dtype: str
    units: float  # worst error in units of the output's rounding at its head's largest value
    share: float  # worst error as a share of its bound
    complaint: str  # empty when every element is within its bound


def compare(
    name: str, got: NDArray[Any], expected: Floats, bound: Floats, dtype: str
) -> Comparison:
    """Every element of ``got`` within ``bound`` of ``expected``, equal infinities, no NaN."""
    wide = ref.widen(got)
    if wide.shape != expected.shape:
        return Comparison(
            name, dtype, np.inf, np.inf, f"{name}: {wide.shape}, not {expected.shape}"
        )
    if wide.size == 0:
        return Comparison(name, dtype, 0.0, 0.0, "")
    same = (wide == expected) | ((bound > np.finfo(np.float32).max) & np.isfinite(wide))
    with np.errstate(invalid="ignore"):
        error = np.where(same, 0.0, np.abs(wide - expected))
    error = np.where(np.isnan(error), np.inf, error)
    share = np.divide(error, bound, out=np.where(error > 0, np.inf, 0.0), where=bound > 0)
    finite = np.where(np.isfinite(expected), np.abs(expected), 0.0)
    # In units of the largest value beside it. What cancels to next to nothing has the rounding of
    # its terms instead and is left to its bound; the terms of an LSE are logits and log2(l).
    large = finite.max((-1, -2), keepdims=True) if finite.ndim > 1 else finite.max()
    large = np.maximum(large, 1.0) if name == "lse" else large
    units = np.where(large < 2.0**-6, 0.0, error / np.maximum(UNIT[dtype] * large, 1e-38)).max()
    bad = share > 1
    complaint = ""
    if bad.any():
        at = tuple(int(i) for i in np.argwhere(bad)[0])
        complaint = (
            f"{name}: {int(bad.sum())} of {bad.size} elements beyond their bounds, first at {at}: "
            f"{wide[at]!r}, expected {expected[at]!r} within {bound[at]:.3g} "
            f"(worst {error.max():.3g})"
        )
    return Comparison(name, dtype, float(units), float(share.max()), complaint)
