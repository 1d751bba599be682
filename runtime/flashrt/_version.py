"""The version, and the one release of mlx that it fits (libmlx has no stable C++ ABI).

Imported before the extension, whose own check needs a libmlx with its symbols.
"""

import mlx.core as mx  # this loads the libmlx that the extension links to

__version__ = "0.1.0"
MLX_VERSION = "0.32.4"

_found: str = mx.__version__  # type: ignore[attr-defined]  # absent from mlx's stubs
if _found != MLX_VERSION:
    raise ImportError(
        f"flashrt {__version__} is built for mlx {MLX_VERSION} and found mlx {_found}; "
        f"install mlx=={MLX_VERSION}, or the flashrt-mlx release for your mlx"
    )
