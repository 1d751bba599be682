"""The mistakes: what is changed where, which problem shows it, and which check has to complain."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Mutant:
    """One mistake."""

    name: str
    file: str  # a header, or "kernel"
    old: str
    new: str
    kernel: str  # pattern of the name of the kernel that is broken
    problem: dict[str, Any] = field(default_factory=dict)  # what shows it
    caught_by: str = r"^(o|lse|dq|dk|dv): "  # the complaint that names it
    mode: str = "fast"
    count: int = 1  # how often the text is there; all are changed


FWD, DQ, DKV = "fwd_float32_d64_", "bwd_dq_float32_d64_", "bwd_dkv_bfloat16_d64_"
FWD_IN_TURN = "fwd_float32_d128_"  # one buffer for K, then V
FWD_SPLIT, ROLE = "fwd_float32_d192.*_sd2", "bwd_dkv_float16_d128_.*wn2"
ROLE_SPLIT = "bwd_dkv_float32_d256_.*_sd2"
CAUSAL = {"causal": True, "qL": 70, "kL": 77}
WINDOW = {"window": (9, 4), "qL": 70, "kL": 77}
RAGGED = {"qL": 37, "kL": 45}

MUTANTS = (
    # masks and edges
    Mutant(
        "causal compare",
        "scores.h",
        "visible && k <= diagonal + right_reach(p)",
        "visible && k < diagonal + right_reach(p)",
        FWD,
        CAUSAL,
    ),
    Mutant(
        "window compare",
        "scores.h",
        "visible && k >= diagonal - p.window_left",
        "visible && k > diagonal - p.window_left",
        DQ,
        WINDOW,
    ),
    Mutant(
        "bool mask inverted",
        "scores.h",
        "return terms.mask[at] != 0;",
        "return terms.mask[at] == 0;",
        FWD,
        {"mask": "bool"},
    ),
    Mutant(
        "-inf taken for a number",
        "scores.h",
        "return value != -metal::numeric_limits<float>::infinity();",
        "return true;",
        FWD,
        # A row that sees nothing: elsewhere the number is low enough to hide the key as well.
        {"mask": "dtype", "mask_shape": "row"},
    ),
    Mutant(
        "segments compare",
        "scores.h",
        "same = terms.q_segments[q] == terms.k_segments[key];",
        "same = terms.q_segments[q] <= terms.k_segments[key];",
        DKV,
        {"segments": True, "qL": 80, "kL": 80},
    ),
    Mutant(
        "tail off by one",
        "scores.h",
        "bool visible = k < p.kL;",
        "bool visible = k <= p.kL;",
        FWD,
        RAGGED,
    ),
    Mutant(
        "loader reads a row too many",
        "loader.h",
        "if (c / kChunks < n_rows) {",
        "if (c / kChunks <= n_rows) {",
        FWD,
        RAGGED,
        r"out of bounds",
        "trace",
    ),
    Mutant(
        "whole tile staged from the wrong rows",
        "loader.h",
        "src += kStep * ld;",
        "src += (kStep - 1) * ld;",
        FWD,
    ),
    Mutant(
        "rest of a whole tile not staged",
        "loader.h",
        "if (thread_index < kRest) {",
        "if (thread_index + 1 < kRest) {",
        "fwd_float16_d72_",
        {},
        r"uninit",
        "trace",
    ),
    Mutant(
        "store writes a row too many",
        "tile.h",
        "if (row < n_rows) {",
        "if (row <= n_rows) {",
        DQ,
        RAGGED | {"layout": "cache"},
        r"elements beside it written",
    ),
    # which tiles are visited
    Mutant(
        "last key block skipped",
        "block.h",
        "last_key / BK + 1",
        "last_key / BK",
        FWD,
        CAUSAL,
    ),
    Mutant(
        "first query block skipped",
        "block.h",
        "range.begin = metal::max(0, k0 - right_reach(p) - p.q_off) / BQ;",
        "range.begin = metal::max(0, k0 - right_reach(p) - p.q_off) / BQ + 1;",
        DKV,
        CAUSAL,
    ),
    Mutant(
        "window's last query block skipped",
        "block.h",
        "last_row / BQ + 1",
        "last_row / BQ",
        DKV,
        WINDOW,
    ),
    Mutant(
        "diagonal tile taken for hidden",
        "scores.h",
        "if (k0 > last_diagonal + right_reach(p)) {",
        "if (k0 >= last_diagonal + right_reach(p)) {",
        FWD,
        {"causal": True, "qL": 65, "kL": 65},
    ),
    Mutant(
        "diagonal tile taken for open",
        "scores.h",
        "edge = edge || k_last > first_diagonal + right_reach(p);",
        "edge = edge || k_last > last_diagonal + right_reach(p);",
        FWD,
        CAUSAL,
    ),
    Mutant(
        "block mask read transposed",
        "scores.h",
        "terms.tile_map[i * p.tile_map.q + j * p.tile_map.k] != 0",
        "terms.tile_map[j * p.tile_map.q + i * p.tile_map.k] != 0",
        "fwd_float16_d64_bq32",
        {"block_mask": True, "qL": 96, "kL": 96},
    ),
    Mutant(
        "block mask not seen inside a large tile",
        "scores.h",
        "edge = edge || !all;",
        "edge = edge || false;",
        "fwd_float16_d64_bq64",
        {"block_mask": True, "qL": 128, "kL": 96},
    ),
    Mutant(
        "segment bounds of one record too few",
        "scores.h",
        "for (int t = first + 1; t <= last; ++t) {",
        "for (int t = first + 1; t < last; ++t) {",
        "fwd_float16_d64_bq64",
        {"segments": True, "qL": 128, "kL": 128},
    ),
    Mutant(
        "a split that drops its last block",
        "block.h",
        "int(int64_t(n) * (split + 1) / n_splits)",
        "int(int64_t(n) * (split + 1) / n_splits) - 1",
        FWD,
        {"splits": 2, "qL": 40, "kL": 130},
    ),
    # arithmetic
    Mutant(
        "row-major fragments",
        "tile.h",
        "at.row = short(((lane >> 4) << 2) | ((lane >> 1) & 3));\n"
        "  at.col = short((((lane >> 3) & 1) << 2) | ((lane & 1) << 1));",
        "at.row = short(lane >> 2);\n  at.col = short((lane & 3) << 1);",
        FWD,
    ),
    Mutant(
        "natural instead of binary logarithm of the sink",
        "kernel",
        "sinks[h] * kLog2E",
        "sinks[h]",
        FWD,
        {"sinks": True},
    ),
    Mutant(
        "LSE after normalising",
        "softmax.h",
        ": state.m[i] + metal::precise::log2(state.l[i]);",
        ": state.m[i];",
        FWD,
        {},
        r"^lse: ",
    ),
    Mutant(
        "accumulator not rescaled",
        "softmax.h",
        "acc.frag[i * TD + d] *= rescale;",
        "acc.frag[i * TD + d] *= 1.0f;",
        FWD,
        {"kL": 200},
    ),
    Mutant(
        "ALiBi's distance without abs",
        "scores.h",
        "float(metal::abs(k - diagonal))",
        "float(diagonal - k)",
        FWD,
        {"alibi": True},
    ),
    Mutant(
        "softcap without its slope",
        "scores.h",
        "slopes.frag[f][e] = 1.0f - t * t;",
        "slopes.frag[f][e] = 1.0f;",
        DQ,
        {"softcap": 2.0},
        r"^dq: ",
    ),
    Mutant(
        "delta added",
        "gradient.h",
        "p.frag[i * TC + j] * (d_p.frag[i * TC + j] - delta[i])",
        "p.frag[i * TC + j] * (d_p.frag[i * TC + j] + delta[i])",
        DQ,
        {},
        r"^dq: ",
    ),
    Mutant(
        "row without keys forgotten",
        "gradient.h",
        "return kNoKeysLse;",
        "return lse;",
        DKV,
        {"causal": True, "qL": 60, "kL": 33},
    ),
    Mutant(
        "mask gradient overwritten instead of added",
        "gradient.h",
        "d_mask[q * p.d_mask.q + k * p.d_mask.k] += d_s.frag[i * TC + j][e];",
        "d_mask[q * p.d_mask.q + k * p.d_mask.k] = d_s.frag[i * TC + j][e];",
        DQ,
        {"mask": "f32", "dmask": "bh"},
        r"^dmask: ",
    ),
    # heads and roles
    Mutant(
        "one head of the group forgotten",
        "kernel",
        "steps.end = p.gqa_factor * n_blocks;",
        "steps.end = (p.gqa_factor - 1) * n_blocks;",
        DKV,
        {"H": 6, "Hk": 2},
    ),
    Mutant(
        "one head of the group forgotten by the roles",
        "kernel",
        "steps.end = p.gqa_factor * n_blocks;",
        "steps.end = (p.gqa_factor - 1) * n_blocks;",
        ROLE,
        {"H": 6, "Hk": 2},
    ),
    Mutant(
        "key head of the wrong group",
        "kernel",
        "h / p.gqa_factor",
        "h % p.Hk",
        FWD,
        {"H": 6, "Hk": 2},
        count=2,
    ),
    Mutant(
        "slots of the row groups swapped",
        "kernel",
        "get_slot(P, slot, lane);",
        "get_slot(P, slots + (WM - 1 - row_group) * (R * BQ), lane);",
        ROLE,
        {"kL": 64},
        r"^dk: ",
    ),
    Mutant(
        "halves of the slot swapped",
        "exchange.h",
        "tile.frag[f].x = float(slot[(2 * f) * kSimd + lane])",
        "tile.frag[f].x = float(slot[(2 * f + 1) * kSimd + lane])",
        ROLE,
        {},
        r"^dk: ",
    ),
    Mutant(
        "V role multiplies a P that did not cross",
        "kernel",
        "round_to_slot<Slot>(X);",
        "multiply(X, 1.001f);",
        ROLE,
        {"spread": 0.1},
        r"^dv: ",
    ),
    Mutant(
        "partner's half of the scores forgotten",
        "kernel",
        "add_tile(S, exchange + (simd ^ 1) * (R * BK), lane);",
        "",
        FWD_SPLIT,
    ),
    Mutant(
        "dK without the scale",
        "kernel",
        "multiply(dK_acc, p.scale);",
        "",
        DKV,
        {},
        r"^dk: ",
    ),
)
