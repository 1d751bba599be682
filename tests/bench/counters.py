"""What the kernels do, counted on the emulator: products, bytes, barriers, shuffles.

forward   ours beside MLX 0.32.4's steel_attention, same shapes, both with LSE, as ratios
backward  every default dQ and dK/dV kernel per 32x32 tile of scores, dK/dV beside the published
          fused kernels for MLX (pull request 3241) as counted from their source
window    causal with a window of 128: tiles and bytes against the length
packed    eight segments of 512 against one sequence of 4096
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from tests import reference as ref
from tests.emulator import mlx_attention
from tests.kernel import launch
from tests.kernel.problems import Problem, Tensors, make_tensors
from tests.kernel.registry import Kernel, kernels

Counters = Mapping[str, float]

SHOWN = {
    "mma": "MMAs",
    "device_read_bytes": "device read",
    "device_write_bytes": "device write",
    "threadgroup_read_bytes": "tg read",
    "threadgroup_write_bytes": "tg write",
    "threadgroup_barriers": "tg barriers",
    "shuffles": "shuffles",
    "exp2": "exp2",
}

# Per 32x32 tile of the dK/dV kernel of ml-explore/mlx pull request 3241, from its source: products,
# bytes staged from device memory (without the first load of K and V), barriers of a threadgroup.
PUBLISHED_DKV = {64: (512, 16_384, 8), 96: (768, 36_864, 16), 128: (1_024, 65_536, 32)}
TILE = 32


def default_kernel(kind: str, dtype: str, d: int) -> Kernel:
    """Return the kernel that the plan would take."""
    found = (k for k in kernels() if (k.kind, k.dtype, k.d, k.rank) == (kind, dtype, d, 0))
    return next(found)


def count(kernel: Kernel, p: Problem, tensors: Tensors | None = None) -> Counters:
    """Counters of one traced launch; a fault is an error."""
    t = tensors or make_tensors(p)
    run = launch.Run(mode="trace")
    if kernel.kind == "fwd":
        launch.forward(run, kernel, p, t)
    else:
        lse = np.zeros((p.B, p.H, p.qL), np.float32)
        launch.gradient(run, kernel, p, t, lse, lse)
    if run.faults:
        raise SystemExit(f"{kernel.name}: {run.faults[0]}")
    return run.counters


def _steel(dtype: str, d: int, length: int) -> Counters:
    kernel = mlx_attention.Steel(dtype, d)
    rng = np.random.default_rng(0)
    q, k, v = (ref.narrow(rng.standard_normal((1, 1, length, d)), dtype) for _ in range(3))
    library = mlx_attention.build_mlx(kernel, "trace")
    lse = np.empty((1, 1, length), np.float32)
    scale = d**-0.5
    _, report = mlx_attention.run_steel(library, kernel, q, k, v, scale=scale, causal=True, lse=lse)
    return report.counters


def _row(label: str, values: Counters, form: str = ",.0f") -> None:
    print(f"{label:<34}" + "".join(f"{values[name]:>14{form}}" for name in SHOWN), flush=True)


def _head(title: str) -> None:
    print(f"\n{title:<34}" + "".join(f"{text:>14}" for text in SHOWN.values()))


def forward() -> None:
    """Ours beside steel_attention."""
    _head("forward, causal, one head, float16")
    for d in (64, 128):
        for length in (512, 1024):
            kernel = default_kernel("fwd", "float16", d)
            p = Problem("float16", d, d, H=1, Hk=1, qL=length, kL=length, causal=True)
            ours, theirs = count(kernel, p), _steel("float16", d, length)
            _row(f"D={d} L={length} flashrt", ours)
            _row("             steel_attention", theirs)
            ratio = {name: ours[name] / theirs[name] if theirs[name] else 0.0 for name in SHOWN}
            _row("             ratio", ratio, ".2f")


@dataclass(frozen=True, slots=True)
class PerTile:
    """What one more 32x32 tile of scores costs; the start and end of a threadgroup cancel out."""

    kernel: Kernel
    values: Counters

    @property
    def barriers(self) -> float:
        """Barriers of a threadgroup, rather than arrivals of its simdgroups."""
        return self.values["threadgroup_barriers"] / (self.kernel.wm * self.kernel.wn)

    @property
    def staged(self) -> float:
        """Bytes of Q and dO written to threadgroup memory: without LSE, delta and the P slot."""
        statistics = 2 * 4 * TILE
        slot = 2 * TILE**2 if self.kernel.uses_slot else 0
        return self.values["threadgroup_write_bytes"] - statistics - slot


def per_tile(kernel: Kernel) -> PerTile:
    """Count two launches that differ in the walked length alone, and divide the difference."""
    by_key = kernel.kind == "bwd_dkv"
    long, walked = 64, (128, 256)
    shapes = [(w, long) if by_key else (long, w) for w in walked]
    base = Problem(kernel.dtype, kernel.d, kernel.dv, H=1, Hk=1)
    less, more = (count(kernel, replace(base, qL=q, kL=k)) for q, k in shapes)
    tiles = (walked[1] - walked[0]) * long / TILE**2
    return PerTile(kernel, {name: (more[name] - less[name]) / tiles for name in SHOWN})


def backward() -> None:
    """Every default backward kernel per tile, and dK/dV beside the published design."""
    rows = [k for k in kernels() if k.kind in ("bwd_dq", "bwd_dkv") and k.rank == 0]
    counted = []
    for kind in ("bwd_dq", "bwd_dkv"):
        _head(f"{kind} per {TILE}x{TILE} tile, all simdgroups")
        for kernel in (k for k in rows if k.kind == kind):
            tile = per_tile(kernel)
            counted.append(tile)
            dv = f"/{kernel.dv}" if kernel.dv != kernel.d else ""
            _row(f"  {kernel.dtype} D={kernel.d}{dv}", tile.values, ",.1f")
    print("\ndK/dV, float16, per tile, against pull request 3241, whose bytes are the staged ones;")
    print("device B adds LSE, delta and, for D > 72, operand rows read in place by each step")
    heads = ("D", "MMAs", "ratio", "staged B", "ratio", "device B", "ratio", "barriers", "ratio")
    print("".join(f"{text:>{10 if i % 2 else 8}}" for i, text in enumerate(heads)))
    for tile in counted:
        k = tile.kernel
        if k.kind != "bwd_dkv" or k.dtype != "float16" or k.d not in PUBLISHED_DKV:
            continue
        published = dict(zip(("mma", "bytes", "barriers"), PUBLISHED_DKV[k.d], strict=True))
        ours = (
            (tile.values["mma"], published["mma"]),
            (tile.staged, published["bytes"]),
            (tile.values["device_read_bytes"], published["bytes"]),
            (tile.barriers, published["barriers"]),
        )
        print(f"{k.d:>8}" + "".join(f"{mine:>10,.0f}{mine / its:>8.2f}" for mine, its in ours))
    print("\nD=256 dK/dV on Metal")
    for k in (k for k in rows if k.kind == "bwd_dkv" and k.d == 256):
        print(
            f"  {k.name}: {k.threadgroup_bytes:,} of 32,768 B threadgroup, {k.live_bytes} of 512 B"
            f" live per lane"
        )


def _kinds(d: int) -> list[Kernel]:
    return [default_kernel(kind, "float16", d) for kind in ("fwd", "bwd_dq", "bwd_dkv")]


def _tiles(kernel: Kernel, counters: Counters) -> float:
    """Tiles of the kernel's own size that were computed, from the products they take."""
    width = {"fwd": kernel.d + kernel.dv, "bwd_dq": 2 * kernel.d + kernel.dv}
    scores = counters["mma"] * 512 / width.get(kernel.kind, 2 * (kernel.d + kernel.dv))
    return scores / TILE**2


