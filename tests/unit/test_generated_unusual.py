"""Adding a head dim or a tile is writing a row: tiles that no spec has compute attention, too."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from codegen.model import Dtype, KernelSpec
from codegen.render import Renderer
from codegen.resources import resources
from codegen.rules import violations
from tests import emulator
from tests.kernel.abi import ROOT
from tests.kernel.check import check, explain
from tests.kernel.launch import Run
from tests.kernel.problems import Problem
from tests.kernel.registry import Kernel
from tests.unit.spec_table import make_spec

F16, BF16, F32 = Dtype.FLOAT16, Dtype.BFLOAT16, Dtype.FLOAT32

UNUSUAL = [
    make_spec("fwd", F16, "8", (8, 8, 1, 1), "none"),
    make_spec("fwd", F32, "40/24", (96, 64, 6, 1), "none"),
    make_spec("fwd", BF16, "48/32", (16, 64, 2, 2), "split_d"),
    make_spec("bwd_dq", BF16, "200", (16, 8, 2, 1), "none"),
    make_spec("bwd_dq", F32, "24/136", (128, 32, 8, 1), "none"),
    make_spec("bwd_dkv", F32, "24", (64, 8, 1, 1), "none"),
    make_spec("bwd_dkv", F16, "104/56", (8, 64, 4, 2), "role"),
    make_spec("bwd_dkv", F16, "80/48", (16, 16, 1, 4), "role_split_d"),
]
PROBLEMS = (
    {"qL": 77, "kL": 97, "causal": True},
    {"qL": 131, "kL": 70, "window": (20, 9), "block_mask": True, "softcap": 5.0},
    {"qL": 33, "kL": 200, "mask": "bool", "alibi": True, "segments": True},
)


@functools.cache
def library(source: Path, mode: str) -> emulator.Library:
    return emulator.build([source], mode=mode, include=[ROOT / "runtime" / "metal"])


@pytest.mark.parametrize("spec", UNUSUAL, ids=lambda spec: spec.name)
def test_unusual_tile(spec: KernelSpec, tmp_path: Path) -> None:
    assert violations(spec) == ()
    res = resources(spec)
    source = tmp_path / f"{spec.name}.metal"
    source.write_text(Renderer().render(spec, res), encoding="utf-8")
    kernel = Kernel(
        *(spec.name, str(spec.kind), str(spec.dtype), spec.D, spec.Dv, spec.BQ, spec.BK, spec.WM),
        *(spec.WN, str(spec.split), 0, spec.threads, res.threadgroup_bytes, res.live_bytes),
    )
    for options in PROBLEMS:
        problem = Problem(kernel.dtype, kernel.d, kernel.dv, H=4, Hk=2, **options)
        run = Run(mode="fast", build=lambda _, mode: library(source, mode))
        verdict = check(kernel, problem, run)
        assert not verdict.complaints, explain(kernel, verdict)
