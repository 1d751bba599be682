"""Peak memory of a piece of work, as the device counts it."""

from __future__ import annotations

import contextlib
import resource
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import mlx.core as mx

if TYPE_CHECKING:
    from collections.abc import Callable

HOW = "MLX's allocator" if mx.metal.is_available() else "resident memory of the process"


def peak_growth(work: Callable[[], object]) -> int:
    """Bytes that ``work`` holds at most, above what is held before it.

    On a Mac's GPU as MLX's allocator counts them. On a CPU as resident memory, which counts
    everybody's scratch; call it in a fresh process, for memory that is reused does not show.
    """
    mx.clear_cache()
    if mx.metal.is_available():
        before = mx.get_active_memory()
        mx.reset_peak_memory()
        work()
        return mx.get_peak_memory() - before
    before = _restart_peak()
    work()
    return _peak_resident() - before


def _peak_resident() -> int:
    if sys.platform == "darwin":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # getrusage would count what the process was forked from.
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def _restart_peak() -> int:
    """Forget earlier peaks, where the system can, and return what is held now."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    return _peak_resident()
