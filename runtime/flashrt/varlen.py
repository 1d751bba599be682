"""Attention over sequences packed one after the other, as flash_attn's varlen calls take them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import mlx.core as mx

from flashrt import _env
from flashrt._call import (
    Call,
    check_array,
    check_flag,
    check_float,
    check_impl,
    check_qkv,
    check_scale,
    check_sinks,
    check_softcap,
    check_window,
)
from flashrt._errors import UnsupportedError
from flashrt.attention import on, run

if TYPE_CHECKING:
    from flashrt.attention import Impl, StreamOrDevice, Window


def attention_varlen(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    cu_seqlens_q: mx.array,
    cu_seqlens_k: mx.array,
    *,
    scale: float | None = None,
    causal: bool = False,
    window_size: Window = None,
    softcap: float | None = None,
    sinks: mx.array | None = None,
    alibi_slopes: mx.array | None = None,
    return_lse: bool = False,
    impl: Impl = "auto",
    stream: StreamOrDevice = None,
) -> mx.array | tuple[mx.array, mx.array]:
    """Attention within each of several packed sequences.

    Parameters
    ----------
    q
        Queries (total_q, H, D) of all sequences, one after the other.
    k, v
        Keys (total_k, Hk, D) and values (total_k, Hk, Dv).
    cu_seqlens_q, cu_seqlens_k
        int32 (n + 1,): sequence s has query rows ``cu_seqlens_q[s]`` to ``cu_seqlens_q[s + 1]`` and
        keys likewise. They are never read on the host. Rows outside every sequence see nothing.
    causal, window_size, alibi_slopes
        As in :func:`flashrt.attention`, aligned to the last key of each sequence. Slopes are (H,).
    scale, softcap, sinks, return_lse, impl, stream
        As in :func:`flashrt.attention`.

    Returns
    -------
    mx.array or tuple[mx.array, mx.array]
        O (total_q, H, Dv); with ``return_lse`` also the LSE, float32 (H, total_q).

    Raises
    ------
    UnsupportedError, ValueError, TypeError
        As :func:`flashrt.attention`.
    """
    with on(stream):
        check_impl(impl, _env.IMPLS)
        wants_lse = check_flag("return_lse", return_lse)
        q, k, v = check_qkv(
            _as_batch_of_one("q", q), _as_batch_of_one("k", k), _as_batch_of_one("v", v)
        )
        H, total_q, D = q.shape[1:]
        total_k = k.shape[2]
        _check_offsets("cu_seqlens_q", cu_seqlens_q)
        _check_offsets("cu_seqlens_k", cu_seqlens_k)
        if cu_seqlens_q.shape != cu_seqlens_k.shape:
            raise ValueError(
                f"cu_seqlens_q has shape {cu_seqlens_q.shape} and cu_seqlens_k "
                f"{cu_seqlens_k.shape}: both hold one entry more than there are sequences"
            )
        causal = check_flag("causal", causal)
        left, right, implied = check_window(window_size)
        causal = causal or implied

        q_ids = _sequence_of_row(cu_seqlens_q, total_q)
        k_ids = _sequence_of_row(cu_seqlens_k, total_k)
        # With the same packing on both sides every diagonal is the row itself: nothing to carry.
        positions_count = causal or left >= 0 or right >= 0 or alibi_slopes is not None
        aligned = cu_seqlens_q is cu_seqlens_k and total_q == total_k
        diagonals = None
        if positions_count and not aligned:
            last = mx.clip(q_ids + 1, 0, cu_seqlens_q.size - 1)
            diagonals = mx.arange(total_q) + (cu_seqlens_k - cu_seqlens_q)[last]

        call = Call(
            q,
            k,
            v,
            scale=check_scale(scale, D),
            softcap=check_softcap(softcap),
            causal=causal,
            window_left=left,
            window_right=right,
            sinks=None if sinks is None else check_sinks(sinks, H),
            alibi_slopes=None if alibi_slopes is None else _check_slopes(alibi_slopes, H),
            # Rows without a sequence get ids that no key has.
            q_segments=mx.expand_dims(q_ids, 0),
            k_segments=mx.expand_dims(mx.where(k_ids < 0, -2, k_ids), 0),
            row_diagonals=None if diagonals is None else mx.expand_dims(diagonals, 0),
        )
        o, lse = run(call, impl, wants_lse=wants_lse)
        o = mx.squeeze(o, 0).swapaxes(0, 1)
        return o if lse is None else (o, mx.squeeze(lse, 0))


def _as_batch_of_one(name: str, x: mx.array) -> mx.array:
    """(total, H, D) -> (1, H, total, D), a view."""
    check_array(name, x)
    if x.ndim != 3:
        raise ValueError(
            f"{name} has shape {x.shape} (rank {x.ndim}); supported: rank 3, (total, H, D); "
            "for (B, H, L, D) use flashrt.attention"
        )
    check_float(name, x)
    return mx.expand_dims(x.swapaxes(0, 1), 0)


def _check_offsets(name: str, cu: mx.array) -> None:
    check_array(name, cu)
    if cu.dtype != mx.int32:
        raise TypeError(
            f"{name} has dtype {str(cu.dtype).removeprefix('mlx.core.')}; supported: int32; "
            f"convert it with {name}.astype(mx.int32)"
        )
    if cu.ndim != 1 or cu.size < 1:
        raise ValueError(f"{name} has shape {cu.shape}; supported: (n + 1,) for n sequences")


def _check_slopes(slopes: mx.array, H: int) -> mx.array:
    check_array("alibi_slopes", slopes)
    check_float("alibi_slopes", slopes)
    if slopes.ndim == 2:
        raise UnsupportedError(
            f"alibi_slopes has shape {slopes.shape}; supported with packed sequences: ({H},), the "
            "same for every sequence; call flashrt.attention per sequence for others"
        )
    if slopes.shape != (H,):
        raise ValueError(f"alibi_slopes has shape {slopes.shape}; supported: ({H},)")
    return mx.expand_dims(slopes, 0)


def _sequence_of_row(cu: mx.array, total: int) -> mx.array:
    """Sequence that each packed row belongs to, -1 for none: offsets at or before it, counted."""
    n = cu.size - 1
    starts = mx.zeros((total + 1,), dtype=mx.int32).at[mx.clip(cu, 0, total)].add(1)
    ids = mx.cumsum(starts)[:total] - 1
    return mx.where(ids < n, ids, -1).astype(mx.int32)
