"""The kernels there are, from the very rows of ``generated/registry.inc`` that the runtime uses."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from pathlib import Path

from tests.kernel.abi import ROOT

GENERATED = ROOT / "generated"
TILED = ("fwd", "bwd_dq", "bwd_dkv")


@dataclass(frozen=True, slots=True)
class Kernel:
    """One row of the registry."""

    name: str
    kind: str
    dtype: str
    d: int
    dv: int
    bq: int
    bk: int
    wm: int
    wn: int
    split: str
    rank: int
    threads: int
    threadgroup_bytes: int
    live_bytes: int

    @property
    def source(self) -> Path:
        """The generated file that holds the kernel."""
        return GENERATED / f"{self.name}.metal"

    @property
    def uses_slot(self) -> bool:
        """Whether P passes through the slot of the role split."""
        return self.split in ("role", "role_split_d")


@functools.cache
def kernels() -> tuple[Kernel, ...]:
    """Every row, in the registry's order."""
    text = (GENERATED / "registry.inc").read_text()
    rows = re.findall(r"^\s*FLASHRT_KERNEL\(([^)]*)\)", text, re.MULTILINE)
    parsed = []
    for row in rows:
        cells = [cell.strip() for cell in row.split(",")]
        name, kind, dtype, *numbers = cells
        d, dv, bq, bk, wm, wn = map(int, numbers[:6])
        parsed.append(
            Kernel(name, kind, dtype, d, dv, bq, bk, wm, wn, numbers[6], *map(int, numbers[7:]))
        )
    return tuple(parsed)


def by_kind(kind: str, dtype: str | None = None) -> tuple[Kernel, ...]:
    """Kernels of one kind, and of one dtype if given."""
    return tuple(k for k in kernels() if k.kind == kind and dtype in (None, k.dtype))
