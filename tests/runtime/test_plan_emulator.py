"""Plans end to end on the emulator: forward, then gradients from its results, beside float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.runtime.plan_calls import Call, complaints, run

RNG = np.random.default_rng(7)
INF = np.float32(np.inf)
ALL = ("d_q", "d_k", "d_v", "d_mask")


def shows(*shape: int) -> Any:
    """Return a bool mask with hidden tiles, a row that sees nothing and visible rest."""
    mask = RNG.random(shape) < 0.6
    mask[..., :32, 32:64] = False
    mask[..., 5:6, :] = False
    return mask


def additive(*shape: int) -> Any:
    """Return a float32 mask with some keys hidden."""
    return np.where(RNG.random(shape) < 0.1, -INF, RNG.standard_normal(shape)).astype(np.float32)


def segments(B: int, L: int, parts: int) -> Any:
    """Return int32 ids of runs, in no order."""
    edges = np.sort(RNG.integers(0, L, (B, parts - 1)), axis=1)
    runs = (np.arange(L) >= edges[:, :, None]).sum(1)
    return np.take(np.array([7, -3, 40, 2**31 - 1, 0], np.int32), runs)


def packed(B: int, lengths_q: list[int], lengths_k: list[int]) -> dict[str, Any]:
    """Return sequences one after the other, each with its own diagonal."""
    q_ids = np.repeat(np.arange(len(lengths_q)), lengths_q).astype(np.int32)
    k_ids = np.repeat(np.arange(len(lengths_k)), lengths_k).astype(np.int32)
    starts = np.cumsum([0, *lengths_k[:-1]])
    diagonals = np.concatenate(
        [s + np.arange(n) + m - n for s, n, m in zip(starts, lengths_q, lengths_k, strict=True)]
    ).astype(np.int32)
    one = [np.ascontiguousarray(x[None]) for x in (q_ids, k_ids, diagonals)]
    q_ids, k_ids, diagonals = (np.repeat(x, B, axis=0) for x in one)
    return {"segments": (q_ids, k_ids), "row_diagonals": diagonals, "causal": True}


SMALL_GRID = {"max_threadgroups": 3}
MANY_CORES = {"architecture": "applegpu_g15d"}
CALLS = [
    Call("plain"),
    Call("aligned, causal", qL=64, kL=64, options={"causal": True}),
    Call("longer keys, causal", options={"causal": True}),
    Call("longer queries, causal", qL=77, kL=45, options={"causal": True}),
    Call("rows cut out", options={"causal": True, "q_off": 16}),
    Call("one row", qL=1, options={"causal": True}),
    Call("one key", kL=1),
    Call("no keys", kL=0),
    Call("no keys but sinks", kL=0, options={"sinks": np.float32([0.0, 1.0, -2.0, 4.0])}),
    Call("no rows", qL=0),
    Call("multi-query", Hk=1, dtype="bfloat16"),
    Call("transposed", layout="blhd", gradients="blhd", dtype="bfloat16"),
    Call("sliced cache", layout="cache", dtype="float32"),
    Call("reversed", layout="reversed", gradients="blhd"),
    Call("columns", layout="columns"),
    Call("thinned", layout="thinned", dtype="float32"),
    Call("broadcast keys", shared_batch=True, layout="thinned"),
    Call("negative scale, softcap", options={"scale": -0.3, "softcap": 2.0}),
    Call("scale zero", options={"scale": 0.0}),
    Call("window", options={"causal": True, "window": (20, 0)}),
    Call("two-sided window", options={"window": (9, 30)}),
    Call("bool mask", options={"mask": shows(2, 4, 45, 77)}),
    Call("bool mask of keys", options={"mask": shows(2, 1, 1, 77)}),
    Call("shared bool mask", options={"mask": shows(45, 77), "causal": True}),
    Call("block mask", options={"block_mask": np.uint8([[[1, 0, 1], [0, 1, 0]]])}),
    Call(
        "bool and block mask",
        options={"mask": shows(1, 4, 45, 77), "block_mask": np.uint8([[1, 1, 0], [0, 1, 1]])},
    ),
    Call("f32 mask", options={"mask": additive(2, 4, 45, 77)}, wanted=ALL),
    Call("f32 mask of heads", options={"mask": additive(1, 4, 45, 77)}, wanted=ALL),
    Call("f32 mask of batches", options={"mask": additive(2, 1, 45, 77)}, wanted=ALL),
    Call("one f32 mask", options={"mask": additive(1, 1, 45, 77)}, wanted=("d_mask",)),
    Call("mask in dtype", options={"mask": additive(45, 77).astype(np.float16)}),
    Call("segments", options={"segments": (segments(2, 45, 3), segments(2, 77, 4))}),
    Call("shared segments", options={"segments": (segments(1, 45, 3), segments(1, 77, 3))}),
    Call(
        "shared segments, own diagonals",
        options={
            "segments": (np.zeros((1, 45), np.int32), np.zeros((1, 77), np.int32)),
            "row_diagonals": np.arange(45, dtype=np.int32) + np.int32([[0], [32]]),
            "causal": True,
        },
    ),
    Call("packed", options=packed(2, [10, 1, 34], [20, 1, 56])),
    Call(
        "packed window, alibi",
        options={
            **packed(1, [10, 1, 34], [20, 1, 56]),
            "window": (8, 0),
            "alibi": np.float32([[0.1, 0.2, 0.3, 0.4], [0.5, 0.1, 0.0, -0.1]]),
        },
    ),
    Call("alibi", options={"alibi": np.float32([0.5, 0.25, 0.125, 0.0]), "causal": True}),
    Call("sinks", options={"sinks": np.float32([0.0, 1.0, -2.0, 4.0]), "causal": True}),
    Call("dlse", d_lse=True),
    Call("dlse without keys for some rows", d_lse=True, qL=77, kL=45, options={"causal": True}),
    Call("split", n_splits=3),
    Call("split, strided gradients", n_splits=2, gradients="blhd", options={"causal": True}),
    Call("split, only dV", n_splits=4, wanted=("d_v",)),
    Call("split with sinks", n_splits=3, options={"sinks": np.float32([0.0, 1.0, -2.0, 4.0])}),
    Call("more splits than steps", n_splits=8, qL=8, kL=33, options={"causal": True}),
    Call("only dK", wanted=("d_k",)),
    Call("only dQ", wanted=("d_q",)),
    Call("small grid", device=SMALL_GRID, layout="columns", options={"mask": shows(45, 77)}),
    Call("small grid, split", device=SMALL_GRID, n_splits=2),
    Call("as on an M3 Ultra", B=1, H=2, Hk=1, qL=40, kL=600, device=MANY_CORES),
    Call("128", dtype="bfloat16", D=128, Dv=128, options={"causal": True}),
    Call("128, softcap", dtype="float16", D=128, Dv=128, options={"softcap": 3.0}),
    Call("128, split", dtype="bfloat16", D=128, Dv=128, n_splits=3),
    Call("MLA", dtype="bfloat16", D=192, Dv=128, options={"causal": True}, layout="blhd"),
    Call("MLA, split", dtype="bfloat16", D=192, Dv=128, n_splits=2, gradients="blhd"),
    Call("256", D=256, Dv=256, Hk=1, options={"causal": True}),
    Call("256 in float32", dtype="float32", D=256, Dv=256, B=1, n_splits=2),
    Call("80", dtype="bfloat16", D=80, Dv=80),
]


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.name)
def test_results_are_within_their_bounds(call: Call) -> None:
    assert complaints(call, run(call)) == []
