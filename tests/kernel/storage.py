"""Tensors in memory as callers hand them over: strided, poison wherever no kernel may look."""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests import reference as ref

Array = NDArray[Any]

LAYOUTS = ("contiguous", "blhd", "cache", "padded")
NUMPY = {"float16": np.float16, "bfloat16": np.uint16, "float32": np.float32}
PADDING = 3  # an odd row pitch: nothing but the last axis may be assumed aligned
LEFTOVER_ROWS = 11
POISON = (np.nan, 3e4)  # what a cache may hold behind its last row


@dataclass(frozen=True, slots=True)
class Strided:
    """A (B,H,L,D) view of exactly as much memory as its layout has, and guards if asked for."""

    base: Array
    view: Array
    offset: int  # of the view's first element, in elements
    before: Array  # the base as it was, to see what a kernel wrote outside the view

    @property
    def strides(self) -> tuple[int, int, int]:
        """Batch, head and row strides in elements."""
        b, h, row, _ = (s // self.base.itemsize for s in self.view.strides)
        return b, h, row

    @property
    def offset_bytes(self) -> int:
        """Of the view's first element."""
        return self.offset * self.base.itemsize

    def stray_writes(self) -> int:
        """How many elements outside the view changed."""
        expected = self.before.copy()
        like(self, expected)[...] = self.view
        bits = f"u{self.base.itemsize}"
        return int((expected.view(bits) != self.base.view(bits)).sum())


def like(s: Strided, base: Array) -> Array:
    """Look at another base array as ``s`` looks at its own."""
    return np.lib.stride_tricks.as_strided(base[s.offset :], s.view.shape, s.view.strides)


def place(
    values: Array | None,
    shape: tuple[int, int, int, int],
    dtype: str,
    layout: str = "contiguous",
    *,
    guard: int = 0,
    poison: float = np.nan,
) -> Strided:
    """Store ``values`` (an output if None: all poison) of ``shape`` in a layout.

    ``guard`` elements of poison stand before and after; without them the memory ends where the
    layout ends, so that an emulator sees the first element beyond it.
    """
    B, H, L, D = shape
    extents = {
        "contiguous": (B, H, L, D),
        "blhd": (B, L, H, D),
        "cache": (B, H, L + LEFTOVER_ROWS, D),
        "padded": (B, H, L, D + PADDING),
    }[layout]
    size = int(np.prod(extents))
    fill = ref.narrow(np.full(1, poison, np.float32), dtype)[0]
    base = np.full(size + 2 * guard, fill, NUMPY[dtype])
    block = base[guard : guard + size].reshape(extents)
    view = block.swapaxes(1, 2) if layout == "blhd" else block[:, :, :L, :D]
    if values is not None:
        view[...] = values
    return Strided(base, view, guard, base.copy())


def reserved(n: int, dtype: Any) -> Array:
    """Zeros that take memory only where they are touched, for indices beyond 32 bits."""
    no_reserve = getattr(mmap, "MAP_NORESERVE", 0)  # the name is new in Python 3.11
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | no_reserve
    memory = mmap.mmap(-1, n * np.dtype(dtype).itemsize, flags=flags)
    return np.frombuffer(memory, dtype)
