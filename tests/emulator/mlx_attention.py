"""MLX's own attention kernels on the emulator: their sources, and launches as MLX makes them."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.emulator import mlx_headers
from tests.emulator.library import Library, Report, build
from tests.emulator.toolchain import Mode, cache_dir

Array = npt.NDArray[Any]

MSL_TYPES = {"float16": "half", "bfloat16": "bfloat", "float32": "float"}
KERNELS = "mlx/backend/metal/kernels"

# Tiles as MLX picks them: 32 query rows, 32 keys below D = 128 and 16 from there.
STEEL_BQ, STEEL_WM = 32, 4


@dataclass(frozen=True)
class Steel:
    """One instantiation of steel_attention."""

    dtype: str
    d: int
    mask: str | None = None  # element type of the mask argument: "bool" or the kernel's own

    @property
    def bk(self) -> int:
        return 32 if self.d < 128 else 16

    @property
    def name(self) -> str:
        return f"steel_attention_{self.dtype}_d{self.d}_mask_{self.mask or 'none'}"

    @property
    def source(self) -> str:
        t = MSL_TYPES[self.dtype]
        mask = "bool" if self.mask == "bool" else t
        tiles = f"{STEEL_BQ}, {self.bk}, {self.d}, {self.d}, {STEEL_WM}, 1"
        instance = f"attention<{t}, {tiles}, {mask}, float>"
        return _source("steel/attn/kernels/steel_attention.h", self.name, instance)


@dataclass(frozen=True)
class Vector:
    """One instantiation of sdpa_vector."""

    dtype: str
    d: int

    @property
    def name(self) -> str:
        return f"sdpa_vector_{self.dtype}_d{self.d}"

    @property
    def source(self) -> str:
        return _source(
            "sdpa_vector.h", self.name, f"sdpa_vector<{MSL_TYPES[self.dtype]}, {self.d}>"
        )


def _source(header: str, name: str, instance: str) -> str:
    return (
        "#include <metal_stdlib>\n"
        f'#include "{KERNELS}/utils.h"\n'
        f'#include "{KERNELS}/{header}"\n'
        f'template [[host_name("{name}")]] [[kernel]] decltype({instance}) {instance};\n'
    )


def build_mlx(
    kernel: Steel | Vector,
    mode: Mode = "fast",
    defines: Mapping[str, object] | None = None,
    first: Sequence[Path] = (),
) -> Library:
    """Compile one instantiation from the headers in the mlx-metal wheel, `first` before them."""
    folder = cache_dir() / "mlx-kernels"
    folder.mkdir(exist_ok=True)
    path = folder / f"{kernel.name}.metal"
    if not path.exists() or path.read_text() != kernel.source:
        path.write_text(kernel.source)
    include = [*first, mlx_headers.OVERLAY_DIR, mlx_headers.include_dir()]
    return build([path], mode, include, defines)


def run_steel(
    library: Library,
    kernel: Steel,
    q: Array,
    k: Array,
    v: Array,
    *,
    scale: float,
    causal: bool = False,
    mask: Array | None = None,
    lse: Array | None = None,
    **options: Any,
) -> tuple[Array, Report]:
    """O (B,H,qL,D) of q (B,H,qL,D) and contiguous k, v (B,Hk,kL,D), with the launch's report."""
    b, h, ql, d = q.shape
    hk, kl = k.shape[1:3]
    bq, bk = STEEL_BQ, kernel.bk
    o = np.full_like(q, np.nan if q.dtype != np.uint16 else 0xFFFF)
    params = struct.pack("<6if7i", b, h, d, ql, kl, h // hk, scale, *_blocks(ql, kl, bq, bk))
    params += struct.pack("<12q", *_strides(q), *_strides(k), *_strides(v), *_strides(o))
    buffers: dict[int, Any] = {0: q, 1: k, 2: v, 3: o, 4: params}
    if mask is not None:
        strides = [s // mask.itemsize for s in mask.strides[:3]]
        strides = [0 if n == 1 else s for n, s in zip(mask.shape[:3], strides, strict=True)]
        buffers |= {5: struct.pack("<3q", *strides), 6: mask}
    if lse is not None:
        buffers[8] = lse
    report = library.launch(
        kernel.name,
        grid=(-(-ql // bq), h, b),
        group=(32, STEEL_WM, 1),
        buffers=buffers,
        constants={
            200: ql % bq == 0,
            201: kl % bk == 0,
            300: mask is not None,
            301: causal,
            302: False,
            303: lse is not None,
        },
        **options,
    )
    return o, report


def _blocks(ql: int, kl: int, bq: int, bk: int) -> tuple[int, ...]:
    """Give NQ, NK, their aligned counts, both remainders and the offset of the diagonal."""
    return -(-ql // bq), -(-kl // bk), ql // bq, kl // bk, ql % bq, kl % bk, kl - ql


def _strides(x: Array) -> list[int]:
    return [s // x.itemsize for s in x.strides[:3]]


def run_vector(
    library: Library,
    kernel: Vector,
    q: Array,
    k: Array,
    v: Array,
    *,
    scale: float,
    causal: bool = False,
    **options: Any,
) -> tuple[Array, Report]:
    """O (B,H,qL,D), one threadgroup of 1024 threads for each query row."""
    b, h, ql, d = q.shape
    hk, kl = k.shape[1:3]
    o = np.full_like(q, np.nan if q.dtype != np.uint16 else 0xFFFF)
    i32, u64 = np.int32, np.uint64
    buffers: dict[int, Any] = {0: q, 1: k, 2: v, 3: o}
    values = [i32(h // hk), i32(kl), u64(kl * d), u64(d), u64(kl * d), u64(d), np.float32(scale)]
    buffers |= {4 + i: value.tobytes() for i, value in enumerate(values)}
    report = library.launch(
        kernel.name,
        grid=(b * h, ql, 1),
        group=(1024, 1, 1),
        buffers=buffers,
        constants={20: False, 21: False, 22: causal, 23: False, 24: False, 25: False},
        **options,
    )
    return o, report
