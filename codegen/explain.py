"""Tables for people and tools about kernels: `--list`, `--list --json` and `--explain`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from codegen.cost import (
    FLOAT_APPLE9,
    FLOAT_M1,
    HALF,
    L2_PLAN,
    Coefficients,
    l2_bytes_per_clock,
    share_of_peak,
)
from codegen.emit import kernel_columns
from codegen.model import KernelSpec
from codegen.resources import LIVE_WARNING, MIN_THREADS_PER_CORE, Resources

Kernel = tuple[KernelSpec, Resources]


def names(kernels: Iterable[Kernel]) -> str:
    """Return the kernel names, one a line."""
    return "".join(f"{spec.name}\n" for spec, _ in kernels)


def as_json(kernels: Iterable[Kernel]) -> str:
    """Return the registry's columns, and where the kernel comes from, as a JSON list."""
    rows = [
        {
            **{key: _json(value) for key, value in kernel_columns(spec, res).items()},
            "spec": spec.spec_path,
            "template": spec.template,
        }
        for spec, res in kernels
    ]
    return json.dumps(rows, indent=1) + "\n"


def _json(value: object) -> object:
    return value if isinstance(value, int) else str(value)


def warnings(spec: KernelSpec, res: Resources) -> list[str]:
    """Return what is legal but should be looked at."""
    found = []
    if res.live_bytes > LIVE_WARNING:
        found.append(f"{res.live_bytes} B live per lane, above {LIVE_WARNING}")
    resident = res.threadgroups_per_core * spec.threads
    if resident < MIN_THREADS_PER_CORE:
        found.append(f"{resident} threads per core, below {MIN_THREADS_PER_CORE}")
    reads = max(l2_bytes_per_clock(spec, res, fit) for fit in _fits(spec))
    if reads > L2_PLAN:
        found.append(f"reads {reads:.0f} B per clock from L2, above {L2_PLAN}")
    return found


def _fits(spec: KernelSpec) -> tuple[Coefficients, ...]:
    """Return the coefficients to show figures for: M1 and, where it differs, Apple9."""
    return (FLOAT_M1, FLOAT_APPLE9) if spec.dtype.size == 4 else (HALF,)


_HEADER = (
    "kernel",
    "threads",
    "staged",
    "threadgroup B",
    "live B/lane",
    "TG/core",
    "MMA/step",
    "loads/step",
    "device B/step",
    "barriers/step",
    "L2 B/clk",
    "% of peak",
)


def _predicted(spec: KernelSpec, res: Resources) -> tuple[str, str]:
    """Return L2 bytes per clock and share of peak, on M1 and, where it differs, Apple9."""
    reads = max(l2_bytes_per_clock(spec, res, fit) for fit in _fits(spec))
    shares = [f"{100 * share_of_peak(spec, res, fit):.0f}" for fit in _fits(spec)]
    return f"{reads:.0f}", " / ".join(shares)


def table(kernels: Iterable[Kernel]) -> str:
    """Return a line per tiled kernel; per step counts are a row group's, bytes a threadgroup's."""
    rows: list[Sequence[str]] = [_HEADER]
    notes: list[str] = [""]
    for spec, res in kernels:
        if not spec.kind.tiled:
            continue
        figures = (
            spec.threads,
            res.stage,
            res.threadgroup_bytes,
            res.live_bytes,
            res.threadgroups_per_core,
            res.mma,
            res.loads,
            res.device_bytes,
            res.barriers,
            *_predicted(spec, res),
        )
        rows.append([spec.name, *(f"{f:,}" if isinstance(f, int) else f for f in figures)])
        notes.append("; ".join(warnings(spec, res)))
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADER))]
    lines = []
    for row, note in zip(rows, notes, strict=True):
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        if note:
            cells.append(f"warning: {note}")
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines) + "\n"
