"""Show the whole path once: specs to kernels, kernels on the emulator, attention for users.

Kernels run on the CPU, lane by lane, from their Metal text: errors are those of the kernels, times
say nothing about a GPU. The last part runs the installed package on this machine's default device.
"""

from __future__ import annotations

import json
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from tests import reference, tolerance
from tests.bench._process import peak_bytes
from tests.kernel import check, launch, registry
from tests.kernel.problems import Problem, make_tensors

ROOT = Path(__file__).resolve().parents[1]
SHAPE = {"d": 128, "dv": 128, "H": 32, "Hk": 8, "qL": 512, "kL": 512, "causal": True}
LENGTH = 1024  # of the last part
ROUNDS = 3


def main() -> int:
    """Run the three parts; the exit status is that of the comparisons."""
    print(f"mlx {mx.__version__}, {platform.machine()}, {platform.system()}\n")
    generate()
    right = emulate()
    measure()
    return 0 if right else 1


def generate() -> None:
    """Render every kernel from the specs."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-m", "codegen"], cwd=ROOT, check=True)
    specs = len(list((ROOT / "specs").glob("*.yaml")))
    print(
        f"{specs} specs, {len(registry.kernels())} kernels: {time.perf_counter() - start:.2f} s\n"
    )


def emulate() -> bool:
    """Run D = 128 kernels on real tensors and compare with float64."""
    right = True
    print("D = 128 kernels on the emulator: causal, 32 heads of queries, 8 of keys, L = 512")
    print(f"  {'':53} {'of the bound':>12} {'in roundings':>13}")
    for dtype, kinds in (("float16", registry.TILED), ("bfloat16", ("fwd",))):
        problem = Problem(dtype=dtype, **SHAPE)
        for kind in kinds:
            kernel = next(k for k in registry.by_kind(kind, dtype) if k.d == 128 and k.rank == 0)
            verdict = check.check(kernel, problem, launch.Run())
            for c in verdict.comparisons:
                print(f"  {f'{kernel.name} {c.name}':53} {c.share:12.0%} {c.units:13.2f}")
            for complaint in verdict.complaints:
                right = False
                print(f"  WRONG: {complaint}")
        print(f"  {f'mx.fast, {dtype} o':53} {'':12} {stock_error(problem):13.2f}")
    print(
        "  of the bound: worst error as a share of its derived bound; in roundings: in units of\n"
        "  the output's rounding at its largest value. mx.fast runs on this machine's CPU.\n"
    )
    return right


def stock_error(problem: Problem) -> float:
    """Worst error of mx.fast's forward on the same tensors, in the same units."""
    t = make_tensors(problem)
    q, k, v = (mx.array(reference.widen(x)).astype(mx.float32) for x in (t.q, t.k, t.v))
    kind = getattr(mx, problem.dtype)
    with mx.stream(mx.cpu):
        o = mx.fast.scaled_dot_product_attention(
            q.astype(kind), k.astype(kind), v.astype(kind), scale=problem.scale_value, mask="causal"
        )
        got = np.array(o.astype(mx.float32))
    f = reference.attention(t.q, t.k, t.v, **t.options)
    comparison = tolerance.compare("o", got, f.o, np.ones(f.o.shape), "float32")
    return comparison.units * tolerance.UNIT["float32"] / tolerance.UNIT[problem.dtype]


def measure() -> None:
    """Time forward and gradient through the package, each in a process of its own."""
    print(f"attention and its gradients, installed package, {mx.default_device()}:")
    print(f"  float32, causal, 8 heads of queries, 2 of keys, D = 128, L = {LENGTH}")
    for name in ("flashrt", "mx.fast"):
        command = [sys.executable, "-m", "tests.demo", "--measure", name]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        result = json.loads(done.stdout)
        print(
            f"  {name:8} {result['seconds']:8.3f} s (median of {ROUNDS})"
            f" {result['bytes'] / 2**20:8.0f} MiB above the inputs"
        )


def measure_one(name: str) -> None:
    """Print the time of a call and the memory it added to the process."""
    from flashrt import attention

    def fast(q: mx.array, k: mx.array, v: mx.array) -> mx.array:
        return mx.fast.scaled_dot_product_attention(q, k, v, scale=128**-0.5, mask="causal")

    def ours(q: mx.array, k: mx.array, v: mx.array) -> mx.array:
        return attention(q, k, v, causal=True)

    call: Callable[..., mx.array] = ours if name == "flashrt" else fast
    inputs = [mx.random.normal((1, heads, LENGTH, 128)) for heads in (8, 2, 2)]
    step = mx.value_and_grad(lambda *x: call(*x).square().sum(), argnums=(0, 1, 2))
    mx.eval(inputs)
    before = peak_bytes()
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        mx.eval(step(*inputs))
        times.append(time.perf_counter() - start)
    result: dict[str, Any] = {"seconds": statistics.median(times), "bytes": peak_bytes() - before}
    print(json.dumps(result))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        measure_one(sys.argv[2])
    else:
        sys.exit(main())
