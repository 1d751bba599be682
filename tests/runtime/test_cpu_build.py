"""How the CPU kernels are built: one object per instruction set, chosen at run time."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.runtime import cpu_kernels
from tests.runtime.cpu_check import operands
from tests.runtime.cpu_kernels import Call


def test_per_isa_objects_hold_no_weak_symbols(tmp_path: Path) -> None:
    """A weak symbol compiled for a newer CPU could replace the baseline's copy of it."""
    objects = cpu_kernels.compile_objects(tmp_path)
    for path in objects:
        if not path.name.startswith("isa_"):
            continue
        listing = subprocess.run(
            ["nm", "-C", str(path)], check=True, capture_output=True, text=True
        ).stdout
        kinds = {
            line.split()[-2] if line[0] == " " else line.split()[1] for line in listing.splitlines()
        }
        assert "R" in kinds or "D" in kinds, listing  # the table itself: the listing was understood
        weak = [line for line in listing.splitlines() if line[17:18] in "WVwvu"]
        assert not weak, "\n".join(weak)


def test_isas_are_named_in_the_error() -> None:
    q, k, v, _ = operands(1, 1, 1, 1, 1, 8, 8, "float32")
    with pytest.raises(ValueError, match=r"isa='sse9' is not available here; this CPU runs .*"):
        Call(q, k, v, "float32", isa="sse9").forward()


def test_the_best_isa_is_the_default() -> None:
    q, k, v, _ = operands(1, 2, 2, 100, 100, 64, 64, "float32")
    default = Call(q, k, v, "float32").forward()
    named = Call(q, k, v, "float32", isa=cpu_kernels.best_isa()).forward()
    assert (default.o == named.o).all()
