"""Attention and its gradients in float64, the one thing every route is compared with.

Written for clarity: whole score matrices, one line per formula. The gradients are checked against
finite differences of the forward in ``tests/unit/test_reference.py``, so the two halves do not
share a mistake.

``uint16`` arrays are read as bfloat16 bits everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Floats = NDArray[np.float64]

MAP_TILE = 32  # side of the score tiles that one element of a block mask covers
# Masks beyond this are added in float32, as the routes do: there such a mask swallows the scores.
SWALLOWING_MASK = 2.0**24


def bf16_to_float32(bits: Array) -> NDArray[np.float32]:
    """Read bfloat16 bit patterns (uint16); exact."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def float_to_bf16(values: Array) -> NDArray[np.uint16]:
    """Round to bfloat16 bits, to nearest even; every NaN becomes a quiet one."""
    wide = np.ascontiguousarray(values, dtype=np.float32)
    bits = wide.view(np.uint32).astype(np.uint64)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(wide), np.uint16(0x7FC0), rounded)


def widen(array: Array) -> Floats:
    """float64 values of a float16, float32, float64 or bfloat16 (uint16) array."""
    if array.dtype == np.uint16:
        return bf16_to_float32(array).astype(np.float64)
    if array.dtype.kind != "f":
        raise TypeError(f"not a float array: {array.dtype}")
    return array.astype(np.float64)


def narrow(values: Array, dtype: str) -> Array:
    """Round to ``float16``, ``bfloat16`` (as uint16 bits) or ``float32``."""
    if dtype == "bfloat16":
        return float_to_bf16(values)
    return np.asarray(values).astype(np.dtype(dtype))


@dataclass(frozen=True, slots=True)
class Result:
    """Forward results, with what the gradients and the error bounds are made of."""

    o: Floats  # (B,H,qL,Dv)
    lse: Floats  # (B,H,qL), natural log, sinks included; -inf for a row that sees nothing
    p: Floats  # (B,H,qL,kL), 0 where hidden
    logits: Floats  # (B,H,qL,kL) before the hard masks, -inf where hidden
    raw: Floats  # (B,H,qL,kL) scale * q.k
    scale: float


