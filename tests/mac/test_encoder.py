"""The encoder itself, run against a fake of mlx's Metal device: what a Mac's GPU would be told."""

from __future__ import annotations

import struct
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.mac.compile import TAG
from tests.mac.fake import functions
from tests.runtime import plan_module
from tests.runtime.plan_problems import Case, cases, problem

pytestmark = pytest.mark.skipif(sys.platform == "darwin", reason="a Mac has the real one")

CASES = cases()
PAGE = 4096  # scratch memory is allocated in rows of so many bytes


def expected(case: Case) -> list[Any]:
    """Return the plan's calls in the words of the fake."""
    found: list[Any] = []
    concurrent = False
    for name, *arguments in plan_module.load().plan_calls(
        case.problem, case.operation, case.device
    ):
        if name in ("begin_concurrent", "end_concurrent"):
            concurrent = name == "begin_concurrent"
        elif name == "allocate":
            index, size = arguments
            found.append((name, index, -(-size // PAGE) * PAGE))
        elif name == "dispatch":
            found.append((name, *arguments, concurrent))
        elif name != "fill":
            found.append((name, *arguments))
    return found


def told(metal: ModuleType, case: Case) -> list[Any]:
    """Return the encoder's calls in the words of the plan."""
    calls, names, _ = metal.carry_out(case.problem, case.operation, case.device, functions())
    found = []
    for name, *arguments in calls:
        if name == "allocate":
            index, (address, size, _) = arguments
            names[address] = index
            arguments = [index, size]
        elif name in ("bind_input", "bind_output"):
            slot, (address, _, offset) = arguments
            assert offset == 0
            arguments = [slot, names[address]]
        found.append((name, *arguments))
    return found


def test_the_gpu_is_told_the_plan(metal: ModuleType, metallib: Path) -> None:
    for number, case in enumerate(CASES):
        calls = told(metal, case)
        if number == 0:  # and never again
            assert calls.pop(0) == ("get_library", "flashrt", str(metallib))
        assert calls == expected(case), case.name


@pytest.mark.usefixtures("metallib")
def test_fills_are_whole_and_no_more(metal: ModuleType) -> None:
    empty = problem(kL=0)
    calls, _, filled = metal.carry_out(empty, {}, {}, functions())
    rows = 2 * 4 * 70
    assert [call[0] for call in calls] == ["get_library"]
    assert filled == {
        "o": (bytes(rows * 64 * 2), 0xAA),
        "lse": (struct.pack("<f", float("-inf")) * rows, 0xAA),
    }


def test_a_missing_metallib_is_named(metal: ModuleType, tmp_path: Path) -> None:
    beside = tmp_path / "flashrt.metallib"  # of the module
    with pytest.raises(RuntimeError, match=f"{beside} does not exist.*FLASHRT_METALLIB_DIR"):
        metal.carry_out(problem(), {}, {}, functions())
    beside.touch()
    calls, _, _ = metal.carry_out(problem(), {}, {}, functions())
    assert calls[0] == ("get_library", "flashrt", str(beside))


def test_a_directory_that_is_none_is_refused(
    metal: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for wrong in (str(tmp_path / "nowhere"), ""):
        monkeypatch.setenv("FLASHRT_METALLIB_DIR", wrong)
        with pytest.raises(RuntimeError, match=f"FLASHRT_METALLIB_DIR='{wrong}'"):
            metal.carry_out(problem(), {}, {}, functions())


@pytest.mark.parametrize("missing", [f"flashrt_kernels_{TAG}", "flash_attn_row_bounds"])
def test_a_metallib_of_another_build_is_refused(
    metal: ModuleType, metallib: Path, missing: str
) -> None:
    others = [name for name in functions() if name != missing]
    for _ in range(2):
        with pytest.raises(RuntimeError, match=f"{metallib} was built .*no function {missing}"):
            metal.carry_out(problem(), {}, {}, others)


def test_the_device_is_looked_up(metal: ModuleType) -> None:
    assert metal.device() == plan_module.load().device("applegpu_g15s")
