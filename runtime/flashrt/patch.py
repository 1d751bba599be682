"""Put flashrt behind ``mx.fast.scaled_dot_product_attention``, for models that call that."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import mlx.core as mx

from flashrt import _env
from flashrt._errors import UnsupportedError
from flashrt._route import Device, current_target
from flashrt.attention import mlx_attention, on
from flashrt.compat import scaled_dot_product_attention

if TYPE_CHECKING:
    from types import TracebackType

    from flashrt._env import Settings
    from flashrt.attention import StreamOrDevice

_VECTOR_QUERIES = 8
_NAME = "scaled_dot_product_attention"
_lock = threading.Lock()
_depth = 0
_original = mlx_attention


def _patched(q: mx.array, k: mx.array, v: mx.array, *args: Any, **kwargs: Any) -> mx.array:
    """Run flashrt for what it takes, mx.fast as it was for the rest, errors included."""
    settings = _env.settings()  # a mistake in the environment is not a reason to step aside
    try:
        if _is_decoding(q) and _is_on_gpu(settings, kwargs.get("stream")):
            return _original(q, k, v, *args, **kwargs)
        return scaled_dot_product_attention(q, k, v, *args, **kwargs)
    except (TypeError, ValueError) as error:
        if settings.impl == "kernel" and isinstance(error, UnsupportedError):
            raise  # asked for by name
        return _original(q, k, v, *args, **kwargs)


def _is_on_gpu(settings: Settings, stream: StreamOrDevice) -> bool:
    with on(stream):
        return current_target(settings).device is not Device.CPU


def _is_decoding(q: mx.array) -> bool:
    """Whether MLX has vector kernels for so few queries, which nobody trains on."""
    return isinstance(q, mx.array) and q.ndim == 4 and q.shape[2] <= _VECTOR_QUERIES


class Patch:
    """Undoes one :func:`patch_mlx` when left as a context manager."""

    def __enter__(self) -> Patch:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        unpatch_mlx()


def patch_mlx() -> Patch:
    """Let ``mx.fast.scaled_dot_product_attention`` run flashrt.

    Whatever looks the function up in ``mx.fast`` when it calls it, such as the models of mlx-lm,
    trains and runs with flashrt from here on. Calls that flashrt does not support go to MLX (unless
    FLASHRT_IMPL=kernel asks for its kernels by name), and on a GPU those of 8 queries or fewer, for
    which MLX has kernels made for decoding. A row whose keys are all masked gives 0, except in
    calls that go to MLX.

    Returns
    -------
    Patch
        Use it in a ``with`` statement to undo the patch at its end, or call :func:`unpatch_mlx`.
        Calls nest: the last undo restores MLX.

    Raises
    ------
    RuntimeError
        Something else has replaced the function while it was patched.
    """
    global _depth, _original
    with _lock:
        current = getattr(mx.fast, _NAME)
        if _depth == 0:
            _original = current
            setattr(mx.fast, _NAME, _patched)
        elif current is not _patched:
            raise RuntimeError(_foreign(current))
        _depth += 1
    return Patch()


def unpatch_mlx() -> None:
    """Undo one :func:`patch_mlx`; without one there is nothing to undo.

    Raises
    ------
    RuntimeError
        Something else has replaced the function since; restoring MLX's would undo that too.
    """
    global _depth
    with _lock:
        if _depth == 0:
            return
        if _depth == 1:
            current = getattr(mx.fast, _NAME)
            if current is not _patched:
                raise RuntimeError(_foreign(current))
            setattr(mx.fast, _NAME, _original)
        _depth -= 1


def _foreign(current: object) -> str:
    return (
        f"mx.fast.{_NAME} was replaced by {current!r} after flashrt.patch_mlx(); "
        "undo that replacement first"
    )
