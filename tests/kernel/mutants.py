"""Deliberate mistakes in kernels and headers, and the check that has to catch each.

A mutant is a textual change of a copy. The changed text must be there exactly as often as it says,
so that a mutant that no longer applies fails instead of passing.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from tests import emulator
from tests.kernel.abi import ROOT
from tests.kernel.helper_mutant_list import HelperMutant
from tests.kernel.launch import library
from tests.kernel.mutant_list import (
    DKV,
    DQ,
    FWD,
    FWD_IN_TURN,
    FWD_SPLIT,
    ROLE,
    ROLE_SPLIT,
    Mutant,
)
from tests.kernel.problems import Problem
from tests.kernel.registry import TILED, Kernel, kernels

BARRIER = "threadgroup_barrier(mem_flags::mem_threadgroup);"


def find(pattern: str) -> Kernel:
    """Find the first tiled kernel whose name matches."""
    for kernel in kernels():
        if kernel.kind in TILED and re.search(pattern, kernel.name):
            return kernel
    raise LookupError(f"no kernel matches {pattern}")


def barriers() -> list[Mutant]:
    """Drop every barrier of one kernel per template, one at a time."""
    out = []
    for pattern in (FWD, FWD_IN_TURN, FWD_SPLIT, DQ, "bwd_dq_float32_d256_", DKV, ROLE, ROLE_SPLIT):
        kernel = find(pattern)
        lines = [s.strip() for s in kernel.source.read_text().splitlines() if BARRIER in s]
        assert len(set(lines)) == len(lines), f"{kernel.name}: a barrier's reason is not its own"
        for line in lines:
            reason = line.partition("//")[2].strip()
            name = f"{kernel.name} without: {reason}"
            problem = {"qL": 3 * kernel.bq + 5, "kL": 3 * kernel.bk + 5, "H": 1, "Hk": 1}
            out.append(
                Mutant(name, "kernel", line, "", kernel.name, problem, r"race|uninit", "trace")
            )
    return out


def build(mutant: Mutant, folder: Path, kernel: Kernel, mode: str) -> emulator.Library:
    """Compile the broken copy; helper kernels are the right ones."""
    if not re.search(mutant.kernel, kernel.name):
        return library(kernel, mode)
    include = folder / "metal"
    if not include.exists():
        shutil.copytree(ROOT / "runtime/metal", include)
        source = folder / kernel.source.name
        shutil.copy(kernel.source, source)
        target = source if mutant.file == "kernel" else include / "flashrt" / mutant.file
        text = target.read_text()
        found = text.count(mutant.old)
        assert found == mutant.count, f"{mutant.name}: the text to change is there {found} times"
        target.write_text(text.replace(mutant.old, mutant.new))
    return emulator.build([folder / kernel.source.name], mode=mode, include=[include])


def build_helper(mutant: HelperMutant, folder: Path, kernel: Kernel, mode: str) -> emulator.Library:
    """Compile the broken copy of a helper kernel."""
    text = kernel.source.read_text()
    assert text.count(mutant.old) == 1, f"{mutant.name}: the text to change is not there once"
    source = folder / kernel.source.name
    source.write_text(text.replace(mutant.old, mutant.new))
    return emulator.build([source], mode=mode, include=[ROOT / "runtime/metal"])


def problem_of(mutant: Mutant, kernel: Kernel) -> Problem:
    """Make the problem that shows the mistake."""
    shape = {"B": 1, "H": 2, "Hk": 2, "qL": 40, "kL": 72, **mutant.problem}
    return Problem(dtype=kernel.dtype, d=kernel.d, dv=kernel.dv, **shape)
