"""The CPU benchmark's own arithmetic, and one small run of it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import mlx.core as mx
import pytest

from tests.bench._cpu_cell import Cell, fma_peak, memory, work
from tests.runtime import cpu_kernels

ROOT = Path(__file__).resolve().parents[2]


def test_flops_and_bytes() -> None:
    """Counted by hand."""
    cell = Cell("float32", False, 16, 10, 20, 4, 2)
    assert cell.flops == 2 * 2 * 4 * 10 * 20 * 16
    assert Cell("float32", True, 16, 10, 20, 4, 2, gradients=True).flops == 7 * 4 * 10 * 20 * 16
    o, lse = 4 * 10 * 16 * 4, 4 * 10 * 4
    assert cell.output_bytes == o + lse
    gradients = Cell("bfloat16", False, 16, 10, 20, 4, 2, gradients=True)
    assert gradients.output_bytes == o // 2 + lse + (4 * 10 + 2 * 2 * 20) * 16 * 2


@pytest.mark.parametrize("library", ["flashrt", "mx.fast"])
@pytest.mark.parametrize("gradients", [False, True])
def test_the_work_is_attention(library: str, gradients: bool) -> None:
    """Both libraries compute on the same inputs; memory is counted."""
    cell = Cell("float32", True, 16, 33, 33, 4, 2, gradients=gradients)
    work(cell, library)()
    found = memory(cell, library)
    assert found["peak"] >= 0
    assert ("scratch" in found) == (library == "flashrt")
    assert mx.get_active_memory() >= 0


def test_the_peak_is_a_rate_of_this_machine() -> None:
    """Wider vectors are not slower, where the compiler and the CPU have them."""
    baseline = fma_peak("baseline")
    if baseline is None:
        pytest.skip("no C++ compiler")
    assert 0.1 < baseline < 1000


def small_run(*options: str) -> subprocess.CompletedProcess[str]:
    """One cell, few rounds."""
    return subprocess.run(
        [
            *(sys.executable, "-m", "tests.bench", "cpu", "--lengths", "64", "--dims", "32"),
            *("--rounds", "3", "--dtypes", "float32", "--masks", "causal", "--no-decode"),
            *options,
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )


def test_libraries_can_be_held_to_an_instruction_set() -> None:
    """The heading tells which kernels run; one that is not there is refused by name."""
    isa = cpu_kernels.isas()[-1]
    done = small_run("--isa", isa, "--no-calls", "--mlx-limit", "0")
    assert done.returncode == 0, done.stderr
    assert f"({isa})" in done.stdout
    refused = small_run("--isa", "mmx")
    assert refused.returncode == 1
    assert refused.stderr.startswith("--isa: isa='mmx' is not available here; this CPU runs ")
    assert isa in refused.stderr


def test_a_small_run() -> None:
    """Tables, means and the cost of calls, in one go."""
    done = small_run()
    assert done.returncode == 0, done.stderr
    assert re.search(r"float32 +causal +32 +64 fwd\+bwd +[\d.]+ +\d+GF", done.stdout)
    for line in (
        "over mx.fast",
        "cells under 0.95x PyTorch",
        "flashrt's C++ entry",
        "import flashrt",
    ):
        assert line in done.stdout
