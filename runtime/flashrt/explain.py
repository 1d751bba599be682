"""Say what a call would run, and why, without running it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mlx.core as mx

from flashrt import _C, _env
from flashrt._call import check, check_flag, check_impl, dtype_name
from flashrt._errors import UnsupportedError
from flashrt._pieces import pieces_of, ranges_of
from flashrt._route import (
    MAX_HEAD_DIM,
    Device,
    Route,
    Target,
    current_target,
    decide,
    gpu_class,
    metal_architecture,
    metal_kernels,
)
from flashrt._work import predicted_ms, visible_pairs
from flashrt.attention import on

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flashrt._call import Call
    from flashrt.attention import Impl, Mask, Segments, StreamOrDevice, Window

_MACOS = "26.2"  # what another Mac is taken to run
_CPU_TILE = 64  # rows and keys of a score tile of the CPU kernels


class Explanation(dict[str, Any]):
    """What a call runs: a dict, and readable when printed.

    Entries: ``route`` and ``reason``; ``device``; ``problem``; ``flops`` and ``bytes`` of forward
    and backward (the products alone, and operands plus results alone); ``forward`` and
    ``backward``, each with ``kernels`` (name, tiles, constants that are on, grid, group) and
    ``scratch_bytes``. For a Mac's GPU also ``predicted_ms`` of both, and ``pieces``: the parts
    that batches, key heads and queries are cut into to bound the time of a command buffer.
    """

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield f"route     {self['route']}: {self['reason']}"
        yield "device    " + _pairs(self["device"])
        yield "problem   " + _pairs(self["problem"])
        if "predicted_ms" in self:
            times = {name: f"{ms:.3g} ms" for name, ms in self["predicted_ms"].items()}
            batches, heads, ranges = self["pieces"]
            yield f"predicted {_pairs(times)}, in {batches} x {heads} pieces of {ranges} ranges"
        for name in ("forward", "backward"):
            part = self[name]
            work = f"{self['flops'][name] / 1e9:.3g} GFLOP"
            size = f"{_size(self['bytes'][name])} of operands and results"
            yield f"{name:<9} {work}, {size}, {_size(part['scratch_bytes'])} scratch"
            for kernel in part["kernels"]:
                yield "          " + kernel["name"]
                if more := {k: v for k, v in kernel.items() if k != "name"}:
                    yield "            " + _pairs(more)


def explain(
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
    architecture: str | None = None,
) -> Explanation:
    """Explain what :func:`flashrt.attention` would do with the same arguments.

    Parameters
    ----------
    architecture
        Plan for the Mac GPU that Metal calls by this name, such as ``"applegpu_g14s"``, instead of
        the present device. Nothing runs, so this works anywhere.

    Returns
    -------
    Explanation
        A dict that prints as text.

    Raises
    ------
    UnsupportedError, ValueError, TypeError
        As the call itself would.
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
        wants_lse = check_flag("return_lse", return_lse)
        settings = _env.settings()
        target = current_target(settings)
        if architecture is not None:
            if not isinstance(architecture, str):
                raise TypeError(
                    f"architecture={architecture!r} is a {type(architecture).__name__}; expected "
                    "a name as Metal gives it, such as 'applegpu_g16s'"
                )
            target = Target(Device.METAL, gpu_class(architecture, _MACOS))
        elif target.device is Device.METAL:
            architecture = metal_architecture()
        decision = decide(call, impl, settings, target, wants_lse=wants_lse)
        info, forward, backward = _describe(call, decision.route, target, architecture, wants_lse)
    pairs = visible_pairs(call)
    extra: dict[str, Any] = {}
    if decision.route is Route.KERNEL and architecture is not None:
        milliseconds = predicted_ms(call, architecture)
        pieces = (
            *pieces_of(call, milliseconds, settings.max_buffer_ms),
            ranges_of(call, milliseconds, settings.max_buffer_ms),
        )
        extra = {"predicted_ms": milliseconds, "pieces": pieces}
    return Explanation(
        route=str(decision.route),
        reason=decision.reason,
        device=info,
        problem=_problem(call),
        flops=_flops(call, pairs),
        bytes=_bytes(call),
        forward=forward,
        backward=backward,
        **extra,
    )


def supported() -> dict[str, Any]:
    """What flashrt's own kernels take, as plain data.

    Returns
    -------
    dict
        ``cpu`` and ``metal``, each with ``dtypes`` and ``head_dims``; ``options``, which every
        route has; ``devices``, those that are here.
    """
    return {
        "cpu": {
            "dtypes": ["float16", "bfloat16", "float32"],
            "head_dims": f"D and Dv up to {MAX_HEAD_DIM}",
        },
        "metal": {
            "dtypes": sorted({dtype for dtype, _, _ in metal_kernels()}),
            "head_dims": sorted({(d, dv) for _, d, dv in metal_kernels()}),
        },
        "options": [
            *("scale", "causal", "bool mask", "additive mask", "window_size", "softcap"),
            *("sinks", "alibi_slopes", "block_mask", "segment_ids", "return_lse"),
        ],
        "devices": ["cpu", *(["metal"] if mx.metal.is_available() else [])],
    }