def repeat_heads(x: Array, H: int) -> Array:
    """Query head h reads key head h // (H // Hk)."""
    return x if x.shape[1] == 0 else np.repeat(x, H // x.shape[1], axis=1)


def sum_heads(x: Floats, Hk: int) -> Floats:
    """Transpose of :func:`repeat_heads`."""
    B, H, L, D = x.shape
    return x.reshape(B, Hk, H // max(Hk, 1), L, D).sum(2)


def times_group(x: Floats, y: Floats) -> Floats:
    """X (B,H,L,N) @ y (B,Hk,N,M), the y of each head's group; nothing is repeated in memory."""
    B, H, L, N = x.shape
    Hk = max(y.shape[1], 1)
    return (x.reshape(B, Hk, H // Hk * L, N) @ y).reshape(B, H, L, y.shape[3])


def summed_over_group(x: Floats, y: Floats, Hk: int) -> Floats:
    """x^T (B,H,kL,qL) @ y (B,H,qL,D), summed over the heads of each group."""
    B, H, L, N = x.shape
    rows = H // max(Hk, 1) * L
    grouped = x.reshape(B, Hk, rows, N).swapaxes(-1, -2)
    return grouped @ y.reshape(B, Hk, rows, y.shape[3])


def reduce_to_shape(x: Floats, shape: tuple[int, ...]) -> Floats:
    """Sum over the axes along which an array of ``shape`` was broadcast to ``x``."""
    x = x.sum(tuple(range(x.ndim - len(shape))))
    return x.sum(tuple(i for i, n in enumerate(shape) if n == 1 != x.shape[i]), keepdims=True)


def diagonals(B: int, qL: int, kL: int, q_off: int | None, row_diagonals: Array | None) -> Array:
    """Key position of each query row's diagonal, (B,1,qL,1)."""
    if row_diagonals is None:
        positions = np.arange(qL) + (kL - qL if q_off is None else q_off)
    else:
        positions = row_diagonals.astype(np.int64)
    return np.broadcast_to(positions, (B, qL))[:, None, :, None]


def visibility(
    shape: tuple[int, int, int, int],
    *,
    causal: bool = False,
    window: tuple[int, int] | None = None,
    mask: Array | None = None,
    block_mask: Array | None = None,
    segments: tuple[Array, Array] | None = None,
    row_diagonals: Array | None = None,
    q_off: int | None = None,
) -> NDArray[np.bool_]:
    """Where the hard masks, all of them together, let a query row see a key."""
    B, _, qL, kL = shape
    visible = np.ones(shape, bool)
    # Keys from each key to the row's diagonal.
    before = diagonals(B, qL, kL, q_off, row_diagonals) - np.arange(kL)
    if causal:
        visible &= before >= 0
    if window is not None:
        left, right = window
        if left >= 0:
            visible &= before <= left
        if right >= 0:
            visible &= -before <= right
    if mask is not None:
        visible &= mask if mask.dtype == np.bool_ else ~np.isneginf(widen(mask))
    if block_mask is not None:
        tiles = np.repeat(np.repeat(block_mask != 0, MAP_TILE, -2), MAP_TILE, -1)
        visible &= tiles[..., :qL, :kL]
    if segments is not None:
        q_ids, k_ids = (np.atleast_2d(ids) for ids in segments)
        visible &= (q_ids[:, :, None] == k_ids[:, None, :])[:, None]
    return visible


def _add_mask(logits: Floats, mask: Array) -> Floats:
    added = np.where(np.isneginf(widen(mask)), 0.0, widen(mask))
    swallowing = np.abs(added) > SWALLOWING_MASK
    if not swallowing.any():
        return logits + added
    in_f32 = (logits.astype(np.float32) + added.astype(np.float32)).astype(np.float64)
    return np.where(swallowing, in_f32, logits + added)


def attention(
    q: Array,
    k: Array,
    v: Array,
    *,
    scale: float | None = None,
    causal: bool = False,
    window: tuple[int, int] | None = None,
    mask: Array | None = None,
    softcap: float | None = None,
    sinks: Array | None = None,
    alibi: Array | None = None,
    block_mask: Array | None = None,
    segments: tuple[Array, Array] | None = None,
    row_diagonals: Array | None = None,
    q_off: int | None = None,
) -> Result:
    """softmax(logits) v; logits = softcap(scale q.k) + ALiBi + additive mask, then the hard masks.

    Parameters
    ----------
    q, k, v
        (B,H,qL,D), (B,Hk,kL,D), (B,Hk,kL,Dv); query head h reads key head ``h // (H // Hk)``.
    causal, window
        Relative to the diagonal key of row i: ``i + q_off`` (default ``kL - qL``), or
        ``row_diagonals[b,i]``. ``window`` is (left, right), both inclusive, -1 unbounded.
    mask
        bool (False hides) or additive float (-inf hides), broadcastable to (B,H,qL,kL).
    sinks, alibi
        (H,) logits that take part in the sum only; slopes, (H,) or (B,H), which add
        ``-slope * |diagonal - j|``.
    block_mask, segments
        Nonzero (..., ceil(qL/32), ceil(kL/32)) tiles are visible; equal ids (B,qL), (B,kL) see
        each other.
    """
    q, k, v = widen(q), widen(k), widen(v)
    (B, H, qL, D), kL = q.shape, k.shape[2]
    scale = D**-0.5 if scale is None else scale

    raw = scale * times_group(q, k.swapaxes(-1, -2))
    logits = raw if not softcap else softcap * np.tanh(raw / softcap)
    if alibi is not None:
        slopes = np.broadcast_to(widen(alibi), (B, H))[:, :, None, None]
        before = diagonals(B, qL, kL, q_off, row_diagonals) - np.arange(kL)
        logits = logits - slopes * np.abs(before)
    if mask is not None and mask.dtype != np.bool_:
        logits = _add_mask(logits, mask)
    visible = visibility(
        (B, H, qL, kL),
        causal=causal,
        window=window,
        mask=mask,
        block_mask=block_mask,
        segments=segments,
        row_diagonals=row_diagonals,
        q_off=q_off,
    )
    logits = np.where(visible, logits, -np.inf)

    sink = np.full((H, 1), -np.inf) if sinks is None else widen(sinks)[:, None]
    top = np.maximum(logits.max(-1, initial=-np.inf), sink)
    top = np.where(np.isneginf(top), 0.0, top)
    e = np.exp(logits - top[..., None])
    total = e.sum(-1) + np.exp(sink - top)
    with np.errstate(divide="ignore"):
        lse = top + np.log(total)
    p = e / np.where(total == 0, 1.0, total)[..., None]
    return Result(times_group(p, v), lse, p, logits, raw, scale)


@dataclass(frozen=True, slots=True)
class Backward:
    """Gradients, with the intermediate values that the error bounds are made of."""

    dq: Floats
    dk: Floats
    dv: Floats
    dmask: Floats | None  # of an additive mask, in its own shape
    dsinks: Floats | None
    delta: Floats  # (B,H,qL): rowsum(dO * O) - dLSE
    dp: Floats  # (B,H,qL,kL): dO v^T
    dlogits: Floats  # gradient after softcap (of the logits that masks are added to)
    draw: Floats  # gradient before softcap


def backward(
    q: Array,
    k: Array,
    v: Array,
    *,
    d_o: Array,
    d_lse: Array | None = None,
    forward: Result | None = None,
    **options: Any,
) -> Backward:
    """Gradients of sum(d_o * o) + sum(d_lse * lse); options as :func:`attention`."""
    f = attention(q, k, v, **options) if forward is None else forward
    q, k, v, d_o = widen(q), widen(k), widen(v), widen(d_o)
    Hk = k.shape[1]
    # A row that sees nothing has a constant LSE: whatever flows into it goes nowhere.
    delta = (d_o * f.o).sum(-1)
    if d_lse is not None:
        delta = delta - np.where(np.isneginf(f.lse), 0.0, widen(d_lse))
    dp = times_group(d_o, v.swapaxes(-1, -2))
    dlogits = f.p * (dp - delta[..., None])
    softcap = options.get("softcap")
    draw = dlogits if not softcap else dlogits * (1 - np.tanh(f.raw / softcap) ** 2)

    mask, sinks = options.get("mask"), options.get("sinks")
    dmask = dsinks = None
    if mask is not None and mask.dtype != np.bool_:
        dmask = reduce_to_shape(dlogits, mask.shape)
    if sinks is not None:
        p_sink = np.exp(widen(sinks)[:, None] - f.lse)
        dsinks = -(p_sink * delta).sum((0, 2))
    return Backward(
        dq=f.scale * times_group(draw, k),
        dk=f.scale * summed_over_group(draw, q, Hk),
        dv=summed_over_group(f.p, d_o, Hk),
        dmask=dmask,
        dsinks=dsinks,
        delta=delta,
        dp=dp,
        dlogits=dlogits,
        draw=draw,
    )


def gradients(
    q: Array, k: Array, v: Array, *, d_o: Array, d_lse: Array | None = None, **options: Any
) -> dict[str, Floats | None]:
    """``dq``, ``dk``, ``dv``, ``dmask`` (additive masks) and ``dsinks`` of :func:`backward`."""
    b = backward(q, k, v, d_o=d_o, d_lse=d_lse, **options)
    return {"dq": b.dq, "dk": b.dk, "dv": b.dv, "dmask": b.dmask, "dsinks": b.dsinks}
