"""Launches as data: complete, in accord with the kernels' text, independent where they say so."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from tests.kernel.abi import ROOT, abi
from tests.runtime import plan_module
from tests.runtime.plan_kernels import signature
from tests.runtime.plan_problems import STRUCTS, TILED, Case, cases, fields, kernels, make

CASES = cases()


def test_the_table_is_the_registry() -> None:
    text = (ROOT / "generated/registry.inc").read_text()
    rows = re.findall(r"^FLASHRT_KERNEL\((.*)\)", text, re.MULTILINE)
    compiled = [", ".join(str(v) for v in row.values()) for row in plan_module.load().kernels()]
    assert compiled == rows


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_slot_the_kernel_declares_is_bound_once(case: Case) -> None:
    for launch in make(case)["launches"]:
        bound = [binding[0] for binding in launch["bindings"]] + [launch["params_slot"]]
        declared = [p for p in signature(launch["kernel"]) if p.needed(launch["constants"])]
        assert len(set(bound)) == len(bound), launch
        assert set(bound) == {p.slot for p in declared}, launch
        written = {p.slot for p in declared if p.written}
        assert {s for s, _, access in launch["bindings"] if access == "write"} == written, launch


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_constant_is_set_and_every_size_fits(case: Case) -> None:
    for launch in make(case)["launches"]:
        row = kernels()[launch["kernel"]]
        tiled = row["kind"] in TILED
        assert set(launch["constants"]) == set(abi().constants.values())
        assert tiled or not any(launch["constants"].values())
        assert np.prod(launch["group"]) == row["threads"]
        assert all(extent > 0 for extent in launch["grid"])
        struct = "AttnParams" if tiled else STRUCTS[row["kind"]]
        assert fields(launch, struct) is not None


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_launches_of_one_stage_are_independent(case: Case) -> None:
    made = make(case)
    stages = [launch["stage"] for launch in made["launches"]]
    assert stages == sorted(stages)
    written_before: set[Any] = {tensor for tensor, _, _ in made["fills"]}
    for stage in dict.fromkeys(stages):
        now = [launch for launch in made["launches"] if launch["stage"] == stage]
        writes = [{b for _, b, access in launch["bindings"] if access == "write"} for launch in now]
        for launch, own in zip(now, writes, strict=True):
            reads = {b for _, b, access in launch["bindings"] if access == "read"}
            temporaries = {b for b in reads if isinstance(b, int)}
            assert temporaries <= written_before, (
                f"reads scratch memory that nobody wrote: {launch}"
            )
            for other, theirs in zip(now, writes, strict=True):
                assert not reads & theirs, f"reads what {other['kernel']} writes beside it"
                if other is not launch and own & theirs:
                    assert_disjoint(launch, other)
        written_before |= set().union(*writes)
    used = {
        b for launch in made["launches"] for _, b, _ in launch["bindings"] if isinstance(b, int)
    }
    assert used == set(range(len(made["temporaries"]))), "scratch memory that nobody uses"


def assert_disjoint(a: dict[str, Any], b: dict[str, Any]) -> None:
    """Two launches of one stage may share an output when they are parts of one grid."""
    assert a["kernel"] == b["kernel"]
    first = {
        "fwd": "first_threadgroup",
        "bwd_dq": "first_threadgroup",
        "bwd_dkv": "first_threadgroup",
        "bwd_delta": "first_row",
        "fwd_merge": "first_row",
        "bwd_reduce": "first",
        "pack": "first",
        "tile_map": "first_tile",
    }[kernels()[a["kernel"]]["kind"]]
    struct = STRUCTS.get(kernels()[a["kernel"]]["kind"], "AttnParams")
    at = [getattr(fields(x, struct), first) for x in (a, b)]
    assert at[0] != at[1]
    if struct == "AttnParams":
        low, high = sorted((a, b), key=lambda x: int(fields(x, struct).first_threadgroup))
        gap = fields(high, struct).first_threadgroup - fields(low, struct).first_threadgroup
        assert gap >= low["grid"][0]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_encoder_is_asked_for_the_whole_plan(case: Case) -> None:
    made = make(case)
    calls = plan_module.load().plan_calls(case.problem, case.operation, case.device)
    allocated = [call[1:] for call in calls if call[0] == "allocate"]
    assert allocated == [(i, size) for i, (_, size) in enumerate(made["temporaries"])]
    assert [call[1:] for call in calls if call[0] == "fill"] == made["fills"]

    expected: list[Any] = []
    for stage in dict.fromkeys(launch["stage"] for launch in made["launches"]):
        now = [launch for launch in made["launches"] if launch["stage"] == stage]
        expected += [("begin_concurrent",)] if len(now) > 1 else []
        for launch in now:
            expected.append(("set_kernel", launch["kernel"], launch["constants"]))
            for index, buffer, access in launch["bindings"]:
                expected.append(
                    ("bind_input" if access == "read" else "bind_output", index, buffer)
                )
            expected.append(("set_params", launch["params_slot"], launch["params"]))
            expected.append(("dispatch", launch["grid"], launch["group"]))
        expected += [("end_concurrent",)] if len(now) > 1 else []
    named = [call[:3] for call in calls if call[0] not in ("allocate", "fill")]
    assert named == expected


def test_no_two_sets_of_constants_share_a_pipeline() -> None:
    names: dict[str, Any] = {}
    for case in CASES:
        calls = plan_module.load().plan_calls(case.problem, case.operation, case.device)
        for _, kernel, constants, name in (call for call in calls if call[0] == "set_kernel"):
            assert names.setdefault(name, (kernel, constants)) == (kernel, constants)
    assert len(names) > 40