def _problem(call: Call) -> dict[str, Any]:
    B, H, Hk, qL, kL, D, Dv = call.shape
    problem: dict[str, Any] = {"B": B, "H": H, "Hk": Hk, "qL": qL, "kL": kL, "D": D, "Dv": Dv}
    problem["dtype"] = dtype_name(call.q)
    problem["scale"] = call.scale
    if call.causal:
        problem["causal"] = True
    if call.window_left >= 0 or call.window_right >= 0:
        problem["window"] = (call.window_left, call.window_right)
    if call.softcap:
        problem["softcap"] = call.softcap
    for name in ("mask", "sinks", "alibi_slopes", "block_mask", "q_segments"):
        x = getattr(call, name)
        if x is not None:
            problem[name] = f"{dtype_name(x)}{list(x.shape)}"
    return problem


def _flops(call: Call, pairs: int) -> dict[str, int]:
    B, H, _, _, _, D, Dv = call.shape
    return {
        "forward": 2 * B * H * pairs * (D + Dv),
        "backward": 2 * B * H * pairs * (3 * D + 2 * Dv),  # S, dP, dQ, dK, dV
    }


def _bytes(call: Call) -> dict[str, int]:
    B, H, _, qL, _, _, Dv = call.shape
    size = call.q.itemsize
    qkv = call.q.nbytes + call.k.nbytes + call.v.nbytes
    extras = sum(x.nbytes for x in call.operands()[3:] if x is not None)
    rows = B * H * qL
    return {
        "forward": qkv + extras + rows * (Dv * size + 4),
        "backward": 2 * qkv + extras + rows * (2 * Dv * size + 4),
    }


def _describe(
    call: Call, route: Route, target: Target, architecture: str | None, wants_lse: bool
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Device, forward and backward of an explanation."""
    if route is Route.KERNEL and architecture is not None:
        return _describe_metal(call, architecture, wants_lse)
    if route is Route.KERNEL:
        return _describe_cpu(call, wants_lse)
    info = {"kind": target.device.value}
    if route is Route.MLX:
        name = "mx.fast.scaled_dot_product_attention"
        return info, _one(name, 0), _one("mlx's own gradient of it", 0)
    B, H, _, qL, kL, _, _ = call.shape
    scores = B * H * qL * kL * (8 if call.q.dtype == mx.float64 else 4)
    # Logits and probabilities forward; both again with their gradients backward.
    return info, _one("MLX operations", 2 * scores), _one("their gradients", 4 * scores)


def _describe_cpu(
    call: Call, wants_lse: bool
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    cpu = _C.explain_cpu(*call.operands(), *call.options(), wants_lse)
    info = {"kind": "cpu", "isa": cpu["isa"], "threads": cpu["threads"]}
    tiles = {"rows": _CPU_TILE, "keys": _CPU_TILE}
    return (
        info,
        _one(f"cpu forward ({cpu['isa']})", cpu["forward_scratch_bytes"], **tiles),
        _one(f"cpu backward ({cpu['isa']})", cpu["backward_scratch_bytes"], **tiles),
    )


def _describe_metal(
    call: Call, architecture: str, wants_lse: bool
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    planned = _C.explain_metal(
        *call.operands(), *call.options(), wants_lse, architecture=architecture
    )
    if "unsupported" in planned:
        raise UnsupportedError(f"no Metal kernels for {planned['unsupported']}")
    rows = {row["name"]: row for row in _C.kernels()}
    tiles = ("bq", "bk", "wm", "wn", "split", "threadgroup_bytes")

    def part(plan: dict[str, Any]) -> dict[str, Any]:
        kernels = []
        for launch in plan["launches"]:
            row = rows[launch["kernel"]]
            kernel = {"name": row["name"]}
            kernel |= {name: row[name] for name in tiles if row["bq"]}
            kernel |= {"constants": launch["constants_on"]}
            kernel |= {"grid": launch["grid"], "group": launch["group"]}
            kernels.append(kernel)
        return {"kernels": kernels, "scratch_bytes": plan["temporary_bytes"]}

    info = {"kind": "metal", **planned["device"]}
    return info, part(planned["forward"]), part(planned["backward"])


def _one(name: str, scratch: int, **more: Any) -> dict[str, Any]:
    return {"kernels": [{"name": name, **more}], "scratch_bytes": scratch}


def _pairs(values: dict[str, Any]) -> str:
    return ", ".join(f"{name} {_text(value)}" for name, value in values.items())


def _text(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return "(" + " ".join(str(item) for item in value) + ")"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _size(n: int) -> str:
    if n < 2**20:
        return f"{n / 2**10:.3g} KiB"
    return f"{n / 2**20:.4g} MiB"
