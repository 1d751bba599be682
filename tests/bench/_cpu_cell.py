"""One cell of the CPU benchmark: the same attention by flashrt, mx.fast and PyTorch."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sysconfig
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.bench._process import peak_bytes, restart_peak

HAS_TORCH = importlib.util.find_spec("torch") is not None


@dataclass(frozen=True, slots=True)
class Cell:
    """What is computed."""

    dtype: str = "float32"
    causal: bool = True
    D: int = 64
    qL: int = 1024
    kL: int = 1024
    H: int = 8
    Hk: int = 8
    gradients: bool = False

    @property
    def flops(self) -> float:
        """Floating-point operations of 2 products, or of 2 + 5 with gradients."""
        pairs = self.qL * self.kL / (2 if self.causal else 1)
        return (14 if self.gradients else 4) * self.H * pairs * self.D

    @property
    def output_bytes(self) -> int:
        """Return what a call must hold: O, LSE, and the gradients."""
        size = 4 if self.dtype == "float32" else 2
        rows, keys = self.H * self.qL, self.Hk * self.kL
        o = rows * (self.D * size + 4)
        return o + (rows + 2 * keys) * self.D * size if self.gradients else o


Work = Callable[[], object]


def threads() -> int:
    """Return how many threads each library gets."""
    return len(os.sched_getaffinity(0))


def work(cell: Cell, library: str) -> Work:
    """Return the call, on inputs that exist already."""
    return _torch(cell) if library == "torch" else _mlx(cell, library)


def _mlx(cell: Cell, library: str) -> Work:
    import mlx.core as mx

    import flashrt

    mx.random.seed(0)
    dtype = {"float32": mx.float32, "bfloat16": mx.bfloat16}[cell.dtype]
    shapes = ((cell.H, cell.qL), (cell.Hk, cell.kL), (cell.Hk, cell.kL))
    q, k, v = (mx.random.normal((1, *shape, cell.D)).astype(dtype) for shape in shapes)
    mx.eval(q, k, v)
    scale = cell.D**-0.5

    def ours(*x: Any) -> Any:
        return flashrt.attention(*x, causal=cell.causal, impl="kernel")

    def fast(*x: Any) -> Any:
        mask = "causal" if cell.causal else None
        return mx.fast.scaled_dot_product_attention(*x, scale=scale, mask=mask)

    function = ours if library == "flashrt" else fast
    if not cell.gradients:
        return lambda: mx.eval(function(q, k, v))
    d_o = mx.random.normal((1, cell.H, cell.qL, cell.D)).astype(dtype)
    mx.eval(d_o)
    return lambda: mx.eval(mx.vjp(lambda *x: [function(*x)], [q, k, v], [d_o]))


def _torch(cell: Cell) -> Work:
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    torch.set_num_threads(threads())
    torch.manual_seed(0)
    dtype = {"float32": torch.float32, "bfloat16": torch.bfloat16}[cell.dtype]
    shapes = ((cell.H, cell.qL), (cell.Hk, cell.kL), (cell.Hk, cell.kL))
    q, k, v = (torch.randn(1, *shape, cell.D).to(dtype) for shape in shapes)
    for x in (q, k, v):
        x.requires_grad_(cell.gradients)
    # PyTorch aligns causal to the first key; one query sees every key here.
    causal = cell.causal and cell.qL > 1
    grouped = cell.Hk != cell.H

    d_o = torch.randn(1, cell.H, cell.qL, cell.D).to(dtype)

    def run() -> object:
        o = scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=grouped)
        if not cell.gradients:
            return o
        return o, torch.autograd.grad(o, (q, k, v), d_o)

    return run


FEW_ROUNDS = 2  # of a library that takes so long that a first call more or less is no matter
SETTLE_SECONDS = 0.02


def seconds(cell: Cell, rounds: dict[str, int]) -> dict[str, list[float]]:
    """Time libraries in turn, each as many rounds as it gets.

    A library's threads may spin for a while after its call and would hold a core that the next one
    needs, so each turn starts with a pause and two calls that do not count.
    """
    works = {library: work(cell, library) for library in rounds}
    times: dict[str, list[float]] = {library: [] for library in rounds}
    for i in range(max(rounds.values())):
        for library in sorted(works, reverse=bool(i % 2)):
            if i >= rounds[library]:
                continue
            time.sleep(SETTLE_SECONDS)
            for _ in range(0 if rounds[library] <= FEW_ROUNDS else 2):
                works[library]()
            started = time.perf_counter()
            works[library]()
            times[library].append(time.perf_counter() - started)
    return times


def hold_to(isa: str) -> None:
    """Keep flashrt and PyTorch to an instruction set; before PyTorch is imported."""
    from flashrt import _C

    _C.prefer_isa(isa)
    level = {"baseline": "default"}.get(isa, isa.partition("_")[0])
    os.environ["ATEN_CPU_CAPABILITY"] = level
    if isa == "avx2":
        os.environ["ONEDNN_MAX_CPU_ISA"] = os.environ["MKL_ENABLE_INSTRUCTIONS"] = "AVX2"


def memory(cell: Cell, library: str) -> dict[str, int]:
    """Return the peak above the inputs, and for flashrt the scratch that it says it takes."""
    call = work(cell, library)
    if library == "torch":
        work(Cell(gradients=cell.gradients, qL=8, kL=8), library)()  # its own pools
    else:
        import mlx.core as mx

        work(Cell(gradients=cell.gradients, qL=8, kL=8), library)()
        mx.clear_cache()
    before = restart_peak()
    call()
    found = {"peak": peak_bytes() - before}
    if library == "flashrt":
        found["scratch"] = _scratch(cell)
    return found


def _scratch(cell: Cell) -> int:
    import mlx.core as mx

    import flashrt

    dtype = {"float32": mx.float32, "bfloat16": mx.bfloat16}[cell.dtype]
    q = mx.zeros((1, cell.H, cell.qL, cell.D), dtype)
    k = mx.zeros((1, cell.Hk, cell.kL, cell.D), dtype)
    told = flashrt.explain(q, k, k, causal=cell.causal, impl="kernel")
    passes = ("forward", "backward") if cell.gradients else ("forward",)
    return max(int(told[name]["scratch_bytes"]) for name in passes)


FMA_LOOP = r"""
#include <chrono>
#include <cstdio>
// Twelve independent chains of the widest vectors hide the latency of a multiply-add.
typedef float V __attribute__((vector_size(LANES * 4)));
int main() {
  V a[12], x = {}, y = {};
  for (auto& v : a) v = x + 1.0f;
  x += 0.999999f; y += 1e-7f;
  double best = 0;
  for (int r = 0; r < 20; r++) {
    const long n = 2000000;
    auto t = std::chrono::steady_clock::now();
    for (long i = 0; i < n; i++) {
#pragma GCC unroll 12
      for (int c = 0; c < 12; c++) a[c] = a[c] * x + y;
    }
    asm volatile("" : : "r"(a) : "memory");
    double s = std::chrono::duration<double>(std::chrono::steady_clock::now() - t).count();
    double rate = 2.0 * 12 * LANES * n / s / 1e9;
    if (rate > best) best = rate;
  }
  float sum = 0;
  for (auto& v : a) for (int i = 0; i < LANES; i++) sum += v[i];
  std::printf("%f %g\n", best, sum);
}
"""


def fma_peak(isa: str) -> float | None:
    """GFLOP/s of one core's multiply-add loop in an instruction set; None without a compiler."""
    lanes, extra = 4, []
    if isa.startswith("avx512"):
        lanes, extra = 16, ["-mavx512f", "-mfma", "-mprefer-vector-width=512"]
    elif isa == "avx2":
        lanes, extra = 8, ["-mavx2", "-mfma"]
    compiler = os.environ.get("CXX") or str(sysconfig.get_config_var("CXX") or "c++").split()[0]
    with tempfile.TemporaryDirectory() as folder:
        source, program = Path(folder) / "peak.cpp", Path(folder) / "peak"
        source.write_text(FMA_LOOP)
        command = [compiler, "-O3", "-ffp-contract=fast", *extra, f"-DLANES={lanes}"]
        try:
            subprocess.run([*command, str(source), "-o", str(program)], check=True)
            done = subprocess.run([str(program)], capture_output=True, text=True, check=True)
        except (OSError, subprocess.CalledProcessError):
            return None
    return float(done.stdout.split()[0])
