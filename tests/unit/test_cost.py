"""The cost model against figures worked out by hand, one test per default kernel."""

from __future__ import annotations

from dataclasses import replace

import pytest

from codegen.cost import (
    FLOAT_APPLE9,
    FLOAT_M1,
    HALF,
    Coefficients,
    l2_bytes_per_clock,
    share_of_peak,
    steps,
)
from codegen.model import Dtype
from codegen.resources import resources
from tests.unit.spec_table import ROWS, Row, make_spec

F16, F32 = Dtype.FLOAT16, Dtype.FLOAT32

# The table's 16-bit shares take P and dS as 16-bit operands.
ROUNDED = replace(HALF, mma_mixed=HALF.mma)


def percent(
    kind: str,
    dtype: Dtype,
    widths: str,
    tile: tuple[int, int, int, int],
    split: str,
    c: Coefficients,
) -> float:
    spec = make_spec(kind, dtype, widths, tile, split)
    return 100 * share_of_peak(spec, resources(spec), c)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.spec.name)
def test_default_row(row: Row) -> None:
    spec, res = row.spec, resources(row.spec)
    fits = (FLOAT_M1, FLOAT_APPLE9) if spec.dtype.size == 4 else (ROUNDED,)
    shares = [100 * share_of_peak(spec, res, fit) for fit in fits]
    assert shares == pytest.approx(row.share, abs=0.6)  # rounded to whole points there
    assert l2_bytes_per_clock(spec, res, fits[0]) == pytest.approx(row.l2_bytes_per_clock, abs=0.6)


@pytest.mark.parametrize(
    ("kind", "dtype", "widths", "tile", "split", "points"),
    [
        ("fwd", F16, "64", (64, 32, 4, 1), "none", 4.7),
        ("fwd", F16, "64", (64, 64, 4, 1), "none", 6.5),
        ("fwd", F16, "128", (64, 32, 4, 1), "none", 3.3),
        ("fwd", F16, "192/128", (64, 32, 8, 1), "none", 2.3),
        ("fwd", F16, "256", (64, 16, 4, 2), "split_d", -0.6),
        ("bwd_dq", F16, "64", (64, 32, 4, 1), "none", 3.8),
        ("bwd_dq", F16, "256", (32, 32, 4, 1), "none", 0.6),
        ("bwd_dkv", F16, "64", (64, 32, 4, 1), "none", 1.7),
        ("bwd_dkv", F16, "112", (32, 32, 2, 2), "role", 0.8),
        ("bwd_dkv", F16, "128", (32, 32, 4, 1), "none", -0.9),
        ("bwd_dkv", F16, "128", (16, 32, 2, 2), "role", -2.7),
        ("bwd_dkv", F16, "256", (16, 16, 1, 4), "role_split_d", -0.2),
        ("fwd", F32, "64", (64, 16, 4, 1), "none", -3.2),
        ("fwd", F32, "192/128", (64, 16, 4, 2), "split_d", -2.3),
        ("fwd", F32, "256", (32, 16, 4, 1), "none", -6.6),
        ("bwd_dq", F32, "192/128", (64, 16, 4, 2), "split_d", 2.2),
        ("bwd_dkv", F32, "64", (32, 64, 4, 2), "role", 3.4),
        ("bwd_dkv", F32, "256", (8, 32, 2, 4), "role_split_d", 4.8),
    ],
)
def test_candidate_against_default(
    kind: str, dtype: Dtype, widths: str, tile: tuple[int, int, int, int], split: str, points: float
) -> None:
    """Candidates differ from their default by the points worked out for them."""
    fit = ROUNDED if dtype is F16 else FLOAT_M1
    candidate = percent(kind, dtype, widths, tile, split, fit)
    D, _, Dv = widths.partition("/")
    (default,) = (
        row.spec
        for row in ROWS
        if (str(row.spec.kind), row.spec.dtype) == (kind, dtype)
        and (row.spec.D, row.spec.Dv) == (int(D), int(Dv or D))
    )
    share = 100 * share_of_peak(default, resources(default), fit)
    assert candidate - share == pytest.approx(points, abs=0.15)


def test_unrounded_scores_cost_little() -> None:
    """The mixed form costs a point or two where one product in three has it."""
    tile = (32, 32, 4, 1)
    rounded = percent("bwd_dq", F16, "128", tile, "none", ROUNDED)
    mixed = percent("bwd_dq", F16, "128", tile, "none", HALF)
    assert rounded - mixed == pytest.approx(1.5, abs=0.3)


def test_published_shares() -> None:
    """MLX's forward: 32 keys in turn, four barriers; its measured 82 and 84% at D = 64 and 80."""
    for D, share in ((64, 82.2), (80, 83.5)):
        spec = make_spec("fwd", F16, str(D), (32, 32, 4, 1), "none")
        res = replace(resources(spec), barriers=4)
        assert 100 * share_of_peak(spec, res, ROUNDED) == pytest.approx(share, abs=0.1)


@pytest.mark.parametrize("L", [1, 31, 32, 33, 512, 1000])
@pytest.mark.parametrize(
    ("kind", "tile", "split"),
    [
        ("fwd", (32, 16, 4, 1), "none"),
        ("fwd", (64, 32, 4, 1), "none"),
        ("bwd_dkv", (16, 32, 4, 2), "role"),
        ("bwd_dkv", (32, 32, 4, 1), "none"),
    ],
)
def test_steps_are_the_tiles_that_see_something(
    kind: str, tile: tuple[int, int, int, int], split: str, L: int
) -> None:
    spec = make_spec(kind, F16, "64", tile, split)
    tiles = [(q, k) for q in range(0, L, spec.BQ) for k in range(0, L, spec.BK)]
    visible = [(q, k) for q, k in tiles if k <= min(L, q + spec.BQ) - 1]
    assert steps(spec, L, causal=False) == len(tiles)
    assert steps(spec, L, causal=True) == len(visible)
