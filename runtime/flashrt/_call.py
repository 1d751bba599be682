"""One checked attention call, and the checks.

Everything that can be known without reading an array's contents is checked here, once; what
comes behind trusts it.
"""

from __future__ import annotations

import math
import numbers
from typing import TYPE_CHECKING, Any, NamedTuple

import mlx.core as mx

if TYPE_CHECKING:
    from collections.abc import Sequence

TILE = 32  # side of a block mask's tiles in scores
_UNBOUNDED = 2**30  # window edges beyond this cannot be told from "all keys"
_F32_MAX = 3.4028234663852886e38
_F32_TINY = 1.1754943508222875e-38

_FLOATS = {mx.float16, mx.bfloat16, mx.float32, mx.float64}
_SMALL_INTS = {mx.int8, mx.int16, mx.int32, mx.uint8, mx.uint16}


class Call(NamedTuple):
    """Arguments of attention, normalised: one dtype, rank-4 masks, two window edges.

    ``window_left`` and ``window_right`` are -1 where unbounded; ``softcap`` is 0.0 where off.
    """

    q: mx.array
    k: mx.array
    v: mx.array
    scale: float
    softcap: float = 0.0
    causal: bool = False
    window_left: int = -1
    window_right: int = -1
    mask: mx.array | None = None
    sinks: mx.array | None = None
    alibi_slopes: mx.array | None = None
    block_mask: mx.array | None = None
    q_segments: mx.array | None = None
    k_segments: mx.array | None = None
    row_diagonals: mx.array | None = None

    @property
    def shape(self) -> tuple[int, int, int, int, int, int, int]:
        """B, H, Hk, qL, kL, D, Dv."""
        B, H, qL, D = self.q.shape
        _, Hk, kL, Dv = self.v.shape
        return B, H, Hk, qL, kL, D, Dv

    def operands(self) -> tuple[mx.array | None, ...]:
        """The arrays, in the order of ``_C.attention``."""
        return (
            self.q,
            self.k,
            self.v,
            self.mask,
            self.sinks,
            self.alibi_slopes,
            self.block_mask,
            self.q_segments,
            self.k_segments,
            self.row_diagonals,
        )

    def options(self) -> tuple[float, float, bool, int, int]:
        """The values, in the order of ``_C.attention``."""
        return self.scale, self.softcap, self.causal, self.window_left, self.window_right


def check(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    *,
    scale: float | None,
    mask: mx.array | str | None,
    causal: bool,
    window_size: int | Sequence[int] | None,
    softcap: float | None,
    sinks: mx.array | None,
    alibi_slopes: mx.array | None,
    block_mask: mx.array | None,
    segment_ids: mx.array | Sequence[mx.array] | None,
) -> Call:
    """Check the arguments of :func:`flashrt.attention` and bring them into one form."""
    q, k, v = check_qkv(q, k, v)
    B, H, qL, D = q.shape
    kL = k.shape[2]
    causal = check_flag("causal", causal)
    if isinstance(mask, str):
        if mask != "causal":
            raise ValueError(f"mask={mask!r}; supported by name: 'causal'; or pass an array")
        mask, causal = None, True
    left, right, implied = check_window(window_size)
    q_segments, k_segments = check_segments(segment_ids, B, qL, kL)
    return Call(
        q,
        k,
        v,
        scale=check_scale(scale, D),
        softcap=check_softcap(softcap),
        causal=causal or implied,
        window_left=left,
        window_right=right,
        mask=None if mask is None else check_mask(mask, q.dtype, (B, H, qL, kL)),
        sinks=None if sinks is None else check_sinks(sinks, H),
        alibi_slopes=None if alibi_slopes is None else check_alibi(alibi_slopes, B, H),
        block_mask=None if block_mask is None else check_block_mask(block_mask, B, H, qL, kL),
        q_segments=q_segments,
        k_segments=k_segments,
    )


def check_qkv(q: mx.array, k: mx.array, v: mx.array) -> tuple[mx.array, mx.array, mx.array]:
    """Check types, ranks, dtypes and shapes; promote to one dtype."""
    for name, x in (("q", q), ("k", k), ("v", v)):
        check_array(name, x)
        if x.ndim != 4:
            raise ValueError(
                f"{name} has shape {x.shape} (rank {x.ndim}); supported: rank 4, (B, H, L, D); "
                "add the missing axes with mx.expand_dims"
            )
        check_float(name, x)
    B, H, _, D = q.shape
    Bk, Hk, _, Dk = k.shape
    if v.shape[:3] != k.shape[:3]:
        raise ValueError(
            f"k has shape {k.shape} and v has shape {v.shape}: they must agree in all but the last "
            "axis, (B, Hk, kL, D) and (B, Hk, kL, Dv)" + _layout_hint(q, k, v)
        )
    if Bk != B:
        raise ValueError(
            f"q has shape {q.shape} and k has shape {k.shape}: batch sizes {B} and {Bk} differ; "
            "broadcast the smaller one with mx.broadcast_to (it is not copied)"
        )
    if Dk != D:
        raise ValueError(
            f"q has shape {q.shape} and k has shape {k.shape}: head dims {D} and {Dk} differ"
        )
    if D == 0 or v.shape[3] == 0:
        raise ValueError(f"q has shape {q.shape} and v {v.shape}: a head dim of 0 has no attention")
    if H == 0 or Hk == 0:
        raise ValueError(
            f"q has shape {q.shape} and k has shape {k.shape}: {H} query heads and {Hk} key heads; "
            "supported: at least one of each"
        )
    if H % Hk != 0:
        raise ValueError(
            f"q has shape {q.shape} and k has shape {k.shape}: {H} query heads are not a multiple "
            f"of {Hk} key heads" + _layout_hint(q, k, v)
        )
    if q.dtype != k.dtype or q.dtype != v.dtype:
        dtype = mx.result_type(q, k, v)
        q, k, v = q.astype(dtype), k.astype(dtype), v.astype(dtype)
    return q, k, v


