"""Time, GFLOP/s and peak memory of the CPU route beside mx.fast and PyTorch, all in one run.

Times: the libraries in turn in one process per cell, medians. Memory: a fresh process per number.
PyTorch takes part where it is installed; mx.fast up to --mlx-limit, since its CPU route takes
minutes beyond.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, replace
from typing import Any

from tests.bench._cpu_cell import HAS_TORCH, Cell, fma_peak, hold_to, memory, seconds, threads

MIB = 2**20
DECODE = Cell(causal=True, D=128, qL=1, kL=4096, H=32, Hk=8)


def main(arguments: list[str]) -> int:
    """Print the tables and the means."""
    options = _parse(arguments)
    if options.cell:
        print(json.dumps(_in_this_process(json.loads(options.cell))))
        return 0
    if options.isa:
        try:
            hold_to(options.isa)
        except ValueError as error:
            raise SystemExit(f"--isa: {error}") from None
    isa, peak = _heading()
    rows: list[dict[str, Any]] = []
    for cell in _cells(options):
        row = _measure(cell, options)
        rows.append(row)
        print(_line(row), flush=True)
    _summary(rows, peak, isa)
    if options.calls:
        _calls()
    return 0


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench cpu", description=__doc__)
    parser.add_argument("--lengths", type=int, nargs="+", default=[512, 1024, 2048, 4096])
    parser.add_argument("--dims", type=int, nargs="+", default=[64, 128])
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--masks", nargs="+", default=["causal", "full"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--mlx-limit", type=int, default=1024, help="longest L for mx.fast")
    parser.add_argument("--isa", help="hold flashrt and PyTorch to an instruction set: avx2")
    parser.add_argument("--no-decode", dest="decode", action="store_false")
    parser.add_argument("--no-calls", dest="calls", action="store_false")
    parser.add_argument("--cell", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def _cells(options: argparse.Namespace) -> list[Cell]:
    cells = [
        Cell(dtype, mask == "causal", D, L, L, gradients=gradients)
        for dtype in options.dtypes
        for mask in options.masks
        for D in options.dims
        for L in options.lengths
        for gradients in (False, True)
    ]
    if options.decode:
        cells += [replace(DECODE, dtype=dtype) for dtype in options.dtypes]
    return cells


def _heading() -> tuple[str, float | None]:
    import mlx.core as mx

    import flashrt

    q = mx.zeros((1, 1, 8, 8))
    device = flashrt.explain(q, q, q, impl="kernel", stream=mx.cpu)["device"]
    peak = fma_peak(device["isa"])
    print(f"{platform.processor() or platform.machine()}, {threads()} threads each, B=1 H=8")
    print(f"flashrt {flashrt.__version__} ({device['isa']}), mlx {mx.__version__}, {_torch_name()}")  # type: ignore[attr-defined]
    found = f"{peak:.0f} GFLOP/s" if peak else "not measured: no compiler"
    print(f"multiply-add loop on one core: {found}\n")
    print(
        f"{'':31}{'flashrt':>17}{'PyTorch':>17}{'mx.fast':>17}   peak MiB: flashrt = outputs + "
        "scratch + rest; PyTorch, mx.fast"
    )
    return str(device["isa"]), peak


def _torch_name() -> str:
    if not HAS_TORCH:
        return "PyTorch is not installed: its columns are left out"
    import torch

    return f"PyTorch {torch.__version__}"


def _libraries(cell: Cell, options: argparse.Namespace) -> dict[str, int]:
    rounds = {"flashrt": options.rounds}
    if HAS_TORCH:
        rounds["torch"] = options.rounds
    if max(cell.qL, cell.kL) <= options.mlx_limit or cell.qL == 1:
        rounds["mx.fast"] = 1 if cell.qL > 512 else 2
    return rounds


def _measure(cell: Cell, options: argparse.Namespace) -> dict[str, Any]:
    rounds = _libraries(cell, options)
    request: dict[str, Any] = {"cell": asdict(cell), "isa": options.isa}
    times = _apart({**request, "rounds": rounds})
    row: dict[str, Any] = {"cell": cell, "memory": {}}
    row["seconds"] = {library: statistics.median(t) for library, t in times.items()}
    for library in rounds if cell.qL > 1 else ():
        row["memory"][library] = _apart({**request, "library": library})
    return row


def _in_this_process(request: dict[str, Any]) -> dict[str, Any]:
    cell = Cell(**request["cell"])
    if request["isa"]:
        hold_to(request["isa"])
    if "library" in request:
        return memory(cell, request["library"])
    return dict(seconds(cell, request["rounds"]))


def _apart(request: dict[str, Any]) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.bench", "cpu", "--cell", json.dumps(request)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def _line(row: dict[str, Any]) -> str:
    cell: Cell = row["cell"]
    what = "fwd+bwd" if cell.gradients else "decode" if cell.qL == 1 else "fwd"
    mask = "causal" if cell.causal else "full"
    text = f"{cell.dtype:8} {mask:6} {cell.D:3} {cell.kL:5} {what:7}"
    ours = row["seconds"]["flashrt"]
    text += f"{1e3 * ours:9.2f}{cell.flops / ours / 1e9:6.0f}GF"
    for library in ("torch", "mx.fast"):
        theirs = row["seconds"].get(library)
        text += f"{1e3 * theirs:9.2f}{theirs / ours:7.2f}x" if theirs else f"{'-':>17}"
    if "flashrt" in row["memory"]:
        held, scratch = row["memory"]["flashrt"]["peak"], row["memory"]["flashrt"]["scratch"]
        rest = held - cell.output_bytes - scratch
        parts = f"{cell.output_bytes / MIB:.1f} + {scratch / MIB:.2f} + {rest / MIB:.2f}"
        text += f"   {held / MIB:.1f} = {parts};"
        for library in ("torch", "mx.fast"):
            if library in row["memory"]:
                text += f" {row['memory'][library]['peak'] / MIB:.1f}"
    return text


def _mean(values: list[float]) -> str:
    return f"{statistics.geometric_mean(values):.2f}" if values else "-"


def _summary(rows: list[dict[str, Any]], peak: float | None, isa: str) -> None:
    """Print the means over cells that the goals speak of."""

    def ratios(library: str, **conditions: Any) -> list[float]:
        return [
            row["seconds"][library] / row["seconds"]["flashrt"]
            for row in rows
            if library in row["seconds"]
            and all(getattr(row["cell"], name) == value for name, value in conditions.items())
        ]

    print("\ngeometric means of time ratios (above 1: flashrt is faster)")
    for title, conditions in (
        ("float32 causal fwd+bwd", {"dtype": "float32", "causal": True, "gradients": True}),
        ("float32 full fwd+bwd", {"dtype": "float32", "causal": False, "gradients": True}),
        ("bfloat16 causal fwd+bwd", {"dtype": "bfloat16", "causal": True, "gradients": True}),
        ("bfloat16 full fwd+bwd", {"dtype": "bfloat16", "causal": False, "gradients": True}),
        ("everything", {}),
    ):
        torch, fast = ratios("torch", **conditions), ratios("mx.fast", **conditions)
        print(f"  {title:24} over PyTorch {_mean(torch):>6}   over mx.fast {_mean(fast):>6}")
    behind = [r for r in rows if r["seconds"].get("torch", 9e9) < 0.95 * r["seconds"]["flashrt"]]
    print(f"  cells under 0.95x PyTorch: {len(behind)}")
    for row in behind:
        print("    " + _line(row))
    if peak:
        shares = {
            r["cell"]: r["cell"].flops / r["seconds"]["flashrt"] / 1e9 / threads() / peak
            for r in rows
            if r["cell"].dtype == "float32" and r["cell"].qL > 1
        }
        goal = [share for cell, share in shares.items() if cell.causal and cell.gradients]
        print(
            f"  share of the {isa} multiply-add peak per thread, float32: causal fwd+bwd "
            f"{_mean(goal)}, everything {_mean(list(shares.values()))}"
        )


def _calls() -> None:
    """Cost of building a graph, and of importing."""
    import mlx.core as mx

    import flashrt
    from flashrt import _C

    q = mx.zeros((1, 8, 128, 64))
    mx.eval(q)
    calls = {
        "mx.fast.scaled_dot_product_attention": lambda: mx.fast.scaled_dot_product_attention(
            q, q, q, scale=0.125, mask="causal"
        ),
        "flashrt's C++ entry": lambda: _C.attention(q, q, q, scale=0.125, causal=True),
        "flashrt.attention": lambda: flashrt.attention(q, q, q, scale=0.125, causal=True),
    }
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(7):
        for name, call in calls.items():
            started = time.perf_counter()
            for _ in range(2000):
                call()
            best[name] = min(best[name], (time.perf_counter() - started) / 2000)
    print("\ngraph building, microseconds a call (best of 7 x 2000)")
    for name, value in best.items():
        print(f"  {name:38}{1e6 * value:7.2f}")
    measure = (
        "import time, mlx.core; t = time.perf_counter(); import flashrt; "
        "print(time.perf_counter() - t)"
    )
    with tempfile.TemporaryDirectory() as compiled:
        # As installed: with byte code, which some environments do not let Python write.
        given = {n: v for n, v in os.environ.items() if n != "PYTHONDONTWRITEBYTECODE"}
        given["PYTHONPYCACHEPREFIX"] = compiled
        command = [sys.executable, "-c", measure]
        runs = [subprocess.run(command, env=given, capture_output=True) for _ in range(8)]
    times = [float(done.stdout) for done in runs[1:]]
    print(f"import flashrt after mlx.core: {1e3 * min(times):.1f} ms (best of {len(times)})")
