"""Every tiled kernel on its covering list, on the emulator, against the float64 reference."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from tests.kernel import check, design, launch
from tests.kernel.conftest import Record
from tests.kernel.problems import Problem
from tests.kernel.registry import TILED, Kernel, kernels

TILED_KERNELS = [k for k in kernels() if k.kind in TILED]
QUICK_LAUNCHES = 4
ASAN_LAUNCHES = 3


def _spread(rows: list[Kernel], key: Any) -> dict[str, Kernel]:
    """One kernel per key, of another head dim each time."""
    groups: dict[Any, list[Kernel]] = {}
    for k in rows:
        groups.setdefault(key(k), []).append(k)
    picked = (group[i % len(group)] for i, group in enumerate(groups.values()))
    return {k.name: k for k in picked}


QUICK = _spread(TILED_KERNELS, lambda k: (k.kind, k.dtype, k.split))
PER_TEMPLATE = _spread(TILED_KERNELS, lambda k: (k.kind, k.split))


def named(rows: Any, quick: Any = ()) -> list[Any]:
    """Parameters whose ids are kernel names; those outside ``quick`` run with --ci."""
    return [
        pytest.param(k, id=k.name, marks=[] if k.name in quick else [pytest.mark.slow])
        for k in rows
    ]


def judge(kernel: Kernel, problems: Any, run: Any, record: Record) -> float:
    """Check every problem, report all failures at once; returns the mean share of visible keys."""
    failures, visible = [], []
    for p in problems:
        verdict = check.check(kernel, p, run())
        record(kernel, verdict)
        visible.append(verdict.visible)
        if verdict.complaints:
            failures.append(check.explain(kernel, verdict))
    assert not failures, "\n".join([f"{len(failures)} of {len(problems)} launches:", *failures])
    return float(np.mean(visible))


@pytest.mark.parametrize("kernel", named(TILED_KERNELS, QUICK))
def test_covering_list(kernel: Kernel, depth: str, record: Record) -> None:
    problems = design.problems_of(kernel)
    if depth == "quick":
        # The cheapest of the list: small lengths, and every feature somewhere among the kernels.
        problems = sorted(problems, key=lambda p: p.flops(kernel.kind))[2 : 2 + QUICK_LAUNCHES]
    visible = judge(kernel, problems, lambda: launch.Run(mode=launch.CHECKED), record)
    assert visible > 0.05, "masks left next to nothing to compare"


@pytest.mark.parametrize("kernel", named(PER_TEMPLATE.values()))
def test_address_sanitizer(kernel: Kernel, record: Record) -> None:
    problems = sorted(design.problems_of(kernel), key=lambda p: p.flops(kernel.kind))
    judge(kernel, problems[-ASAN_LAUNCHES - 6 : -6], lambda: launch.Run(mode="asan"), record)


@pytest.mark.exhaustive
@pytest.mark.parametrize("kernel", named(TILED_KERNELS))
def test_whole_product(kernel: Kernel, record: Record) -> None:
    judge(kernel, design.product_of(kernel), lambda: launch.Run(mode="fast"), record)


def _medium(kernel: Kernel, **options: Any) -> Problem:
    return Problem(
        dtype=kernel.dtype, d=kernel.d, dv=kernel.dv, B=2, H=4, Hk=2, qL=77, kL=97, **options
    )


@pytest.mark.parametrize("kernel", named(PER_TEMPLATE.values(), PER_TEMPLATE))
def test_bits_do_not_depend_on_the_order_of_lanes(kernel: Kernel) -> None:
    p = _medium(kernel, causal=True, softcap=3.0)
    first = check.check(kernel, p, launch.Run()).arrays
    for seed in (1, 2):
        again = check.check(kernel, p, launch.Run(seed=seed)).arrays
        for name, array in first.items():
            assert array.tobytes() == again[name].tobytes(), f"{name} differs with seed {seed}"


@pytest.mark.parametrize("kernel", named(PER_TEMPLATE.values(), PER_TEMPLATE))
@pytest.mark.parametrize("heads_per_group", [1, 3, 8])
def test_bits_do_not_depend_on_how_the_grid_is_cut(kernel: Kernel, heads_per_group: int) -> None:
    p = _medium(kernel, causal=True)
    whole = check.check(kernel, p, launch.Run())
    assert not whole.complaints, check.explain(kernel, whole)
    run = launch.Run(heads_per_group=heads_per_group, parts=3)
    parts = check.check(kernel, p, run).arrays
    for name, array in whole.arrays.items():
        assert array.tobytes() == parts[name].tobytes(), name


@pytest.mark.parametrize("kernel", named(PER_TEMPLATE.values(), PER_TEMPLATE))
@pytest.mark.parametrize("seen", ["no row", "some rows"])
def test_rows_that_see_no_key(kernel: Kernel, seen: str) -> None:
    """O = 0, LSE = -inf or the sink; gradients of such rows are 0 and nothing leaks from them."""
    p = _medium(kernel, causal=True, q_off=-200 if seen == "no row" else -50)
    for sinks in (False, True):
        verdict = check.check(kernel, dataclasses.replace(p, sinks=sinks))
        assert not verdict.complaints, check.explain(kernel, verdict)
        if seen == "no row":
            outputs = (a for name, a in verdict.arrays.items() if name != "lse")
            assert all(not np.any(a) for a in outputs), "zeros are exact"
            assert "lse" not in verdict.arrays or sinks == np.isfinite(verdict.arrays["lse"]).all()


# bfloat16: a softcap's slope takes weights below the step of the slot through which P passes.
SMALL_WEIGHTS = [
    Problem("bfloat16", 256, 256, qL=8, kL=257, causal=True, softcap=2.0, alibi=True, splits=3),
    Problem(
        "bfloat16",
        192,
        128,
        qL=8,
        kL=257,
        causal=True,
        window=(-1, 20),
        block_mask=True,
        softcap=2.0,
        alibi=True,
        row_diagonals=True,
        layout="cache",
        spread=1.5,
    ),
]


@pytest.mark.parametrize("p", SMALL_WEIGHTS, ids=str)
def test_weights_below_the_step_of_the_slot(p: Problem) -> None:
    (kernel,) = (
        k
        for k in TILED_KERNELS
        if (k.kind, k.dtype, k.d, k.dv, k.rank) == ("bwd_dkv", p.dtype, p.d, p.dv, 0)
    )
    verdict = check.check(kernel, p)
    assert not verdict.complaints, check.explain(kernel, verdict)


@pytest.mark.parametrize("kind", TILED)
def test_a_truncated_training_batch(kind: str) -> None:
    """2047 tokens, what a limit of 2048 leaves of a batch that is shifted by one."""
    kernel = next(k for k in TILED_KERNELS if (k.kind, k.dtype, k.d) == (kind, "bfloat16", 64))
    p = Problem("bfloat16", 64, 64, H=1, Hk=1, qL=2047, kL=2047, causal=True)
    verdict = check.check(kernel, p)
    assert not verdict.complaints, check.explain(kernel, verdict)


def test_every_pair_of_values_meets_in_every_kind_and_dtype() -> None:
    for kind, dtype in {(k.kind, k.dtype) for k in TILED_KERNELS}:
        missing = design.all_pairs()
        for name, choices in design.design(kind, dtype).items():
            missing -= set().union(*(design.pairs(c) for c in choices))
            for factor, values in design.FACTORS.items():
                assert set(values) <= {c[factor] for c in choices}, f"{name}: {factor}"
            assert len(choices) <= design.MAX_LAUNCHES
        assert not missing, f"{kind} {dtype}: {sorted(missing, key=repr)[:5]}"


def test_design_is_within_its_budget() -> None:
    for kernel in TILED_KERNELS:
        total = sum(p.flops(kernel.kind) for p in design.problems_of(kernel))
        assert total <= design.MAX_FLOPS, kernel.name
