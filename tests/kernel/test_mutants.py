"""Break the kernels on purpose: each mistake is caught, by the check that is there for it."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import pytest

from tests.kernel import check, launch, mutants, test_helpers
from tests.kernel.helper_mutant_list import HELPER_MUTANTS, HelperMutant
from tests.kernel.mutant_list import MUTANTS, Mutant
from tests.kernel.problems import Problem
from tests.kernel.registry import Kernel, by_kind

ALL = [*MUTANTS, *mutants.barriers()]
QUICK = re.compile("causal compare|tail off|head of the group|slot|row-major|P has crossed")


def _params() -> list[object]:
    return [
        pytest.param(m, id=m.name, marks=[] if QUICK.search(m.name) else [pytest.mark.slow])
        for m in ALL
    ]


@functools.cache
def unbroken(kernel: Kernel, p: Problem, mode: str) -> check.Verdict:
    """Check the kernel as it is."""
    return check.check(kernel, p, launch.Run(mode=mode))


@pytest.mark.parametrize("mutant", _params())
def test_mutant_is_caught(mutant: Mutant, tmp_path: Path) -> None:
    kernel = mutants.find(mutant.kernel)
    p = mutants.problem_of(mutant, kernel)
    right = unbroken(kernel, p, mutant.mode)
    assert not right.complaints, check.explain(kernel, right)

    broken = functools.partial(mutants.build, mutant, tmp_path)
    verdict = check.check(kernel, p, launch.Run(mode=mutant.mode, build=broken))
    assert any(re.search(mutant.caught_by, c) for c in verdict.complaints), (
        f"{mutant.name} passes: {verdict.complaints or 'no complaint at all'}"
    )


HELPER_TESTS = {
    "bwd_delta": test_helpers.test_delta,
    "bwd_reduce": test_helpers.test_reduce,
    "fwd_merge": test_helpers.test_merge,
    "tile_map": test_helpers.test_tile_map,
    "row_bounds": test_helpers.test_row_bounds,
    "pack": test_helpers.test_pack,
}


@pytest.mark.parametrize("mutant", [pytest.param(m, id=m.name) for m in HELPER_MUTANTS])
def test_helper_mutant_is_caught(
    mutant: HelperMutant, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = by_kind(mutant.kind)[-1]
    broken = functools.partial(mutants.build_helper, mutant, tmp_path)
    monkeypatch.setattr(test_helpers, "Run", functools.partial(launch.Run, build=broken))
    with pytest.raises(AssertionError):
        HELPER_TESTS[mutant.kind](kernel=kernel, mode="fast", **mutant.arguments)


def test_mutants_have_names_of_their_own() -> None:
    names = [m.name for m in ALL]
    assert len(set(names)) == len(names)
