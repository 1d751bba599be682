"""Calls with other libraries' exact signatures, layouts and defaults, for code that is moved here.

Arguments that flashrt has no counterpart for are accepted at their neutral value and refused
otherwise: nothing is dropped silently.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, SupportsFloat

import mlx.core as mx

from flashrt._call import check_array, check_flag, check_number
from flashrt._errors import UnsupportedError
from flashrt.attention import attention
from flashrt.varlen import attention_varlen

if TYPE_CHECKING:
    from flashrt.attention import Impl, Mask, StreamOrDevice


def flash_attn_func(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: mx.array | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> mx.array:
    """Take and return (B, L, H, D), as ``flash_attn.flash_attn_func``.

    ``deterministic`` holds either way: flashrt gives the same bits on every run.
    """
    _check_flash_attn(dropout_p, deterministic, return_attn_probs)
    for name, x in (("q", q), ("k", k), ("v", v)):
        check_array(name, x)
        if x.ndim != 4:
            raise ValueError(
                f"{name} has shape {x.shape} (rank {x.ndim}); supported: rank 4, (B, L, H, D)"
            )
    o = attention(
        q.swapaxes(1, 2),
        k.swapaxes(1, 2),
        v.swapaxes(1, 2),
        scale=softmax_scale,
        causal=causal,
        window_size=_window(window_size),
        softcap=softcap,
        alibi_slopes=alibi_slopes,
    )
    return o.swapaxes(1, 2)


def flash_attn_varlen_func(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    cu_seqlens_q: mx.array,
    cu_seqlens_k: mx.array,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: mx.array | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: Any = None,
) -> mx.array:
    """Take and return (total, H, D), as ``flash_attn.flash_attn_varlen_func``.

    ``max_seqlen_q`` and ``max_seqlen_k`` size launches there; here the offsets say all.
    """
    _check_flash_attn(dropout_p, deterministic, return_attn_probs)
    del max_seqlen_q, max_seqlen_k
    if block_table is not None:
        raise UnsupportedError(
            "block_table: paged keys and values are not supported; supported: None"
        )
    o = attention_varlen(
        q,
        k,
        v,
        cu_seqlens_q,
        cu_seqlens_k,
        scale=softmax_scale,
        causal=causal,
        window_size=_window(window_size),
        softcap=softcap,
        alibi_slopes=alibi_slopes,
    )
    assert isinstance(o, mx.array)
    return o


def scaled_dot_product_attention(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    *,
    scale: float,
    mask: Mask = None,
    sinks: mx.array | None = None,
    force_fused: bool = False,
    stream: StreamOrDevice = None,
) -> mx.array:
    """Take what ``mx.fast.scaled_dot_product_attention`` takes; ``force_fused`` is impl="kernel".

    Unlike there, a row whose keys are all masked gives 0 (not the mean of V, or NaN).
    """
    impl: Impl = "kernel" if check_flag("force_fused", force_fused) else "auto"
    if isinstance(scale, SupportsFloat):  # as there: a number in whatever wrapping
        scale = float(scale)
    return attention(q, k, v, scale=scale, mask=mask, sinks=sinks, impl=impl, stream=stream)


def _window(window_size: Sequence[int]) -> tuple[int, ...]:
    """Refuse the single int that :func:`flashrt.attention` takes: it is not flash_attn's."""
    if not isinstance(window_size, Sequence):
        raise TypeError(
            f"window_size={window_size!r} is a {type(window_size).__name__}; expected (left, right)"
        )
    return tuple(window_size)


def _check_flash_attn(dropout_p: float, deterministic: bool, return_attn_probs: bool) -> None:
    check_flag("deterministic", deterministic)
    if check_number("dropout_p", dropout_p) != 0.0:
        raise UnsupportedError(
            f"dropout_p={dropout_p!r}: attention dropout is not supported; supported: 0.0"
        )
    if check_flag("return_attn_probs", return_attn_probs):
        raise UnsupportedError(
            "return_attn_probs=True: the probabilities are never formed; supported: False; "
            "flashrt.attention(..., return_lse=True) gives the log-sum-exp"
        )
