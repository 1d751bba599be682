"""Faults put into the helper kernels, each of which a test of theirs must catch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class HelperMutant:
    """One mistake in a helper kernel, and the arguments of the test that has to fail."""

    name: str
    kind: str
    old: str
    new: str
    arguments: dict[str, Any] = field(default_factory=dict)


HELPER_MUTANTS = (
    HelperMutant(
        "natural instead of binary dLSE",
        "bwd_delta",
        "sum - kLog2E * d_lse[row]",
        "sum - d_lse[row]",
        {"dv": 64},
    ),
    HelperMutant(
        "first row ignored",
        "bwd_delta",
        "p.first_row + int64_t(threadgroup_pos.x)",
        "int64_t(threadgroup_pos.x)",
        {"dv": 64},
    ),
    HelperMutant(
        "first split left out",
        "bwd_reduce",
        "for (int s = 0; s < p.n_splits; ++s) {",
        "for (int s = 1; s < p.n_splits; ++s) {",
        {"layout": "contiguous"},
    ),
    HelperMutant(
        "parts joined without weights",
        "fwd_merge",
        "sum += weight * O_partial",
        "sum += O_partial",
        {"dv": 64},
    ),
    HelperMutant(
        "LSE of a row that no part saw",
        "fwd_merge",
        ": -metal::numeric_limits<float>::infinity();",
        ": m;",
        {"dv": 64},
    ),
    HelperMutant(
        "last row of a tile not looked at",
        "tile_map",
        "metal::min((i + 1) * kMapTile, p.qL)",
        "metal::min((i + 1) * kMapTile, p.qL) - 1",
        {"with_block": False},
    ),
    HelperMutant(
        "block mask ignored",
        "tile_map",
        "if (p.has_block != 0) {",
        "if (p.has_block == 2) {",
        {"with_block": True},
    ),
    HelperMutant(
        "least id twice",
        "row_bounds",
        "record.y = simd_max(id);",
        "record.y = simd_min(id);",
        {"has": "segments"},
    ),
    HelperMutant(
        "axes in the other order",
        "pack",
        "for (short axis = 3; axis >= 0; --axis) {",
        "for (short axis = 0; axis < 4; ++axis) {",
    ),
)
