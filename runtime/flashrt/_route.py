"""Which implementation runs a call, and why.

``decide`` is a pure function of the call, what the caller and the environment ask for, and the
device, so that ``explain`` and the tests see what ``attention`` does.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

import mlx.core as mx

from flashrt._call import refuse

if TYPE_CHECKING:
    from flashrt._call import Call
    from flashrt._env import Settings

MAX_HEAD_DIM = 256


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


@dataclass(frozen=True, slots=True)
class Decision:
    """A route and the reason for it, a sentence's second half."""

    route: Route
    reason: str


_METAL_IS_AVAILABLE = mx.metal.is_available()


def current_device() -> Device:
    """Kind of the device that the current stream runs on."""
    if mx.default_device().type == mx.DeviceType.cpu:
        return Device.CPU
    return Device.METAL if _METAL_IS_AVAILABLE else Device.OTHER_GPU


def decide(
    call: Call, impl: str, settings: Settings, device: Device, *, wants_lse: bool = False
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
    device
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
            raise refuse(f"{source}: {difference}; use impl='auto' or impl='kernel'")
        return Decision(Route.MLX, f"{source} asks for it")
    missing = no_kernel(call, device)
    if asked == "kernel":
        if missing:
            raise refuse(f"{source}: {missing}; use impl='auto' or impl='reference'")
        return Decision(Route.KERNEL, f"{source} asks for it")
    return _automatic(call, settings, device, missing, wants_lse)


def _automatic(
    call: Call, settings: Settings, device: Device, missing: str, wants_lse: bool
) -> Decision:
    if missing:
        return Decision(Route.COMPOSED, missing)
    if settings.vjp_mode == "unfused":
        if differs_from_mlx(call, wants_lse):
            return Decision(Route.COMPOSED, "FLASHRT_VJP_MODE=unfused asks for no own kernels")
        return Decision(Route.MLX, "FLASHRT_VJP_MODE=unfused asks for no own kernels")
    if settings.vjp_mode == "fused":
        return Decision(Route.KERNEL, "FLASHRT_VJP_MODE=fused asks for own kernels")
    if device is Device.CPU:
        return Decision(Route.KERNEL, "the native CPU kernels take every call with D, Dv <= 256")
    return Decision(Route.KERNEL, "flashrt has kernels for this head dim and dtype")


def no_kernel(call: Call, device: Device) -> str:
    """Why flashrt has no kernel of its own for a call; empty where it has one."""
    D, Dv = call.shape[5:]
    dtype = str(call.q.dtype).removeprefix("mlx.core.")
    if dtype == "float64":
        return "q has dtype float64, and kernels take float16, bfloat16 and float32"
    if device is Device.OTHER_GPU:
        return "this GPU is not Metal's, and flashrt's GPU kernels are"
    if device is Device.CPU and max(D, Dv) > MAX_HEAD_DIM:
        return f"head dims D={D}, Dv={Dv}: CPU kernels take up to {MAX_HEAD_DIM}"
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
    if call.causal and qL > kL:
        return f"mx.fast gives causal rows without a key the mean of V (qL={qL} > kL={kL})"
    return ""