def _layout_hint(q: mx.array, k: mx.array, v: mx.array) -> str:
    """Whether the shapes would fit as (B, L, H, D)."""
    swapped = k.shape[2] > 0 and q.shape[2] % k.shape[2] == 0 and k.shape[:3] == v.shape[:3]
    if swapped and q.shape[1] != k.shape[1]:
        return (
            "; these look like (B, L, H, D): pass x.swapaxes(1, 2) (no copy is made), "
            "or use flashrt.compat.flash_attn_func"
        )
    return ""


def check_array(name: str, x: Any) -> None:
    """Refuse everything but an mx.array."""
    if not isinstance(x, mx.array):
        kind = type(x).__name__
        raise TypeError(f"{name} is a {kind}; supported: mlx.core.array; use mx.array({name})")


def check_float(name: str, x: mx.array) -> None:
    """Refuse integers, bools and complex numbers."""
    if x.dtype not in _FLOATS:
        raise TypeError(
            f"{name} has dtype {_name(x.dtype)}; supported: float16, bfloat16, float32, and "
            f"float64 on the CPU; convert it with {name}.astype(mx.float32)"
        )


def check_flag(name: str, value: Any) -> bool:
    """Refuse everything but a bool, so that causal='top_left' is not taken for True."""
    if value is True or value is False:
        return value
    if type(value).__name__ in ("bool", "bool_"):  # numpy's
        return bool(value)
    raise TypeError(f"{name}={value!r}: expected True or False")


def check_number(name: str, value: Any) -> float:
    """Take what is a real number and fits float32."""
    if type(value) is not float:
        if isinstance(value, mx.array):
            raise TypeError(f"{name} is an mlx array; expected a number: use {name}.item()")
        if isinstance(value, bool) or not isinstance(value, numbers.Real):
            raise TypeError(f"{name}={value!r} is a {type(value).__name__}; expected a number")
        try:
            value = float(value)
        except OverflowError:
            value = math.inf
    if not (math.isfinite(value) and abs(value) <= _F32_MAX):
        raise ValueError(f"{name}={value}: supported: finite numbers in the range of float32")
    number: float = value
    return number


def check_scale(scale: float | None, D: int) -> float:
    """Default to 1 / sqrt(D)."""
    return float(D) ** -0.5 if scale is None else check_number("scale", scale)


def check_softcap(softcap: float | None) -> float:
    """Map None to 0.0, which is off."""
    if softcap is None:
        return 0.0
    value = check_number("softcap", softcap)
    if value == 0.0:
        return 0.0
    if value < _F32_TINY:
        raise ValueError(f"softcap={value}: supported: numbers > 0, or None (0.0) for no cap")
    return value


def check_window(window: Any) -> tuple[int, int, bool]:
    """Return left, right and whether the window implies causal."""
    if window is None:
        return -1, -1, False
    rule = (
        "supported: an int w >= 1 (the last w keys, itself included; causal), "
        "or (left, right) with ints >= -1, where -1 is unbounded"
    )
    if isinstance(window, (tuple, list)):
        if len(window) != 2 or not all(_is_int(edge) for edge in window):
            raise TypeError(f"window_size={window!r}; {rule}")
        if min(window) < -1:
            raise ValueError(f"window_size={window!r}; {rule}")
        left, right = (min(int(edge), _UNBOUNDED) for edge in window)
        return left, right, False
    if not _is_int(window):
        raise TypeError(f"window_size={window!r}; {rule}")
    if window < 1:
        raise ValueError(f"window_size={window!r}; {rule}")
    return min(int(window) - 1, _UNBOUNDED), 0, True


def _is_int(value: Any) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def check_mask(mask: mx.array, dtype: mx.Dtype, full: tuple[int, int, int, int]) -> mx.array:
    """Bring a mask to rank 4; nothing is broadcast in memory."""
    if not isinstance(mask, mx.array):
        raise TypeError(
            f"mask is a {type(mask).__name__}; supported: None, 'causal', or an mlx.core.array "
            "(bool, or float to be added); use mx.array(mask)"
        )
    if mask.dtype != mx.bool_:
        if mask.dtype not in _FLOATS:
            raise TypeError(
                f"mask has dtype {_name(mask.dtype)}; supported: bool (True keeps a key) or a "
                "float dtype (added to the logits); convert it with mask.astype(mx.bool_) or "
                "mask.astype(q.dtype)"
            )
        if mask.dtype == mx.float64 and dtype != mx.float64:
            raise TypeError(
                f"mask has dtype float64 and q {_name(dtype)}; supported: q's dtype or float32; "
                "convert it with mask.astype(mx.float32)"
            )
        if mask.dtype not in (dtype, mx.float32):
            mask = mask.astype(mx.float32)  # exact: it is one of the 16-bit dtypes
    return _fit("mask", mask, full)


