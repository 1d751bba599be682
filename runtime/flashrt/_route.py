"""Which implementation runs a call, and why.

``decide`` is a pure function of the call, what the caller and the environment ask for, and the
device, so that ``explain`` and the tests see what ``attention`` does.
"""

from __future__ import annotations

import enum
import functools
import os
from typing import TYPE_CHECKING, NamedTuple

import mlx.core as mx

from flashrt import _C
from flashrt._call import dtype_name
from flashrt._errors import UnsupportedError

if TYPE_CHECKING:
    from flashrt._call import Call
    from flashrt._env import Settings

MAX_HEAD_DIM = 256  # of the CPU kernels
METALLIB = "flashrt.metallib"

_UNBOUNDED_L = 2**31 - 1
_NAX_GENERATION = 17  # M5: matrix units, which MLX uses from macOS 26.2 on
_NAX_MACOS = (26, 2)


class Route(enum.Enum):
    """What computes a call."""

    KERNEL = "kernel"  # flashrt's own: Metal kernels on a Mac's GPU, native ones on a CPU
    MLX = "mlx"  # mx.fast.scaled_dot_product_attention
    COMPOSED = "composed"  # MLX operations that hold the scores; float32 inside

    def __str__(self) -> str:
        return self.value


class Device(enum.Enum):
    """Kinds of device that routes differ by."""

    CPU = "cpu"
    METAL = "metal"
    OTHER_GPU = "gpu without Metal"


class Target(NamedTuple):
    """Where a call would run."""

    device: Device
    gpu: str = "simd"  # or "nax"
    missing_metallib: str = ""  # path at which kernels were looked for in vain


class Decision(NamedTuple):
    """A route and the reason for it, a sentence's second half."""

    route: Route
    reason: str


CPU = Target(Device.CPU)
_METAL_IS_AVAILABLE = mx.metal.is_available()


def current_target(settings: Settings) -> Target:
    """Where the current stream runs."""
    if mx.default_device().type == mx.DeviceType.cpu:
        return CPU
    if not _METAL_IS_AVAILABLE:
        return Target(Device.OTHER_GPU)
    return _metal_target(settings.metallib_dir or os.path.dirname(__file__))  # noqa: PTH120


@functools.cache
def _metal_target(folder: str) -> Target:
    import platform  # on a Mac alone: it costs every other import of flashrt time

    library = os.path.join(folder, METALLIB)  # noqa: PTH118
    return Target(
        Device.METAL,
        gpu_class(metal_architecture(), platform.mac_ver()[0]),
        "" if os.path.exists(library) else library,  # noqa: PTH110
    )


@functools.cache
def metal_architecture() -> str:
    """Name that Metal gives the present GPU."""
    return str(mx.device_info(mx.gpu)["architecture"])


def gpu_class(architecture: str, macos: str) -> str:
    """``"nax"`` where MLX computes on matrix units, else ``"simd"``."""
    generation = int(_C.device(architecture)["generation"])
    version = tuple(int(part) for part in macos.split(".")[:2] if part.isdigit())
    return "nax" if generation >= _NAX_GENERATION and version >= _NAX_MACOS else "simd"


def decide(
    call: Call, impl: str, settings: Settings, target: Target, *, wants_lse: bool = False
) -> Decision:
    """Choose the route of a call.

    Parameters
    ----------
    call
        The checked call.
    impl
        What the caller asks for; anything but ``"auto"`` wins over the environment.
    settings
        The environment.
    target
        Where the call runs.
    wants_lse
        The caller wants the LSE back, which mx.fast does not give.

    Raises
    ------
    UnsupportedError
        What was asked for by name cannot run this call.
    """
    asked = impl if impl != "auto" else settings.impl
    source = f"impl={impl!r}" if impl != "auto" else f"FLASHRT_IMPL={settings.impl}"
    if asked == "reference":
        return Decision(Route.COMPOSED, f"{source} asks for it")
    if asked == "mlx":
        if difference := differs_from_mlx(call, wants_lse):
            raise UnsupportedError(f"{source}: {difference}; use impl='auto' or impl='kernel'")
        return Decision(Route.MLX, f"{source} asks for it")
    missing = missing_kernel(call, target)
    if asked == "kernel":
        if missing:
            raise UnsupportedError(f"{source}: {missing}; use impl='auto' or impl='reference'")
        return Decision(Route.KERNEL, f"{source} asks for it")
    if missing:
        return Decision(Route.COMPOSED, missing)
    return _automatic(call, settings, target, wants_lse)


