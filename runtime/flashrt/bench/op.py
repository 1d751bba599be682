"""Time and memory of attention, forward and with gradients, beside mx.fast, on real text.

Times: the two in turn in one process, so that whatever else the machine does meets both. Memory:
a fresh process for each number.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mlx.core as mx

import flashrt
from flashrt.bench.memory import HOW, peak_growth
from flashrt.bench.text import default_text, qkv

if TYPE_CHECKING:
    from collections.abc import Callable

    Work = Callable[[], object]

DTYPES = {"float32": mx.float32, "float16": mx.float16, "bfloat16": mx.bfloat16}
NAMES = ("flashrt", "mx.fast")
PASSES = {"forward": "forward", "gradient": "forward + gradients of q, k, v"}


def main(arguments: list[str]) -> int:
    """Print the table, or one memory cell as JSON."""
    options = _parse(arguments)
    if options.cell:
        name, what = options.cell.split(":")
        print(json.dumps({"bytes": peak_growth(_work(options, name, what))}))
        return 0
    on_metal = mx.default_device().type != mx.DeviceType.cpu
    print(f"flashrt {flashrt.__version__}, {mx.device_info()['device_name']}")
    print(
        f"B={options.batch} H={options.heads}/{options.kv_heads} L={options.length} "
        f"D={options.head_dim} {options.dtype} {'full' if options.full else 'causal'}, "
        f"text {options.text.name}"
    )
    told = flashrt.explain(*_inputs(options), causal=not options.full)
    print(f"route: {told['route']} ({told['reason']})\n")
    error = _difference(options)
    print(f"{'':32}{'flashrt':>12}{'mx.fast':>12}{'ratio':>9}")
    for what, title in PASSES.items():
        times = _times(options, what)
        seconds = {name: statistics.median(times[name]) for name in NAMES}
        _row(title, "ms", {name: 1e3 * s for name, s in seconds.items()})
        memory = {name: _memory_apart(arguments, name, what) / 2**20 for name in NAMES}
        _row("  peak memory above the inputs", "MiB", memory)
    print(f"\nlargest difference of the outputs, relative: {error:.2g}")
    print(f"times: medians of {options.rounds} rounds in turn; memory: {HOW}")
    if not on_metal:
        print("mx.fast on a CPU is composed of MLX operations; its fused kernels are Metal's")
    return 0


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m flashrt.bench op", description=__doc__)
    on_cpu = mx.default_device().type == mx.DeviceType.cpu
    parser.add_argument("--batch", type=_positive, default=1)
    parser.add_argument("--heads", type=_positive, default=8)
    parser.add_argument("--kv-heads", type=_positive, default=2)
    parser.add_argument("--length", type=_positive, default=1024 if on_cpu else 4096)
    parser.add_argument("--head-dim", type=_positive, default=64)
    parser.add_argument("--dtype", choices=DTYPES, default="float32" if on_cpu else "bfloat16")
    parser.add_argument("--full", action="store_true", help="no causal mask")
    parser.add_argument("--rounds", type=_positive, default=3 if on_cpu else 20)
    parser.add_argument("--text", type=Path, default=default_text(), help="file to attend over")
    parser.add_argument("--cell", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.heads % options.kv_heads:
        parser.error(f"--heads {options.heads} is not a multiple of --kv-heads {options.kv_heads}")
    if not options.text.is_file() or options.text.stat().st_size == 0:
        parser.error(f"--text {options.text} is not a file with something in it")
    return options


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def _inputs(options: argparse.Namespace) -> tuple[mx.array, mx.array, mx.array]:
    return qkv(
        options.text,
        options.batch,
        options.heads,
        options.kv_heads,
        options.length,
        options.head_dim,
        DTYPES[options.dtype],
    )


def _function(options: argparse.Namespace, name: str) -> Callable[..., mx.array]:
    causal = not options.full
    if name == "flashrt":
        return lambda q, k, v: flashrt.attention(q, k, v, causal=causal)
    scale = options.head_dim**-0.5
    mask = "causal" if causal else None
    return lambda q, k, v: mx.fast.scaled_dot_product_attention(q, k, v, scale=scale, mask=mask)


def _work(options: argparse.Namespace, name: str, what: str) -> Work:
    """Return what is measured: builds the graph and runs it."""
    inputs = _inputs(options)
    function = _function(options, name)
    if what == "forward":
        return lambda: mx.eval(function(*inputs))
    gradient: Any = mx.grad(lambda *x: function(*x).astype(mx.float32).sum(), (0, 1, 2))
    return lambda: mx.eval(gradient(*inputs))


def _times(options: argparse.Namespace, what: str) -> dict[str, list[float]]:
    works = {name: _work(options, name, what) for name in NAMES}
    works["flashrt"]()  # first use loads kernels and starts threads
    if mx.metal.is_available():
        works["mx.fast"]()
    times: dict[str, list[float]] = {name: [] for name in NAMES}
    for round_ in range(options.rounds):
        for name in NAMES if round_ % 2 == 0 else reversed(NAMES):
            started = time.perf_counter()
            works[name]()
            times[name].append(time.perf_counter() - started)
    return times


def _memory_apart(arguments: list[str], name: str, what: str) -> int:
    command = [sys.executable, "-m", "flashrt.bench", "op", *arguments, "--cell", f"{name}:{what}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    return int(json.loads(done.stdout.splitlines()[-1])["bytes"])


def _difference(options: argparse.Namespace) -> float:
    inputs = _inputs(options)
    ours, theirs = (_function(options, name)(*inputs).astype(mx.float32) for name in NAMES)
    difference: Any = (mx.abs(ours - theirs).max() / mx.abs(theirs).max()).item()
    return float(difference)


def _row(title: str, unit: str, values: dict[str, float]) -> None:
    ratio = values["mx.fast"] / values["flashrt"] if values["flashrt"] else float("inf")
    cells = "".join(f"{values[name]:>12.2f}" for name in NAMES)
    print(f"{title + ', ' + unit:<32}{cells}{ratio:>8.1f}x", flush=True)
