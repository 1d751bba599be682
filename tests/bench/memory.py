"""Peak memory of forward + backward under array masks, windows and packing, beside mx.fast.

Every cell is a process of its own, so that its peak resident size is its own; what importing and
making the inputs takes is measured in the same process before the call and taken off.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from tests.bench._process import peak_bytes, restart_peak

KINDS = ("bool", "window", "packed")
ROUTES = ("flashrt", "mx.fast")
HEADS, KV_HEADS, D = 4, 2, 64
WINDOW = 128
SEGMENT = 512
MIB = 2**20


@dataclass(frozen=True, slots=True)
class Cell:
    """One measurement."""

    kind: str
    route: str
    L: int


def _call(cell: Cell) -> tuple[Callable[..., Any], list[Any]]:
    """Return a loss and its inputs; masks are made before the measurement starts."""
    import mlx.core as mx

    import flashrt

    L = cell.L
    mx.random.seed(0)
    q = mx.random.normal((1, HEADS, L, D))
    k = mx.random.normal((1, KV_HEADS, L, D))
    v = mx.random.normal((1, KV_HEADS, L, D))
    rows, keys = mx.arange(L)[:, None], mx.arange(L)[None]
    causal = keys <= rows
    ids = mx.arange(L) // SEGMENT
    visible = {
        "bool": causal & ((rows * 7 + keys * 13) % 5 != 0),
        "window": causal & (keys > rows - WINDOW),
        "packed": causal & (ids[:, None] == ids[None]),
    }[cell.kind]
    if cell.route == "mx.fast" or cell.kind == "bool":
        mx.eval(visible)
    if cell.route == "mx.fast":
        scale = D**-0.5

        def loss(q: Any, k: Any, v: Any) -> Any:
            return mx.fast.scaled_dot_product_attention(q, k, v, scale=scale, mask=visible).sum()
    else:
        options: dict[str, Any] = {
            "bool": {"mask": visible},
            "window": {"window_size": WINDOW},
            "packed": {"causal": True, "segment_ids": ids[None].astype(mx.int32)},
        }[cell.kind]

        def loss(q: Any, k: Any, v: Any) -> Any:
            return flashrt.attention(q, k, v, **options).sum()

    mx.eval(q, k, v)
    return loss, [q, k, v]


def measure(cell: Cell) -> dict[str, float]:
    """Run one cell in this process."""
    import time

    import mlx.core as mx

    loss, inputs = _call(cell)
    mx.clear_cache()
    before = restart_peak()
    started = time.perf_counter()
    mx.eval(mx.value_and_grad(loss, argnums=(0, 1, 2))(*inputs))
    seconds = time.perf_counter() - started
    return {"seconds": seconds, "bytes": peak_bytes() - before}


def _measure_apart(cell: Cell, limit_s: float) -> dict[str, float] | None:
    command = [sys.executable, "-m", "tests.bench", "memory", "--cell", json.dumps(asdict(cell))]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s)
    except subprocess.TimeoutExpired:
        return None
    if done.returncode:
        raise SystemExit(done.stderr)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def main(arguments: list[str]) -> int:
    """Print a table per kind."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench memory", description=__doc__)
    parser.add_argument("--lengths", type=int, nargs="+", default=[1024, 2048, 4096, 8192])
    parser.add_argument("--mlx-limit", type=int, default=2048, help="longest L for mx.fast")
    parser.add_argument("--timeout", type=float, default=600, help="seconds per cell")
    parser.add_argument("--cell", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.cell:
        print(json.dumps(measure(Cell(**json.loads(options.cell)))))
        return 0
    print(f"forward + backward, float32, B=1 H={HEADS}/{KV_HEADS} D={D}; {platform.machine()}")
    print(f"window {WINDOW}; packed segments of {SEGMENT}; peak MiB beyond inputs and mask array")
    for kind in KINDS:
        ours_head = f"{'L':>7}{'flashrt MiB':>13}{'x shorter':>11}{'s':>8}"
        print(f"\n{kind:8}{ours_head}{'mx.fast MiB':>14}{'s':>8}{'ratio':>8}")
        last = None
        for L in options.lengths:
            ours = _measure_apart(Cell(kind, "flashrt", L), options.timeout)
            if ours is None:
                raise SystemExit(f"{kind} L={L}: no result in {options.timeout:.0f} s")
            theirs = None
            if options.mlx_limit >= L:
                theirs = _measure_apart(Cell(kind, "mx.fast", L), options.timeout)
            growth = f"{ours['bytes'] / last:.2f}" if last else "-"
            row = f"{'':8}{L:>7}{ours['bytes'] / MIB:>13.1f}{growth:>11}{ours['seconds']:>8.2f}"
            if theirs is None:
                row += f"{'-':>14}{'-':>8}{'-':>8}"
            else:
                ratio = theirs["bytes"] / max(ours["bytes"], 1)
                row += f"{theirs['bytes'] / MIB:>14.1f}{theirs['seconds']:>8.2f}{ratio:>8.1f}"
            print(row, flush=True)
            last = ours["bytes"]
    return 0
