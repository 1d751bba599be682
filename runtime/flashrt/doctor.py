"""``python -m flashrt.doctor``: what is installed, what runs where, and what is wrong."""

from __future__ import annotations

import importlib.metadata
import math
import os
import platform
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mlx.core as mx

import flashrt
from flashrt import _C, _env
from flashrt._route import METALLIB, metal_architecture
from flashrt._version import MLX_VERSION

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flashrt.attention import Impl


def main() -> int:
    """Print the findings; 0 where nothing is wrong."""
    problems: list[str] = []
    for name, value in _findings(problems):
        print(f"{name:<14}{value}")
    for problem in problems:
        print(f"problem: {problem}")
    print("no problem found" if not problems else f"{len(problems)} problem(s)")
    return 1 if problems else 0


def _findings(problems: list[str]) -> Iterator[tuple[str, object]]:
    yield "flashrt", f"{flashrt.__version__} in {Path(flashrt.__file__).parent}"
    yield "mlx", f"{importlib.metadata.version('mlx')}, built for {MLX_VERSION}"
    yield "python", f"{platform.python_version()} on {platform.platform()}"
    cpu = _C.explain_cpu(*_tiny(), scale=1.0)
    yield "cpu", f"{cpu['isa']} kernels, {cpu['threads']} threads"
    yield from _metal(problems)
    yield from _environment(problems)
    yield "check", _check(problems)


def _tiny() -> tuple[mx.array, mx.array, mx.array]:
    mx.random.seed(0)
    q, k, v = (mx.random.normal((1, 2, 40, 64)) for _ in range(3))
    return q, k, v


def _metal(problems: list[str]) -> Iterator[tuple[str, object]]:
    folder = Path(os.environ.get("FLASHRT_METALLIB_DIR", Path(flashrt.__file__).parent))
    library = folder / METALLIB
    if not mx.metal.is_available():
        yield "metal", "not available: calls run on the CPU"
        return
    device = _C.device(metal_architecture())
    known = "" if device["known"] else " (not in flashrt's table: taken for the smallest Mac)"
    yield "metal", f"{device['architecture']}, {device['cores']} cores{known}"
    if library.is_file():
        yield "metallib", f"{library}, {library.stat().st_size / 2**20:.1f} MiB"
        return
    yield "metallib", f"{library} is missing"
    problems.append(f"{library} does not exist: reinstall flashrt-mlx, or set FLASHRT_METALLIB_DIR")


def _environment(problems: list[str]) -> Iterator[tuple[str, object]]:
    given = {name: os.environ[name] for name in _env.NAMES if name in os.environ}
    yield "environment", ", ".join(f"{n}={v}" for n, v in given.items()) or "nothing set"
    try:
        _env.settings()
    except ValueError as error:
        problems.append(str(error))


def _check(problems: list[str]) -> str:
    """Run forward and gradient on the default device and compare with composed operations."""
    inputs = _tiny()

    def gradients(impl: Impl) -> list[mx.array]:
        def loss(*x: mx.array) -> mx.array:
            return (flashrt.attention(*x, causal=True, impl=impl) ** 2).sum()

        return list(mx.grad(loss, (0, 1, 2))(*inputs))

    try:
        pairs = zip(gradients("auto"), gradients("reference"), strict=True)
        errors = [_relative(found, expected) for found, expected in pairs]
        worst = max(errors, key=lambda error: math.inf if math.isnan(error) else error)
        route = flashrt.explain(*inputs, causal=True)["route"]
    except (RuntimeError, ValueError) as error:
        problems.append(f"attention failed: {error}")
        return "failed"
    if not worst < 1e-3:
        problems.append(f"gradients differ from the reference by {worst:.2g} of the largest")
    return f"gradients on the {route} route within {worst:.1g} of the reference"


def _relative(found: mx.array, expected: mx.array) -> float:
    difference: Any = (mx.abs(found - expected).max() / mx.abs(expected).max()).item()
    return float(difference)


if __name__ == "__main__":
    sys.exit(main())
