"""The one call that matters."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Literal, overload

import mlx.core as mx

from flashrt import _C, _env
from flashrt._call import Call, check, check_flag, check_impl
from flashrt._pieces import cut, join, pieces_of, ranges_of
from flashrt._route import Decision, Device, Route, current_target, decide, metal_architecture
from flashrt._work import predicted_ms

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flashrt._env import Settings
    from flashrt._route import Target

    Impl = Literal["auto", "kernel", "mlx", "reference"]
    Mask = mx.array | Literal["causal"] | None
    Window = int | Sequence[int] | None
    Segments = mx.array | Sequence[mx.array] | None
    StreamOrDevice = mx.Stream | mx.Device | mx.DeviceType | None

_LN2 = 0.6931471805599453
# As found at import: what stands behind the name later may be flashrt itself.
mlx_attention = mx.fast.scaled_dot_product_attention


@overload
def attention(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    *,
    scale: float | None = None,
    mask: Mask = None,
    causal: bool = False,
    window_size: Window = None,
    softcap: float | None = None,
    sinks: mx.array | None = None,
    alibi_slopes: mx.array | None = None,
    block_mask: mx.array | None = None,
    segment_ids: Segments = None,
    return_lse: Literal[False] = False,
    impl: Impl = "auto",
    stream: StreamOrDevice = None,
) -> mx.array: ...


@overload
def attention(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    *,
    scale: float | None = None,
    mask: Mask = None,
    causal: bool = False,
    window_size: Window = None,
    softcap: float | None = None,
    sinks: mx.array | None = None,
    alibi_slopes: mx.array | None = None,
    block_mask: mx.array | None = None,
    segment_ids: Segments = None,
    return_lse: Literal[True],
    impl: Impl = "auto",
    stream: StreamOrDevice = None,
) -> tuple[mx.array, mx.array]: ...


def attention(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    *,
    scale: float | None = None,
    mask: Mask = None,
    causal: bool = False,
    window_size: Window = None,
    softcap: float | None = None,
    sinks: mx.array | None = None,
    alibi_slopes: mx.array | None = None,
    block_mask: mx.array | None = None,
    segment_ids: Segments = None,
    return_lse: bool = False,
    impl: Impl = "auto",
    stream: StreamOrDevice = None,
) -> mx.array | tuple[mx.array, mx.array]:
    """Attention with memory linear in the sequence length, forward and backward.

    Lazy and differentiable as any MLX operation: works under ``mx.grad``, ``mx.vjp``, ``mx.vmap``,
    ``mx.compile`` and ``mx.checkpoint``.

    Parameters
    ----------
    q
        Queries (B, H, qL, D), of dtype float16, bfloat16 or float32. Mixed dtypes of q, k and v
        promote as in MLX; each gradient has its own input's dtype.
    k, v
        Keys (B, Hk, kL, D) and values (B, Hk, kL, Dv), H a multiple of Hk: query head h reads key
        head ``h // (H // Hk)``. Values behind a mask must be finite.
    scale
        Factor of the logits ``q.k``; 1 / sqrt(D) by default.
    mask
        None, ``"causal"``, or an array that broadcasts to (B, H, qL, kL): bool (True keeps a key),
        or float (added to the logits; -inf hides a key, every finite value is arithmetic).
    causal
        Row i sees keys up to ``i + kL - qL``: aligned to the last key.
    window_size
        int w >= 1: the last w keys, the row's own included, which implies ``causal``. Or a pair
        (left, right) of keys before and after the row's own, -1 for all of them.
    softcap
        c > 0 replaces logits s by ``c * tanh(s / c)``, before masks.
    sinks
        (H,): one more logit per head in the softmax, without a value.
    alibi_slopes
        (H,) or (B, H): adds ``-slope * |i + kL - qL - j|`` to the logits.
    block_mask
        bool or uint8 (ceil(qL / 32), ceil(kL / 32)), or with leading (B or 1, H or 1): tiles of
        32x32 scores that are hidden where zero.
    segment_ids
        int32 (B, L), or a pair for queries and keys: a row sees keys of its own id only.
    return_lse
        Also return the log-sum-exp of the logits.
    impl
        ``"auto"``; ``"kernel"``: flashrt's own kernels; ``"mlx"``: mx.fast; ``"reference"``:
        composed MLX operations. What is asked for by name runs or raises.
    stream
        Stream or device to run on.

    Returns
    -------
    mx.array or tuple[mx.array, mx.array]
        O (B, H, qL, Dv); with ``return_lse`` also the LSE, float32 (B, H, qL), natural logarithm,
        sinks included, differentiable. A row that sees no key has O = 0 and LSE = -inf (or its
        sink), and no gradient.

    Raises
    ------
    UnsupportedError
        The request is well formed and not supported.
    ValueError, TypeError
        An argument is malformed. All checks happen here, before anything runs.

    Notes
    -----
    All masks compose by AND, after softcap. Scores, softmax and gradients accumulate in float32.
    """
    with on(stream):
        check_impl(impl, _env.IMPLS)
        call = check(
            q,
            k,
            v,
            scale=scale,
            mask=mask,
            causal=causal,
            window_size=window_size,
            softcap=softcap,
            sinks=sinks,
            alibi_slopes=alibi_slopes,
            block_mask=block_mask,
            segment_ids=segment_ids,
        )
        o, lse = run(call, impl, wants_lse=check_flag("return_lse", return_lse))
        return o if lse is None else (o, lse)


_HERE: contextlib.AbstractContextManager[object] = contextlib.nullcontext()


def on(stream: StreamOrDevice) -> contextlib.AbstractContextManager[object]:
    """Return a context in which operations go to a stream; the current one for None."""
    if stream is None:
        return _HERE
    return mx.stream(mx.Device(stream) if isinstance(stream, mx.DeviceType) else stream)


def run(call: Call, impl: str, *, wants_lse: bool) -> tuple[mx.array, mx.array | None]:
    """Route a checked call and build its graph."""
    settings = _env.settings()
    target = current_target(settings)
    decision = decide(call, impl, settings, target, wants_lse=wants_lse)
    if settings.verbose:
        _report(call, decision)
    if decision.route is Route.KERNEL:
        o, lse2 = _kernels(call, settings, target, wants_lse)
        return o, lse2 * _LN2 if wants_lse else None
    if decision.route is Route.COMPOSED:
        o, lse = _C.composed(*call.operands(), *call.options(), wants_lse)
        return o, lse.astype(mx.float32) if wants_lse else None
    sinks = call.sinks
    o = mlx_attention(
        call.q,
        call.k,
        call.v,
        scale=call.scale,
        mask="causal" if call.causal else None,
        sinks=None if sinks is None else sinks.astype(call.q.dtype),
    )
    return o, None


def _kernels(
    call: Call, settings: Settings, target: Target, wants_lse: bool
) -> tuple[mx.array, mx.array]:
    """Own kernels: O and the log2-domain LSE."""
    batches, heads, ranges = 1, 1, 1
    if target.device is Device.METAL:
        milliseconds = predicted_ms(call, metal_architecture())
        batches, heads = pieces_of(call, milliseconds, settings.max_buffer_ms)
        ranges = ranges_of(call, milliseconds, settings.max_buffer_ms)
    if batches == heads == 1:
        return _primitive(call, ranges, wants_lse)
    return in_pieces(call, batches, heads, wants_lse, ranges)


def _primitive(call: Call, ranges: int, wants_lse: bool) -> tuple[mx.array, mx.array]:
    """Build one primitive, or those of several ranges."""
    arguments = (*call.operands(), *call.options(), wants_lse)
    if ranges == 1:
        return _C.attention(*arguments)
    return _C.attention_in_ranges(*arguments, ranges=ranges)


def in_pieces(
    call: Call, batches: int, heads: int, wants_lse: bool, ranges: int = 1
) -> tuple[mx.array, mx.array]:
    """Run a call as ``batches`` x ``heads`` primitives, each in as many ranges."""
    done = [
        [_primitive(piece, ranges, wants_lse) for piece in row] for row in cut(call, batches, heads)
    ]
    outputs = join([[o for o, _ in row] for row in done])
    return outputs, join([[lse for _, lse in row] for row in done])


_reported: set[tuple[object, ...]] = set()
_MOST_REPORTED = 1000  # then from the start: lengths may change at every call


def _report(call: Call, decision: Decision) -> None:
    """Say once per shape and reason which route runs."""
    key = (call.shape, call.q.dtype, decision)
    if key not in _reported:
        if len(_reported) == _MOST_REPORTED:
            _reported.clear()
        _reported.add(key)
        B, H, Hk, qL, kL, D, Dv = call.shape
        print(
            f"flashrt: {decision.route} for B={B} H={H} Hk={Hk} qL={qL} kL={kL} D={D} Dv={Dv} "
            f"{call.q.dtype}: {decision.reason}",
            file=sys.stderr,
        )