def _fit(name: str, x: mx.array, full: tuple[int, ...], hint: str = "") -> mx.array:
    """Add leading axes until x has the rank of ``full``, to which it must broadcast."""
    missing = len(full) - x.ndim
    fits = missing >= 0 and all(
        n in (1, m) for n, m in zip(x.shape, full[max(missing, 0) :], strict=True)
    )
    if not fits:
        if name == "mask" and x.ndim >= 2 and x.shape[-1] == x.shape[-2] == full[2] != full[3]:
            hint = (
                f"; it covers {full[2]} keys of {full[3]}: put the {full[3] - full[2]} columns of "
                "the earlier keys in front, or use causal=True, which is aligned to the last key"
            )
        raise ValueError(
            f"{name} has shape {x.shape}; supported: shapes that broadcast to {full}" + hint
        )
    return mx.expand_dims(x, tuple(range(missing))) if missing else x


def check_sinks(sinks: mx.array, H: int) -> mx.array:
    """One logit per query head."""
    check_array("sinks", sinks)
    check_float("sinks", sinks)
    if sinks.shape != (H,):
        raise ValueError(
            f"sinks has shape {sinks.shape}; supported: ({H},), one logit per query head"
        )
    return sinks


def check_alibi(slopes: mx.array, B: int, H: int) -> mx.array:
    """Bring slopes to rank 2."""
    check_array("alibi_slopes", slopes)
    check_float("alibi_slopes", slopes)
    if slopes.shape not in ((H,), (B, H)):
        raise ValueError(
            f"alibi_slopes has shape {slopes.shape}; supported: ({H},) or ({B}, {H}), one slope "
            "per query head"
        )
    return mx.expand_dims(slopes, 0) if slopes.ndim == 1 else slopes


def check_block_mask(block: mx.array, B: int, H: int, qL: int, kL: int) -> mx.array:
    """Bring a block mask to rank 4."""
    check_array("block_mask", block)
    if block.dtype not in (mx.bool_, mx.uint8):
        raise TypeError(
            f"block_mask has dtype {_name(block.dtype)}; supported: bool and uint8; "
            "convert it with block_mask.astype(mx.bool_)"
        )
    tiles = (-(-qL // TILE), -(-kL // TILE))
    if block.ndim not in (2, 4) or block.shape[-2:] != tiles:
        raise ValueError(
            f"block_mask has shape {block.shape}; supported: {tiles} or (B, H, *{tiles}), one "
            f"entry per {TILE}x{TILE} scores of qL={qL} and kL={kL}"
        )
    return _fit("block_mask", block, (B, H, *tiles))


def check_segments(
    ids: mx.array | Sequence[mx.array] | None, B: int, qL: int, kL: int
) -> tuple[mx.array | None, mx.array | None]:
    """Split into ids of queries and of keys."""
    if ids is None:
        return None, None
    if isinstance(ids, (tuple, list)):
        if len(ids) != 2:
            raise TypeError(f"segment_ids has {len(ids)} arrays; supported: one, or (q_ids, k_ids)")
        q_ids, k_ids = ids
    else:
        check_array("segment_ids", ids)
        q_ids = k_ids = ids
        if qL != kL:
            raise ValueError(
                f"segment_ids is one array and qL={qL}, kL={kL} differ; pass (q_ids, k_ids)"
            )
    return (
        _segment_rows("segment_ids of q", q_ids, B, qL),
        _segment_rows("segment_ids of k", k_ids, B, kL),
    )


def _segment_rows(name: str, ids: mx.array, B: int, L: int) -> mx.array:
    check_array(name, ids)
    if ids.dtype not in _SMALL_INTS:
        raise TypeError(
            f"{name} has dtype {_name(ids.dtype)}; supported: int32 (or a smaller integer); "
            "convert it with .astype(mx.int32)"
        )
    if ids.ndim != 2 or ids.shape[1] != L or ids.shape[0] not in (1, B):
        raise ValueError(f"{name} has shape {ids.shape}; supported: ({B}, {L}) or (1, {L})")
    return ids


def check_impl(impl: str, allowed: Sequence[str]) -> str:
    """Refuse unknown implementations."""
    if impl not in allowed:
        raise ValueError(f"impl={impl!r}; supported: " + ", ".join(repr(name) for name in allowed))
    return impl


def dtype_name(x: mx.array) -> str:
    """``float32`` and the like."""
    return _name(x.dtype)


def _name(dtype: mx.Dtype) -> str:
    return str(dtype).removeprefix("mlx.core.")
