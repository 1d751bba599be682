"""What one launch computes: shapes and features, and deterministic tensors for them."""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests import reference as ref

Array = NDArray[Any]

LOG2E = math.log2(math.e)


def ceil_div(a: int, b: int) -> int:
    """Blocks of b that cover a."""
    return -(-a // b)


@dataclass(frozen=True, slots=True)
class Problem:
    """One attention problem. Features are switches; their contents follow from it."""

    dtype: str
    d: int
    dv: int
    B: int = 1
    H: int = 2
    Hk: int = 2
    qL: int = 33
    kL: int = 33
    q_off: int | None = None  # None: kL - qL
    scale: float | None = None
    causal: bool = False
    window: tuple[int, int] | None = None
    mask: str = "none"  # none, bool, dtype, f32
    mask_shape: str = "full"  # full, row, column, head, sliced
    dmask: str = "none"  # gradient of the mask (bwd_dq): none, full, shared over b or bh
    block_mask: bool = False
    softcap: float | None = None
    sinks: bool = False
    alibi: bool = False
    segments: bool = False
    row_diagonals: bool = False
    splits: int = 1
    layout: str = "contiguous"
    spread: float = 1.0  # of q and k: logits have about spread^2 standard deviation
    poison: float = np.nan

    def __str__(self) -> str:
        """Name what differs from the defaults."""
        shape = f"B{self.B} H{self.H}/{self.Hk} L{self.qL}x{self.kL} D{self.d}/{self.dv}"
        skip = {"dtype", "d", "dv", "B", "H", "Hk", "qL", "kL", "poison"}
        extra = [
            f"{f.name}={getattr(self, f.name)}"
            for f in fields(self)
            if f.name not in skip and getattr(self, f.name) != f.default
        ]
        return " ".join([self.dtype, shape, *extra])

    @property
    def off(self) -> int:
        """Row i stands at key i + off."""
        return self.kL - self.qL if self.q_off is None else self.q_off

    @property
    def dmask_shape(self) -> tuple[int, int, int, int]:
        """Shape of the mask's gradient."""
        B = 1 if "b" in self.dmask else self.B
        return B, 1 if "h" in self.dmask else self.H, self.qL, self.kL

    @property
    def scale_value(self) -> float:
        """The scale, as float32 holds it."""
        return float(np.float32(self.d**-0.5 if self.scale is None else self.scale))

    def flops(self, kind: str) -> int:
        """Dense multiply-adds of a kernel of this kind, times two."""
        widths = {"fwd": self.d + self.dv, "bwd_dq": 2 * self.d + self.dv}
        width = widths.get(kind, 2 * (self.d + self.dv))
        return 2 * self.B * self.H * self.qL * self.kL * width


@dataclass(frozen=True, slots=True)
class Tensors:
    """Rounded inputs and the options of the reference that they stand for."""

    q: Array
    k: Array
    v: Array
    d_o: Array
    options: dict[str, Any]


def make_tensors(p: Problem) -> Tensors:
    """Values of a problem; the same for the same problem, in any process."""
    rng = np.random.default_rng(zlib.crc32(repr(p).encode()))

    def normal(*shape: int, spread: float = 1.0) -> Array:
        return ref.narrow(rng.standard_normal(shape) * spread, p.dtype)

    q = normal(p.B, p.H, p.qL, p.d, spread=p.spread)
    k = normal(p.B, p.Hk, p.kL, p.d, spread=p.spread)
    v = normal(p.B, p.Hk, p.kL, p.dv)
    d_o = normal(p.B, p.H, p.qL, p.dv)
    options: dict[str, Any] = {"causal": p.causal, "scale": p.scale_value}
    if p.q_off is not None:
        options["q_off"] = p.q_off
    if p.window is not None:
        options["window"] = p.window
    if p.softcap is not None:
        options["softcap"] = float(np.float32(p.softcap))
    if p.mask != "none":
        options["mask"] = _mask(p, rng)
    if p.block_mask:
        tiles = (p.B, p.H, ceil_div(p.qL, 32), ceil_div(p.kL, 32))
        lead = [(), (1, p.H), (p.B, 1), (p.B, p.H)][rng.integers(4)]
        options["block_mask"] = (rng.random((*lead, *tiles[2:])) < 0.7).astype(np.uint8)
    if p.sinks:
        options["sinks"] = rng.standard_normal(p.H).astype(np.float32)
    if p.alibi:
        shape = (p.B, p.H) if rng.random() < 0.5 else (p.H,)
        options["alibi"] = rng.uniform(0.01, 0.3, shape).astype(np.float32)
    if p.segments:
        options["segments"] = _segments(p, rng)
    if p.row_diagonals:
        options["row_diagonals"] = _row_diagonals(p, rng)
    return Tensors(q, k, v, d_o, options)


def _mask(p: Problem, rng: np.random.Generator) -> Array:
    shape = {
        "full": (p.B, p.H, p.qL, p.kL),
        "sliced": (p.B, p.H, p.qL, p.kL + 5),
        "row": (p.B, 1, p.qL, 1),
        "column": (1, 1, 1, p.kL),
        "head": (p.H, p.qL, p.kL),
    }[p.mask_shape]
    if p.mask == "bool":
        # Whole tiles are hidden now and then, so that a tile map has something to skip.
        mask = rng.random(shape) < 0.8
        if p.mask_shape != "row" and p.kL > 40 and rng.random() < 0.5:
            mask[..., : 32 * int(rng.integers(1, p.kL // 32 + 1))] = False
    else:
        values = rng.standard_normal(shape)
        values[rng.random(shape) < 0.2] = -np.inf
        mask = ref.narrow(values, p.dtype if p.mask == "dtype" else "float32")
    return mask[..., : p.kL] if p.mask_shape == "sliced" else mask


def _segments(p: Problem, rng: np.random.Generator) -> tuple[Array, Array]:
    """Packed sequences of random lengths; ids are any integers, in any order, and may repeat."""
    names = np.array([7, -3, 2**31 - 1, 7, -(2**31)], np.int32)

    def ids(length: int) -> Array:
        cuts = np.sort(rng.integers(0, length + 1, (p.B, 3)), 1)
        return names[(np.arange(length)[None, :, None] >= cuts[:, None]).sum(-1)]

    q_ids, k_ids = ids(p.qL), ids(p.kL)
    if p.qL == p.kL:
        k_ids = q_ids
    return q_ids, k_ids


def _row_diagonals(p: Problem, rng: np.random.Generator) -> Array:
    """Make runs of consecutive positions, as variable-length batches do; some outside the keys."""
    rows = np.arange(p.qL)
    lead = p.B if rng.random() < 0.5 else 1
    out = np.empty((lead, p.qL), np.int32)
    for b in range(lead):
        cuts = np.sort(rng.integers(0, p.qL + 1, 2))
        shift = rng.integers(-20, p.kL - p.qL + 21 if p.kL > p.qL else 21, 3)
        out[b] = rows + shift[(rows[:, None] >= cuts).sum(-1)]
    return out


def tile_map(p: Problem, options: dict[str, Any]) -> Array:
    """Tiles in which a bool mask and a block mask leave something visible, (B,H,tiles,tiles)."""
    lead_shape = (p.B, p.H)
    q_tiles, k_tiles = ceil_div(p.qL, 32), ceil_div(p.kL, 32)
    tiles = np.ones((*lead_shape, q_tiles, k_tiles), np.uint8)
    if "block_mask" in options:
        tiles &= options["block_mask"] != 0
    if p.mask == "bool":
        full = np.zeros((*lead_shape, q_tiles * 32, k_tiles * 32), bool)
        full[..., : p.qL, : p.kL] = options["mask"]
        split = full.reshape(*lead_shape, q_tiles, 32, k_tiles, 32)
        tiles &= split.any((-3, -1))
    return tiles


def row_bounds(ids: Array | None, positions: Array | None, length: int) -> Array:
    """Per 32 rows: smallest and largest id, smallest and largest diagonal; int32 (B, tiles, 4)."""
    given = [x for x in (ids, positions) if x is not None]
    out = np.zeros((max(x.shape[0] for x in given), ceil_div(length, 32), 4), np.int32)
    for first, rows in ((0, ids), (2, positions)):
        if rows is None:
            continue
        for t in range(out.shape[1]):
            part = rows[:, 32 * t : 32 * (t + 1)]
            out[:, t, first], out[:, t, first + 1] = part.min(1), part.max(1)
    return out
