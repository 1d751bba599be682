"""Put flashrt behind ``mx.fast.scaled_dot_product_attention``, for models that call that."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import mlx.core as mx

from flashrt import _env, _mlx
from flashrt._route import Device, current_target
from flashrt.compat import scaled_dot_product_attention

if TYPE_CHECKING:
    from types import TracebackType

_VECTOR_QUERIES = 8
_NAME = "scaled_dot_product_attention"
_lock = threading.Lock()
_depth = 0


def _patched(q: mx.array, k: mx.array, v: mx.array, *args: Any, **kwargs: Any) -> mx.array:
    """Run flashrt for what it takes, mx.fast as it was for the rest, errors included."""
    settings = _env.settings()  # a mistake in the environment is not a reason to step aside
    if _is_decoding(q) and current_target(settings).device is not Device.CPU:
        return _mlx.attention(q, k, v, *args, **kwargs)
    try:
        return scaled_dot_product_attention(q, k, v, *args, **kwargs)
    except (TypeError, ValueError):
        return _mlx.attention(q, k, v, *args, **kwargs)


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
    trains and runs with flashrt from here on. Calls that flashrt does not support go to MLX, and on
    a GPU those of 8 queries or fewer, for which MLX has kernels made for decoding. A row whose keys
    are all masked gives 0.

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
    global _depth
    with _lock:
        current = getattr(mx.fast, _NAME)
        if _depth == 0:
            _mlx.put_aside = current
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
            setattr(mx.fast, _NAME, _mlx.put_aside)
            _mlx.put_aside = None
        _depth -= 1


def _foreign(current: object) -> str:
    return (
        f"mx.fast.{_NAME} was replaced by {current!r} after flashrt.patch_mlx(); "
        "undo that replacement first"
    )