def _automatic(call: Call, settings: Settings, target: Target, wants_lse: bool) -> Decision:
    difference = differs_from_mlx(call, wants_lse)
    if settings.vjp_mode == "unfused":
        route = Route.COMPOSED if difference else Route.MLX
        return Decision(route, "FLASHRT_VJP_MODE=unfused asks for no own kernels")
    if settings.vjp_mode == "fused":
        return Decision(Route.KERNEL, "FLASHRT_VJP_MODE=fused asks for own kernels")
    if target.device is Device.CPU:
        return Decision(Route.KERNEL, f"native CPU kernels take every D and Dv <= {MAX_HEAD_DIM}")
    if difference:
        return Decision(Route.KERNEL, difference)
    if no_gradient := _mlx_cannot_train(call):
        return Decision(Route.KERNEL, no_gradient)
    return _by_threshold(call, settings, target)


def _by_threshold(call: Call, settings: Settings, target: Target) -> Decision:
    """Compare with the registry's row, or with what the environment puts in its place."""
    B, H, _, qL, kL, D, Dv = call.shape
    row = _routes()[target.gpu, D, Dv, dtype_name(call.q), "causal" if call.causal else "full"]
    min_l, max_l = row["min_l"], row["max_l"]
    if settings.long_l_threshold is not None:
        min_l, max_l = settings.long_l_threshold, _UNBOUNDED_L
    limit = row["score_bytes"]
    if settings.attention_bytes_threshold is not None:
        limit = settings.attention_bytes_threshold
    tile = row["mlx_tile"]
    held = B * H * min(qL, tile) * min(kL, tile) * call.q.itemsize
    L = max(qL, kL)
    if min_l <= L < max_l:
        return Decision(Route.KERNEL, f"own kernels are preferred at L={L}")
    if held >= limit:
        return Decision(Route.KERNEL, f"mx.fast would hold {held} bytes of scores at a time")
    return Decision(Route.MLX, f"mx.fast is predicted to be faster at L={L}, D={D}")


@functools.cache
def _routes() -> dict[tuple[str, int, int, str, str], dict[str, int]]:
    return {
        (row["gpu"], row["d"], row["dv"], row["dtype"], row["mask"]): row for row in _C.routes()
    }


@functools.cache
def metal_kernels() -> frozenset[tuple[str, int, int]]:
    """(dtype, D, Dv) for which there are kernels."""
    return frozenset(
        (row["dtype"], row["d"], row["dv"]) for row in _C.kernels() if row["kind"] == "fwd"
    )


def missing_kernel(call: Call, target: Target) -> str:
    """Why flashrt has no kernel of its own for a call; empty where it has one."""
    D, Dv = call.shape[5:]
    dtype = dtype_name(call.q)
    if dtype == "float64":
        return "q has dtype float64, and kernels take float16, bfloat16 and float32"
    if target.device is Device.OTHER_GPU:
        return "this GPU is not Metal's, and flashrt's GPU kernels are"
    if target.device is Device.CPU:
        if max(D, Dv) > MAX_HEAD_DIM:
            return f"head dims D={D}, Dv={Dv}: CPU kernels take up to {MAX_HEAD_DIM}"
        return ""
    if (dtype, D, Dv) not in metal_kernels():
        dims = ", ".join(
            str(d) if d == dv else f"{d} with Dv={dv}"
            for name, d, dv in sorted(metal_kernels())
            if name == dtype
        )
        return f"no Metal kernel for D={D}, Dv={Dv} in {dtype}; there are {dims}"
    if target.missing_metallib:
        return (
            f"{target.missing_metallib} does not exist; reinstall flashrt, or set "
            "FLASHRT_METALLIB_DIR to its directory"
        )
    return ""


def _mlx_cannot_train(call: Call) -> str:
    """Why the gradient of mx.fast's call fails on Metal though its value is right."""
    if call.sinks is not None:
        return "mx.fast has no gradient with sinks"
    if call.shape[3] <= 8:
        return "mx.fast has no gradient for 8 queries or fewer"
    return ""


def differs_from_mlx(call: Call, wants_lse: bool) -> str:
    """Why mx.fast would give something else for a call; empty where it means the same."""
    qL, kL = call.shape[3:5]
    absent = {
        "return_lse": wants_lse,
        "softcap": call.softcap != 0.0,
        "window_size": call.window_left >= 0 or call.window_right >= 0,
        "alibi_slopes": call.alibi_slopes is not None,
        "block_mask": call.block_mask is not None,
        "segment_ids": call.q_segments is not None,
        "row diagonals": call.row_diagonals is not None,
    }
    for name, used in absent.items():
        if used:
            return f"mx.fast.scaled_dot_product_attention has no {name}"
    if call.mask is not None:
        return (
            "mx.fast gives a row whose keys are all masked the mean of V (bool mask) or NaN "
            "(-inf), flashrt gives it 0, and a mask's contents are never read here"
        )
    if 0 in (qL, kL):
        return f"MLX's products on CPUs go wrong for an empty sequence (qL={qL}, kL={kL})"
    if call.causal and qL > kL:
        return f"mx.fast gives causal rows without a key the mean of V (qL={qL} > kL={kL})"
    return ""
