"""The resource model against what a kernel does: counters of one step on the emulator."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from codegen.model import KernelKind, KernelSpec, Owner
from codegen.resources import resources
from codegen.specfile import load_folder
from tests.kernel.launch import Run, forward, gradient
from tests.kernel.problems import Problem, make_tensors
from tests.kernel.registry import kernels

ROOT = Path(__file__).resolve().parents[2]
SPECS = {kernel.name: kernel for file in load_folder(ROOT / "specs") for kernel in file.kernels}


def one_per_shape_of_text() -> list[KernelSpec]:
    """Return a kernel of every template, staging and element size, the narrowest of each."""
    chosen: dict[tuple[object, ...], KernelSpec] = {}
    for spec in sorted(SPECS.values(), key=lambda spec: spec.sort_key):
        key = (spec.template, spec.W, resources(spec).staging, spec.dtype.size)
        chosen.setdefault(key, spec)
    return list(chosen.values())


def counters(spec: KernelSpec, steps: int) -> dict[str, int]:
    """Run one threadgroup for some steps."""
    (kernel,) = (kernel for kernel in kernels() if kernel.name == spec.name)
    qL, kL = spec.BQ, spec.BK
    if spec.kind.owner is Owner.QUERY:
        kL *= steps
    else:
        qL *= steps
    problem = Problem(kernel.dtype, kernel.d, kernel.dv, H=1, Hk=1, qL=qL, kL=kL)
    tensors = make_tensors(problem)
    run = Run(mode="trace")
    if spec.kind is KernelKind.FWD:
        forward(run, kernel, problem, tensors)
    else:
        rows = np.zeros((1, 1, qL), np.float32)
        gradient(run, kernel, problem, tensors, rows, rows.copy())
    return run.counters


@pytest.mark.parametrize("spec", one_per_shape_of_text(), ids=lambda spec: spec.name)
def test_a_step_does_what_the_model_says(spec: KernelSpec) -> None:
    res, one, two = resources(spec), counters(spec, 1), counters(spec, 2)
    step = {name: two[name] - one[name] for name in two}
    simdgroups = spec.WM * spec.WN
    assert step["mma"] == res.mma * spec.WM
    assert step["threadgroup_barriers"] == res.barriers * simdgroups
    assert step["simdgroup_barriers"] == 0
    # LSE and delta of the staged rows are read beside what the model counts.
    stats = res.stats_bytes
    assert step["device_read_bytes"] == res.device_bytes + stats
    staged = spec.C * (spec.D + spec.Dv) * spec.dtype.size
    crossing = res.slot_bytes + res.exchange_bytes
    assert step["threadgroup_write_bytes"] == staged + stats + crossing
    # Fragments come from threadgroup memory, the owner's from the device where they are not staged.
    fragments = res.loads * 64 * spec.dtype.size * spec.WM
    from_device = res.device_bytes - staged
    read = step["threadgroup_read_bytes"] + from_device
    if spec.kind is KernelKind.BWD_DKV:
        assert read >= fragments + crossing + stats
    else:
        assert read == fragments + crossing
    assert two["threadgroup_memory_bytes"] == res.threadgroup_bytes
    assert step["device_write_bytes"] == 0