def window() -> None:
    """Cost of a window against the length."""
    print("\ncausal, window 128, D=64, one head, float16: 32x32 tiles computed, device bytes read")
    print(f"{'kernel':<10}{'L':>6}{'tiles':>10}{'x shorter':>11}{'bytes':>14}{'x shorter':>11}")
    for kernel in _kinds(64):
        last: tuple[float, float] | None = None
        for length in (1024, 2048, 4096):
            p = Problem("float16", 64, 64, H=1, Hk=1, qL=length, kL=length, window=(127, 0))
            c = count(kernel, p)
            now = (_tiles(kernel, c), c["device_read_bytes"])
            growth = [f"{a / b:.2f}" for a, b in zip(now, last, strict=True)] if last else ["", ""]
            print(
                f"{kernel.kind:<10}{length:>6}{now[0]:>10,.0f}{growth[0]:>11}"
                f"{now[1]:>14,.0f}{growth[1]:>11}",
                flush=True,
            )
            last = now


def packed(length: int = 4096, segments: int = 8) -> None:
    """Packed sequences against one long one."""
    print(f"\n{segments} x {length // segments} packed against one {length}, D=64, float16")
    print(f"{'kernel':<10}{'':>8}{'tiles, one':>12}{'tiles, packed':>15}{'ratio':>8}")
    ids = np.repeat(np.arange(segments, dtype=np.int32), length // segments)[None]
    for kernel in _kinds(64):
        for causal in (False, True):
            p = Problem("float16", 64, 64, H=1, Hk=1, qL=length, kL=length, causal=causal)
            one = _tiles(kernel, count(kernel, p))
            p = replace(p, segments=True)
            t = make_tensors(replace(p, segments=False))
            t.options["segments"] = (ids, ids)
            many = _tiles(kernel, count(kernel, p, t))
            name = "causal" if causal else "full"
            print(
                f"{kernel.kind:<10}{name:>8}{one:>12,.0f}{many:>15,.0f}{one / many:>8.2f}",
                flush=True,
            )


def main(arguments: list[str]) -> int:
    """Print the tables asked for."""
    tables = {"forward": forward, "backward": backward, "window": window, "packed": packed}
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench counters",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("tables", nargs="*", metavar="TABLE", help="default: all")
    for name in parser.parse_args(arguments).tables or tables:
        tables[name]()
    return 0
