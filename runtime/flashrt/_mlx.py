"""MLX's own attention, also while ``patch_mlx()`` has put flashrt in its place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mlx.core as mx

if TYPE_CHECKING:
    from collections.abc import Callable

put_aside: Callable[..., mx.array] | None = None  # by patch_mlx()


def attention(*args: Any, **kwargs: Any) -> mx.array:
    """Call the function that ``mx.fast.scaled_dot_product_attention`` is without flashrt."""
    return (put_aside or mx.fast.scaled_dot_product_attention)(*args, **kwargs)
