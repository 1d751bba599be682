"""The routing blocks of the specs are what the cost model derives, call by call."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from codegen.cost import DEVICES
from codegen.model import UNBOUNDED, Dtype, Gpu, KernelSpec, MaskClass, Route
from codegen.routing import (
    LENGTHS,
    MARGIN,
    MAX_SCORE_BYTES,
    MLX_TILE,
    Mlx,
    advantage,
    mlx_score_tile,
    mlx_seconds,
    own_range,
)
from codegen.specfile import load_specs
from tests.unit.spec_text import ROW, errors, load, with_row

ROOT = Path(__file__).resolve().parents[2]
FILES = load_specs(sorted((ROOT / "specs").glob("*.yaml")))
CASES = [(route, file.kernels) for file in FILES for route in file.routes]


def route_id(value: object) -> str:
    if not isinstance(value, Route):
        return ""
    return f"{value.gpu}-d{value.D}_dv{value.Dv}-{value.dtype}-{value.mask}"


def defaults(kernels: tuple[KernelSpec, ...], dtype: Dtype) -> list[KernelSpec]:
    return [kernel for kernel in kernels if kernel.rank == 0 and kernel.dtype is dtype]


@pytest.mark.parametrize(("route", "kernels"), CASES, ids=route_id)
def test_route_is_derived(route: Route, kernels: tuple[KernelSpec, ...]) -> None:
    own = defaults(kernels, route.dtype)
    assert (route.min_L, route.max_L) == own_range(route.gpu, own, route.mask)
    bounded = (route.min_L, route.max_L) != (0, UNBOUNDED)
    assert route.score_bytes == (MAX_SCORE_BYTES if bounded else 0)


@pytest.mark.parametrize(("route", "kernels"), CASES[::5], ids=route_id)
def test_range_separates_wins_from_losses(route: Route, kernels: tuple[KernelSpec, ...]) -> None:
    own = defaults(kernels, route.dtype)
    for L in LENGTHS:
        behind = advantage(route.gpu, own, L, route.mask) < 1 - MARGIN
        assert behind != (route.min_L <= L < route.max_L), L


def test_every_call_has_one_route() -> None:
    keys = [(r.gpu, r.D, r.Dv, r.dtype, r.mask) for r, _ in CASES]
    assert len(set(keys)) == len(keys) == len(FILES) * len(Gpu) * 3 * len(MaskClass)


# Forward and backward of softmax(QK^T)V as MLX differentiates it, float16, 32 heads, M3 Max:
# published seconds of eight gradients. L = 512 is left out: launches weigh there.
PUBLISHED_UNFUSED = [
    (64, 1024, MaskClass.CAUSAL, 0.043),
    (64, 2048, MaskClass.CAUSAL, 0.162),
    (64, 4096, MaskClass.CAUSAL, 0.616),
    (96, 1024, MaskClass.CAUSAL, 0.055),
    (96, 2048, MaskClass.CAUSAL, 0.203),
    (128, 1024, MaskClass.CAUSAL, 0.056),
    (128, 2048, MaskClass.CAUSAL, 0.213),
    (64, 1024, MaskClass.FULL, 0.040),
    (64, 2048, MaskClass.FULL, 0.136),
    (64, 4096, MaskClass.FULL, 0.664),
    (96, 1024, MaskClass.FULL, 0.053),
    (128, 1024, MaskClass.FULL, 0.055),
    (128, 2048, MaskClass.FULL, 0.196),
]


def test_unfused_times_are_the_published_ones() -> None:
    (m3_max,) = (device for device in DEVICES if device.name == "M3 Max")
    ratios = [
        Mlx(m3_max, 2).unfused(L, D, D, mask) * 32 * 8 / seconds
        for D, L, mask, seconds in PUBLISHED_UNFUSED
    ]
    assert sum(abs(ratio - 1) for ratio in ratios) / len(ratios) < MARGIN
    assert max(abs(ratio - 1) for ratio in ratios) < 0.2


def test_what_mlx_holds() -> None:
    """Tiles where its fused forward takes the head dim, all scores elsewhere."""
    assert mlx_score_tile(128, 128, Dtype.FLOAT32) == MLX_TILE
    assert mlx_score_tile(256, 256, Dtype.BFLOAT16) == MLX_TILE
    assert mlx_score_tile(256, 256, Dtype.FLOAT32) == UNBOUNDED
    assert mlx_score_tile(112, 112, Dtype.FLOAT16) == UNBOUNDED
    assert mlx_score_tile(192, 128, Dtype.FLOAT16) == UNBOUNDED


def test_whole_tiles_cost_mlx_most_when_short() -> None:
    """Causal skips tiles of 1024 only: all of one tile, three of four, ten of sixteen."""
    m1_max = DEVICES[1]
    full, causal = (
        [mlx_seconds(m1_max, Dtype.FLOAT16, 128, 128, L, mask) for L in (1024, 2048, 4096)]
        for mask in (MaskClass.FULL, MaskClass.CAUSAL)
    )
    ratios = [c / f for c, f in zip(causal, full, strict=True)]
    assert ratios == sorted(ratios, reverse=True)
    assert 0.85 < ratios[0] < 1
    assert 0.55 < ratios[2] < 0.65


def test_registry_holds_the_routes() -> None:
    text = (ROOT / "generated" / "registry.inc").read_text()
    rows = re.findall(r"^FLASHRT_ROUTE\((.*)\)$", text, re.M)
    expected = {
        ", ".join(
            map(
                str,
                (
                    *(r.gpu, r.D, r.Dv, r.dtype, r.mask, r.min_L, r.max_L),
                    *(mlx_score_tile(r.D, r.Dv, r.dtype), r.score_bytes),
                ),
            )
        )
        for r, _ in CASES
    }
    assert set(rows) == expected
    assert len(rows) == len(expected)


ALL = "gpus: [simd, nax], dtypes: [float16, bfloat16, float32], masks: [causal, full]"


def with_routing(*rows: str) -> str:
    return with_row(ROW) + "routing:\n" + "".join(f"  - {{{row}}}\n" for row in rows)


def test_no_routing_means_own_kernels(tmp_path: Path) -> None:
    (without,) = load(tmp_path, with_row(ROW))
    (written,) = load(tmp_path, with_routing(ALL))
    assert without.routes == written.routes
    assert len(without.routes) == 12
    assert {(r.min_L, r.max_L, r.score_bytes) for r in without.routes} == {(0, UNBOUNDED, 0)}


def test_bounds(tmp_path: Path) -> None:
    half = ALL.replace(", full", "")
    rest = ALL.replace("causal, ", "")
    text = with_routing(
        half + ", min_L: 64, max_L: 512, score_bytes: 9", rest + ", max_L: 0, score_bytes: 1"
    )
    (file,) = load(tmp_path, text)
    bounds = {(str(r.mask), r.min_L, r.max_L, r.score_bytes) for r in file.routes}
    assert bounds == {("causal", 64, 512, 9), ("full", 0, 0, 1)}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            [ALL.replace("simd, ", "")],
            "a.yaml:5: routing: has no row for simd, float16, causal",
        ),
        ([ALL, ALL], "a.yaml:6: routing: simd, float16, causal is routed on line 5 too; keep one"),
        (
            [ALL + ", max_L: 9"],
            "a.yaml:5: routing.score_bytes: goes with min_L or max_L: from how many bytes",
        ),
        ([ALL + ", score_bytes: 9"], "a.yaml:5: routing.score_bytes: goes with min_L or max_L"),
        (
            [ALL + ", min_L: 9, max_L: 9, score_bytes: 9"],
            "a.yaml:5: routing.min_L=9: must be below max_L = 9",
        ),
        ([ALL + ", min_L: 0, score_bytes: 9"], "a.yaml:5: routing.min_L=0: must be at least 1"),
        ([ALL + ", max_L: -1, score_bytes: 9"], "routing.max_L=-1: must be at least 0"),
        ([ALL + ", min_l: 9"], "a.yaml:5: routing.min_l: unknown key; known are gpus, dtypes"),
        ([ALL.replace("nax", "m5")], "routing.gpus=m5: must be one of simd, nax"),
        ([ALL.replace("full", "window")], "routing.masks=window: must be one of causal, full"),
        (["gpus: [simd]"], "a.yaml:5: routing.dtypes: is missing"),
    ],
)
def test_routing_mistake(tmp_path: Path, rows: list[str], message: str) -> None:
    found = errors(tmp_path, with_routing(*rows))
    assert any(message in line for line in found), found


@pytest.mark.parametrize("text", ["routing:\n", "routing: []\n", "routing: {}\n", "routing: [a]\n"])
def test_routing_of_the_wrong_shape(tmp_path: Path, text: str) -> None:
    found = errors(tmp_path, with_row(ROW) + text)
    assert found[0].startswith("a.yaml:4: routing")
