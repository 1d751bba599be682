"""Problems that between them take every path of the planner, as it is called with them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.kernel.abi import abi
from tests.runtime import plan_module


@dataclass(frozen=True)
class Case:
    """Arguments of one plan."""

    name: str
    problem: dict[str, Any]
    operation: dict[str, Any] = field(default_factory=dict)
    device: dict[str, Any] = field(default_factory=lambda: {"architecture": "applegpu_g15s"})


def problem(**changes: Any) -> dict[str, Any]:
    """Return a plain problem with some entries changed."""
    base = {"dtype": "float16", "B": 2, "H": 4, "Hk": 2, "qL": 70, "kL": 130, "D": 64, "Dv": 64}
    return base | {"scale": 0.125} | changes


MASK = {"mask": (70 * 130, 0, 130, 1)}
FEATURES: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"causal": True},
    "aligned": {"qL": 128, "kL": 128},
    "window": {"causal": True, "window_left": 40},
    "two-sided window": {"window_left": 20, "window_right": 30},
    "softcap": {"softcap": 30.0},
    "bool mask": {"mask_kind": "boolean", **MASK},
    "additive mask": {"mask_kind": "in_dtype", **MASK},
    "f32 mask": {"mask_kind": "in_f32", **MASK},
    "block mask": {"has_block_mask": True, "block_mask": (0, 15, 5, 1)},
    "bool and block mask": {
        "mask_kind": "boolean",
        **MASK,
        "has_block_mask": True,
        "block_mask": (0, 15, 5, 1),
    },
    "segments": {"has_segments": True, "q_segments_b": 70, "k_segments_b": 130},
    "packed": {
        "has_segments": True,
        "has_row_diagonals": True,
        "causal": True,
        "q_segments_b": 0,
        "k_segments_b": 130,
        "row_diagonals_b": 70,
    },
    "diagonals": {"has_row_diagonals": True, "causal": True, "row_diagonals_b": 70},
    "sinks": {"has_sinks": True},
    "alibi": {"has_alibi": True, "alibi_b": 4, "alibi_h": 1},
    "dlse": {"has_dlse": True},
    "transposed": {
        "q": (70 * 64 * 4, 1, 4 * 64, 4),
        "k": (0, 130, 1, 260),
        "v": (16640, 8320, 1, 130),
    },
    "float32": {"dtype": "float32"},
    "MLA": {"D": 192, "Dv": 128, "dtype": "bfloat16"},
    "wide": {"D": 256, "Dv": 256, "Hk": 1},
}

OPERATIONS: dict[str, dict[str, Any]] = {
    "forward": {},
    "split forward": {"n_splits": 3},
    "backward": {"kind": "backward"},
    "split backward": {"kind": "backward", "n_splits": 2},
    "dq": {"kind": "backward", "d_k": False, "d_v": False},
    "dk": {"kind": "backward", "d_q": False, "d_v": False},
    "dv, split": {"kind": "backward", "d_q": False, "d_k": False, "n_splits": 2},
}


def cases() -> list[Case]:
    """Every feature with every operation, and what only some of them have."""
    found = [
        Case(f"{operation_name}: {feature}", problem(**changes), operation)
        for feature, changes in FEATURES.items()
        for operation_name, operation in OPERATIONS.items()
    ]
    for shared, strides in {
        "own": (4 * 9100, 9100, 130, 1),
        "heads": (9100, 0, 130, 1),
        "batches": (0, 9100, 130, 1),
        "all": (0, 0, 130, 1),
    }.items():
        changes = FEATURES["f32 mask"]
        for d_q in (True, False):
            operation = {"kind": "backward", "d_q": d_q, "d_mask": True, "d_mask_strides": strides}
            found.append(Case(f"mask gradient: {shared}, {d_q=}", problem(**changes), operation))
    small = {"architecture": "applegpu_g15s", "max_threadgroups": 3}
    found += [
        Case(f"small grid, {name}", problem(**FEATURES["bool mask"]), operation, small)
        for name, operation in OPERATIONS.items()
    ]
    found.append(Case("sinks alone", problem(kL=0, has_sinks=True, causal=True)))
    return found


def fields(launch: dict[str, Any], struct: str) -> Any:
    """Return the parameters of a launch as the struct that they are."""
    return abi().structs[struct].from_buffer_copy(launch["params"])


TILED = ("fwd", "bwd_dq", "bwd_dkv")
STRUCTS = {
    "bwd_delta": "DeltaParams",
    "bwd_reduce": "ReduceParams",
    "fwd_merge": "MergeParams",
    "pack": "PackParams",
    "tile_map": "TileMapParams",
    "row_bounds": "RowBoundsParams",
}


def make(case: Case) -> dict[str, Any]:
    """Plan a case that kernels exist for."""
    plan = plan_module.load().plan(case.problem, case.operation, case.device)
    assert "unsupported" not in plan, plan
    return plan


def plan(changes: dict[str, Any] | None = None, **operation: Any) -> dict[str, Any]:
    """Plan the plain problem with changes, on an M3 Max."""
    return make(Case("", problem(**(changes or {})), operation))


def kernels() -> dict[str, dict[str, Any]]:
    """Rows of the registry by name."""
    return {row["name"]: row for row in plan_module.load().kernels()}


def launches_of(plan: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    """Return the launches of one kind of kernel."""
    return [launch for launch in plan["launches"] if kernels()[launch["kernel"]]["kind"] == kind]
