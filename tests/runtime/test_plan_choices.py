"""What the planner chooses: grids, splits, packing, tile maps, fills, kernels, devices."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from tests.kernel.abi import abi, slot
from tests.runtime import plan_module
from tests.runtime.plan_problems import (
    FEATURES,
    STRUCTS,
    TILED,
    Case,
    cases,
    fields,
    kernels,
    launches_of,
    make,
    plan,
    problem,
)

CASES = cases()


@pytest.mark.parametrize("limit", [1, 3, 7, 1000])
@pytest.mark.parametrize("operation", [{}, {"n_splits": 3}, {"kind": "backward", "n_splits": 2}])
def test_a_grid_limit_cuts_grids_without_losing_or_repeating_work(
    limit: int, operation: dict[str, Any]
) -> None:
    changes = FEATURES["bool mask"] | FEATURES["transposed"]
    whole = make(Case("", problem(**changes), operation))
    cut = make(
        Case(
            "",
            problem(**changes),
            operation,
            {"architecture": "applegpu_g15s", "max_threadgroups": limit},
        )
    )
    for kind, unit in {
        **dict.fromkeys(TILED, ("first_threadgroup", 1)),
        "bwd_delta": ("first_row", 4),
        "fwd_merge": ("first_row", 4),
        "bwd_reduce": ("first", 256),
        "pack": ("first", 256),
        "tile_map": ("first_tile", 1),
    }.items():
        struct = STRUCTS.get(kind, "AttnParams")
        covered: dict[Any, list[int]] = {}
        for launch in launches_of(cut, kind):
            assert launch["grid"][0] <= limit
            start = getattr(fields(launch, struct), unit[0])
            assert start % unit[1] == 0
            groups = range(start // unit[1], start // unit[1] + launch["grid"][0])
            covered.setdefault(str(launch["bindings"]), []).extend(groups)
        whole_kind = launches_of(whole, kind)
        sizes = {str(launch["bindings"]): launch["grid"][0] for launch in whole_kind}
        assert covered == {key: list(range(size)) for key, size in sizes.items()}


def test_a_split_has_enough_steps_and_fills_the_gpu() -> None:
    decode = {"B": 1, "H": 32, "Hk": 8, "qL": 1, "kL": 4096, "D": 128, "Dv": 128}
    (launch,) = launches_of(plan(decode), "fwd")
    assert launch["grid"] == (32, 8, 1)  # 32 threadgroups on 40 cores: as many splits as allowed
    short = decode | {"kL": 300}
    (launch,) = launches_of(plan(short), "fwd")
    assert launch["grid"] == (32, 1, 1)  # ten steps do not make two splits of eight
    wide = decode | {"qL": 2048}
    (launch,) = launches_of(plan(wide), "fwd")
    assert launch["grid"][1] == 1  # 2048 threadgroups fill any GPU
    windowed = decode | {"causal": True, "window_left": 127}
    (launch,) = launches_of(plan(windowed), "fwd")
    assert launch["grid"] == (32, 1, 1)  # only 128 keys are visible, however long the cache is

    few = {"B": 1, "H": 8, "Hk": 1, "qL": 2048, "kL": 2048, "D": 128, "Dv": 128, "causal": True}
    made = plan(few, kind="backward")
    (launch,) = launches_of(made, "bwd_dkv")
    assert launch["grid"] == (64, 4, 1)  # 64 blocks for 40 cores x 3 x 2 slots
    assert len(launches_of(made, "bwd_reduce")) == 2
    assert not launches_of(plan(few | {"H": 64, "Hk": 32}, kind="backward"), "bwd_reduce")


def test_heads_take_turns_while_their_keys_fit_in_half_the_cache() -> None:
    long = {"B": 1, "H": 32, "Hk": 8, "qL": 2048, "kL": 2048, "D": 128, "Dv": 128}
    (launch,) = launches_of(plan(long), "fwd")
    # 24 MiB cache; keys and values of a key head are 1 MiB, shared by four query heads
    assert fields(launch, "AttnParams").heads_per_group == 32
    (launch,) = launches_of(plan(long | {"qL": 16384, "kL": 16384}), "fwd")
    assert fields(launch, "AttnParams").heads_per_group == 6
    (launch,) = launches_of(plan(long | {"qL": 131072, "kL": 131072}), "fwd")
    assert fields(launch, "AttnParams").heads_per_group == 1


@pytest.mark.parametrize(
    ("scale", "sign", "size"), [(0.25, 1, 0.25), (-0.25, -1, 0.25), (0.0, 0, 1.0), (3e38, 1, 3e38)]
)
def test_the_scale_is_split_into_sign_and_size(scale: float, sign: int, size: float) -> None:
    (launch,) = launches_of(plan({"scale": scale, "softcap": 20.0}), "fwd")
    params = fields(launch, "AttnParams")
    largest = float(np.finfo(np.float32).max)
    assert params.q_sign == sign
    assert params.scale == np.float32(scale)
    assert params.scale_log2 == pytest.approx(min(float(np.float32(size)) * np.log2(np.e), largest))
    assert 0 < params.scale_log2 <= largest
    assert params.softcap_in == pytest.approx(abs(scale) / 20)
    assert params.softcap_out_log2 == pytest.approx(20 * np.log2(np.e))


def test_an_operand_without_a_contiguous_last_axis_is_packed() -> None:
    made = plan(FEATURES["transposed"])
    packs = launches_of(made, "pack")
    assert [launch["bindings"][1][1] for launch in packs] == ["q", "k", "v"]
    q, k, v = (fields(launch, "PackParams") for launch in packs)
    assert (list(q.shape), list(q.strides)) == ([2, 4, 70, 64], [70 * 64 * 4, 1, 256, 4])
    assert (list(k.shape), list(k.strides)) == ([1, 2, 130, 64], [0, 130, 1, 260])  # one batch
    assert v.n == 2 * 2 * 130 * 64
    (launch,) = launches_of(made, "fwd")
    params = fields(launch, "AttnParams")
    assert (params.q.b, params.q.h, params.q.l) == (4 * 70 * 64, 70 * 64, 64)
    assert (params.k.b, params.k.h, params.k.l) == (0, 130 * 64, 64)  # and stays broadcast
    bound = {index: buffer for index, buffer, _ in launch["bindings"]}
    assert [bound[slot(name)] for name in "QKV"] == [pack["bindings"][0][1] for pack in packs]
    assert made["temporaries"][0] == ("packed", 2 * 4 * 70 * 64 * 2)


def test_a_tile_map_has_one_row_of_tiles_where_the_mask_is_broadcast() -> None:
    for strides, shape, expected in [
        ((36400, 9100, 130, 1), (2, 4, 70, 130), (4 * 15, 15, 5, 1)),
        ((0, 0, 130, 1), (1, 1, 70, 130), (0, 0, 5, 1)),
        ((130, 0, 0, 1), (2, 1, 1, 130), (5, 0, 0, 1)),
        ((0, 70, 1, 0), (1, 4, 70, 1), (0, 3, 1, 0)),
    ]:
        made = plan({"mask_kind": "boolean", "mask": strides})
        (tiles,) = launches_of(made, "tile_map")
        params = fields(tiles, "TileMapParams")
        assert (params.B, params.H, params.qL, params.kL) == shape
        (launch,) = launches_of(made, "fwd")
        tile_map = fields(launch, "AttnParams").tile_map
        assert (tile_map.b, tile_map.h, tile_map.q, tile_map.k) == expected
        size = shape[0] * shape[1] * -(-shape[2] // 32) * -(-shape[3] // 32)
        assert ("tile_map", size) in made["temporaries"]
        assert tiles["grid"] == (size, 1, 1)


def test_only_empty_problems_and_mask_gradients_are_filled() -> None:
    for case in CASES:
        fills = make(case)["fills"]
        assert fills == [] or case.name.startswith("mask gradient"), case.name
    size = 2 * 4 * 70
    assert plan({"kL": 0})["fills"] == [
        ("o", "zero", size * 64 * 2),
        ("lse", "minus_infinity", size * 4),
    ]
    assert plan({"kL": 0}, kind="backward")["fills"] == [("d_q", "zero", size * 64 * 2)]
    assert plan({"qL": 0}, kind="backward", d_v=False)["fills"] == [
        ("d_k", "zero", 2 * 2 * 130 * 64 * 2)
    ]
    for empty in ({"qL": 0}, {"B": 0}, {"H": 0}):
        made = plan(empty)
        assert (made["fills"], made["launches"], made["temporaries"]) == ([], [], [])


def test_without_keys_the_sinks_still_make_an_lse() -> None:
    (launch,) = plan({"kL": 0, "has_sinks": True, "mask_kind": "boolean", "causal": True})[
        "launches"
    ]
    bound = {index: buffer for index, buffer, _ in launch["bindings"]}
    assert (bound[slot("K")], bound[slot("V")]) == ("q", "q")  # an empty array cannot be bound
    assert launch["constants_on"] == ["align_K", "has_sinks"]


@pytest.mark.parametrize(
    ("changes", "operation", "reason", "words"),
    [
        ({"D": 100, "Dv": 100}, {}, "head_dim", "head dim 100, only for 64, 72,"),
        ({"D": 128, "Dv": 64}, {}, "head_dim", "head dim 128 (v: 64), only for 64,"),
        ({"qL": 2**30}, {}, "size", "query length"),
        ({"q_off": -(2**31)}, {}, "size", "query offset"),
        ({"B": 2**20, "H": 2**14, "Hk": 1, "qL": 2**20}, {}, "size", "threadgroups"),
        ({}, {"fwd_kernel": "flash_attn_nothing"}, "kernel_name", "flash_attn_nothing"),
        (
            {},
            {"fwd_kernel": "flash_attn_fwd_float16_d128_bq32_bk32_wm4_wn1"},
            "kernel_name",
            "d128",
        ),
        (
            {"mask_kind": "in_f32", "mask": (0, 0, 0, 1)},
            {"kind": "backward", "d_mask": True, "d_mask_strides": (0, 0, 0, 1)},
            "mask_gradient",
            "broadcast",
        ),
    ],
)
def test_what_no_kernel_can_do_is_said(
    changes: dict[str, Any], operation: dict[str, Any], reason: str, words: str
) -> None:
    answer = plan_module.load().plan(problem(**changes), operation, {})
    assert answer["unsupported"] == reason
    assert words in answer["detail"]
    with pytest.raises(ValueError, match=re.escape(answer["detail"])):
        plan_module.load().plan_calls(problem(**changes), operation, {})


def test_a_kernel_can_be_asked_for_by_name() -> None:
    for row in kernels().values():
        if row["kind"] not in TILED:
            continue
        asked = {"fwd": "fwd_kernel", "bwd_dq": "dq_kernel", "bwd_dkv": "dkv_kernel"}[row["kind"]]
        operation = {"kind": "forward" if row["kind"] == "fwd" else "backward", asked: row["name"]}
        made = make(Case("", problem(dtype=row["dtype"], D=row["d"], Dv=row["dv"]), operation))
        (launch,) = launches_of(made, row["kind"])
        assert launch["kernel"] == row["name"]
        assert launch["constants"][abi().constants["align_Q"]] == (70 % row["bq"] == 0)
        assert launch["constants"][abi().constants["align_K"]] == (130 % row["bk"] == 0)


def test_the_default_is_rank_zero() -> None:
    ranks = {
        row["rank"]
        for case in CASES
        for launch in make(case)["launches"]
        for row in [kernels()[launch["kernel"]]]
    }
    assert ranks == {0}


def test_misspelt_entries_are_errors() -> None:
    load = plan_module.load()
    with pytest.raises(ValueError, match="casual"):
        load.plan(problem(casual=True), {}, {})
    with pytest.raises(ValueError, match="kindd"):
        load.plan(problem(), {"kindd": "backward"}, {})
    with pytest.raises(ValueError, match="float64"):
        load.plan(problem(dtype="float64"), {}, {})
    with pytest.raises(TypeError, match="qL"):
        load.plan(problem(qL="many"), {}, {})


@pytest.mark.parametrize(
    ("architecture", "known", "cores", "slc_mib"),
    [
        ("applegpu_g13g", True, 16, 8),
        ("applegpu_g13s", True, 32, 24),
        ("applegpu_g14d", True, 76, 96),
        ("applegpu_g16s", True, 40, 24),
        ("applegpu_g17p", True, 6, 8),
        ("applegpu_g23s", True, 40, 24),  # newer than the table: as its newest
        ("applegpu_g13x", False, 8, 8),
        ("applegpu_g1", False, 8, 8),
        ("applegpu_gs", False, 8, 8),
        ("paravirtual", False, 8, 8),
        ("", False, 8, 8),
    ],
)
def test_devices_by_architecture(architecture: str, known: bool, cores: int, slc_mib: int) -> None:
    device = plan_module.load().device(architecture)
    assert device["known"] == known
    assert device["cores"] == cores
    assert device["slc_bytes"] == slc_mib << 20


def test_the_device_table_is_whole() -> None:
    rows = plan_module.load().device_classes()
    assert [row[:2] for row in rows] == [(g, c) for g in range(13, 18) for c in "pgsd"]


@pytest.mark.parametrize("name", ["d_q", "d_k", "d_v"])
def test_an_unwanted_gradient_goes_to_scratch_memory(name: str) -> None:
    """Its strides in the problem mean nothing then."""
    width = 64
    changes = FEATURES["f32 mask"] | {name: (10**12, 10**11, 10**10)}
    mask = {"d_mask": True, "d_mask_strides": (36400, 9100, 130, 1)}
    made = plan(changes, kind="backward", **mask, **{name: False})
    (launch,) = launches_of(made, "bwd_dq" if name == "d_q" else "bwd_dkv")
    bound = {index: buffer for index, buffer, _ in launch["bindings"]}
    buffer = bound[slot(name.replace("_", "").upper())]
    heads, length = (4, 70) if name == "d_q" else (2, 130)
    strides = getattr(fields(launch, "AttnParams"), name)
    row = (heads * length * width, length * width, width)
    assert (strides.b, strides.h, strides.l) == row
    assert made["temporaries"][buffer] == (name, 2 * heads * length * width * 2)


def test_heads_that_share_a_mask_gradient_take_turns() -> None:
    """The kernel adds to it without atomics."""
    for case in (case for case in CASES if case.name.startswith("mask gradient")):
        b_stride, h_stride, _, _ = case.operation["d_mask_strides"]
        seen: list[tuple[int, int]] = []
        adding: dict[int, list[tuple[int, int]]] = {}  # what the launches of a stage add to
        for launch in launches_of(make(case), "bwd_dq"):
            assert "has_dmask" in launch["constants_on"]
            p = fields(launch, "AttnParams")
            assert launch["grid"][0] % (p.heads_per_group * p.n_blocks) == 0  # whole groups
            first = p.first_threadgroup // p.n_blocks
            for head in range(first, first + launch["grid"][0] // p.n_blocks):
                b, h = divmod(head, p.H)
                seen.append((b, h))
                shared = (b if b_stride else 0, h if h_stride else 0)
                adding.setdefault(launch["stage"], []).append(shared)
        assert sorted(seen) == [(b, h) for b in range(2) for h in range(4)], case.name
        for heads in adding.values():
            assert len(set(heads)) == len(heads), case.name
