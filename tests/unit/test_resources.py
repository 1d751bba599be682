"""The resource model against figures worked out by hand, and its rules as properties."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from codegen.model import Dtype, KernelSpec, helper_kernels
from codegen.resources import (
    ACCUMULATOR,
    LIVE_BASE,
    LIVE_LIMIT,
    THREADGROUP_LIMIT,
    accumulators,
    exchange_bytes,
    least_threadgroup_bytes,
    live_bytes,
    pitch,
    resources,
    threads_resident,
)
from codegen.rules import STEPS, violations
from tests.unit.spec_table import ROWS, Row, make_spec
from tests.unit.tile_strategy import tiles

F16, F32 = Dtype.FLOAT16, Dtype.FLOAT32


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.spec.name)
def test_default_row(row: Row) -> None:
    spec, res = row.spec, resources(row.spec)
    steps = 32 // spec.C
    row_groups = 32 / spec.R
    assert violations(spec) == ()
    assert res.stage == row.stage
    assert res.threadgroup_bytes == row.threadgroup_bytes
    assert res.threadgroups_per_core == row.threadgroups_per_core
    assert res.live_bytes == row.live_bytes
    assert res.barriers * steps == row.barriers
    assert res.mma * steps * row_groups == row.mma
    assert res.loads * steps * row_groups == row.loads
    assert res.exchanged_per_score == row.exchanged_per_score


def test_parts_of_a_threadgroup() -> None:
    """Tiles, owner rows, statistics, slot and exchange, each against the sum written out."""
    staged = resources(make_spec("bwd_dkv", F16, "64", (32, 32, 4, 1), "none"))
    assert (staged.tile_bytes, staged.stats_bytes, staged.owner_bytes) == (9216, 256, 9216)
    role = resources(make_spec("bwd_dkv", F16, "128", (32, 32, 2, 2), "role"))
    assert (role.tile_bytes, role.stats_bytes, role.slot_bytes) == (17408, 256, 2048)
    both = resources(make_spec("bwd_dkv", F32, "256", (8, 32, 2, 4), "role_split_d"))
    assert (both.tile_bytes, both.stats_bytes) == (16640, 64)
    assert (both.slot_bytes, both.exchange_bytes, both.threadgroup_bytes) == (1024, 4096, 21824)
    assert both.barriers == 4


@pytest.mark.parametrize(
    ("kind", "dtype", "widths", "tile", "split", "live"),
    [
        ("fwd", F16, "64", (64, 32, 4, 1), "none", 288),
        ("fwd", F16, "64", (64, 64, 4, 1), "none", 352),
        ("fwd", F16, "72", (32, 64, 4, 1), "none", 232),
        ("fwd", F16, "128", (64, 32, 4, 1), "none", 416),
        ("fwd", F16, "192/128", (64, 32, 8, 1), "none", 256),
        ("fwd", F16, "256", (64, 16, 4, 2), "split_d", 384),
        ("fwd", F32, "192/128", (64, 16, 4, 2), "split_d", 256),
        ("fwd", F32, "192/128", (128, 16, 8, 1), "none", 384),
        ("bwd_dq", F16, "64", (64, 32, 4, 1), "none", 384),
        ("bwd_dq", F16, "128", (64, 32, 4, 1), "none", 512),
        ("bwd_dq", F32, "96", (64, 32, 4, 1), "none", 480),
        ("bwd_dkv", F16, "64", (64, 32, 4, 1), "none", 384),
        ("bwd_dkv", F16, "64", (32, 64, 4, 1), "none", 512),
        ("bwd_dkv", F16, "112", (32, 32, 2, 2), "role", 416),
        ("bwd_dkv", F16, "128", (32, 32, 4, 1), "none", 432),
        ("bwd_dkv", F16, "192/128", (16, 32, 4, 1), "none", 456),
        ("bwd_dkv", F16, "256", (16, 16, 1, 4), "role_split_d", 400),
        ("bwd_dkv", F32, "64", (32, 64, 4, 2), "role", 352),
        ("bwd_dkv", F32, "192/128", (8, 32, 2, 2), "role", 512),
    ],
)
def test_live_bytes_of_candidates(
    kind: str, dtype: Dtype, widths: str, tile: tuple[int, int, int, int], split: str, live: int
) -> None:
    assert live_bytes(make_spec(kind, dtype, widths, tile, split)) == live


def test_pitches() -> None:
    widths = (64, 72, 80, 96, 112, 128, 192, 256)
    assert [pitch(w, 2) for w in widths] == [72, 72, 88, 104, 120, 136, 200, 264]
    assert [pitch(w, 4) for w in widths] == [68, 76, 84, 100, 116, 132, 196, 260]


def test_threads_resident() -> None:
    occupancy = {64: 3072, 128: 1536, 192: 1024, 256: 768, 320: 512, 448: 384, 576: 256}
    assert {live: threads_resident(live) for live in occupancy} == occupancy


def test_published_figures() -> None:
    """Earlier kernels' figures, composed from the same formulae.

    A two-kernel backward at D=128 with BQ = BK = 16 stages Q and dO, one of K and K^T, and reuses
    their memory to add up two simdgroups' dK. A D=256 forward halves D over two simdgroups, with
    16 rows and 32 keys a simdgroup.
    """
    q = 16 * pitch(128, 2) * 2
    kv = max(128 * pitch(16, 2), 16 * pitch(128, 2)) * 2
    sixteen_rows = make_spec("fwd", F16, "128", (64, 32, 4, 1), "none")
    reduction = accumulators(sixteen_rows) * 32 * ACCUMULATOR
    assert (q, kv, reduction) == (4_352, 6_144, 8_192)
    assert 2 * q + kv + reduction == 23_040
    assert max(2 * q, reduction) + kv == 14_848
    halved = make_spec("fwd", F16, "256", (64, 32, 4, 2), "split_d")
    assert exchange_bytes(halved) == 16_384
    assert live_bytes(sixteen_rows) - LIVE_BASE == live_bytes(halved) - LIVE_BASE == 320


@pytest.mark.parametrize(
    ("kind", "dtype", "widths", "tile", "split", "words"),
    [
        # MLX's own forward layout at these sizes passes 32 KB; so does any that stages too much.
        ("bwd_dkv", F32, "256", (16, 32, 4, 2), "role", "35,456 B of threadgroup memory"),
        ("fwd", F32, "256", (64, 64, 8, 1), "none", "66,560 B of threadgroup memory"),
        ("bwd_dkv", F16, "256", (16, 32, 4, 1), "none", "648 B live per lane"),
        ("bwd_dkv", F32, "96", (16, 64, 4, 1), "none", "576 B live per lane"),
        ("fwd", F32, "256", (64, 16, 4, 1), "none", "640 B live per lane"),
    ],
)
def test_refused(
    kind: str, dtype: Dtype, widths: str, tile: tuple[int, int, int, int], split: str, words: str
) -> None:
    broken = violations(make_spec(kind, dtype, widths, tile, split))
    assert any(words in violation.message for violation in broken), broken


def test_helpers_take_nothing() -> None:
    for spec in helper_kernels():
        res = resources(spec)
        assert (res.threadgroup_bytes, res.live_bytes) == (0, 0)
        assert spec.threads in (32, 128, 256)


def wider(spec: KernelSpec, what: str) -> KernelSpec:
    if what == "D":
        return replace(spec, D=spec.D + 8, Dv=spec.Dv + 8)
    return replace(spec, **{what: 2 * getattr(spec, what)})


@settings(deadline=None)
@given(tiles(), st.sampled_from(["BQ", "BK", "D"]))
def test_monotone(spec: KernelSpec, what: str) -> None:
    assume(spec.OB % (8 * spec.WM) == 0)
    larger = wider(spec, what)
    assert least_threadgroup_bytes(larger) >= least_threadgroup_bytes(spec)
    assert live_bytes(larger) >= live_bytes(spec)


@settings(deadline=None)
@given(tiles())
def test_legal_is_within_the_limits(spec: KernelSpec) -> None:
    """No rule broken if and only if the tile makes sense and fits."""
    sensible = (
        spec.OB in (8 * spec.WM, 16 * spec.WM)
        and (32 % spec.OB == 0 or spec.OB % 32 == 0)
        and spec.C in STEPS
        and spec.WM * spec.WN <= 8
        and spec.D % (8 * spec.W) == 0
        and spec.Dv % (8 * spec.W) == 0
    )
    fits = sensible and (
        least_threadgroup_bytes(spec) <= THREADGROUP_LIMIT and live_bytes(spec) <= LIVE_LIMIT
    )
    assert (violations(spec) == ()) == fits
    if fits:
        res = resources(spec)
        parts = res.tile_bytes + res.owner_bytes + res.stats_bytes
        assert parts + res.slot_bytes + res.exchange_bytes == res.threadgroup_bytes
        assert res.threadgroup_bytes <= THREADGROUP_LIMIT
        assert res.threadgroups_per_core >= 1


@settings(deadline=None)
@given(tiles())
def test_remedy_is_legal(spec: KernelSpec) -> None:
    """What an error tells to try breaks no rule of its own kind."""
    for violation in violations(spec):
        _, found, remedy = violation.message.partition("; try ")
        if not found or "split" in remedy:
            continue
        changes = (
            dict(part.split(": ") for part in remedy.split(", "))
            if ": " in remedy
            else {violation.key: remedy}
        )
        numbers: dict[str, Any] = {key: int(value) for key, value in changes.items()}
        repaired = replace(spec, **numbers)
        assert violation not in violations(repaired)
        if violation.key == "":
            assert violations(repaired) == ()
