"""Long calls in pieces, so that no command buffer holds an Apple GPU for long.

macOS ends a command buffer that keeps the GPU for seconds, and until it is over the screen waits.
MLX commits between primitives, never inside one: so a call whose predicted time passes the budget
becomes several primitives, each with some of the batches and key heads. These share nothing, so
every piece has the same bits as in the whole, forward and backward. Where one key head of one batch
is still too much, each piece is cut on into ranges of queries, and of keys in the backward.
"""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any

import mlx.core as mx

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flashrt._call import Call

DEFAULT_BUDGET_MS = 1000.0
_RANGE_GRAIN = 32  # rows: ranges are cut between tiles of masks (runtime/src/attention_ranges.cpp)


def pieces_of(
    call: Call, milliseconds: Mapping[str, float], budget_ms: float | None
) -> tuple[int, int]:
    """Into how many parts batches and key heads are cut to stay within the budget."""
    B, _, Hk, *_ = call.shape
    budget = DEFAULT_BUDGET_MS if budget_ms is None else budget_ms
    wanted = max(1, math.ceil(min(max(milliseconds.values()) / budget, max(1, B * Hk))))
    batches = max(1, min(B, wanted))
    return batches, max(1, min(Hk, math.ceil(wanted / batches)))


def ranges_of(call: Call, milliseconds: Mapping[str, float], budget_ms: float | None) -> int:
    """Into how many ranges a piece is cut when batches and key heads alone do not do."""
    B, _, Hk, qL, kL, *_ = call.shape
    budget = DEFAULT_BUDGET_MS if budget_ms is None else budget_ms
    least = max(B * Hk, 1)
    if max(milliseconds.values()) / least <= budget:
        return 1
    # Cut, the backward takes a primitive of its own for dQ and for dK, dV, and more of each.
    tiles = max(qL, kL) / _RANGE_GRAIN
    return max(2, math.ceil(min(milliseconds["forward"] / least / budget, tiles)))


def cut(call: Call, batches: int, heads: int) -> list[list[Call]]:
    """Cut a call into ``batches`` rows of ``heads`` calls each; only views are made."""
    B, H, Hk, *_ = call.shape
    group = H // Hk
    batch_edges = _edges(B, batches)
    head_edges = _edges(Hk, heads)
    query_edges = [edge * group for edge in head_edges]

    def parts(x: mx.array | None, head_axis: int | None) -> list[list[mx.array | None]]:
        """Cut x along axis 0, where it has all batches, and along its axis of heads."""
        if x is None:
            return [[None] * heads] * batches
        by_batch = mx.split(x, batch_edges, 0) if x.shape[0] == B != 1 else [x] * batches
        if head_axis is None or x.shape[head_axis] == 1:
            return [[row] * heads for row in by_batch]
        edges = head_edges if x.shape[head_axis] == Hk else query_edges
        return [list(mx.split(row, edges, head_axis)) for row in by_batch]

    named: dict[str, Any] = {
        **{name: parts(getattr(call, name), 1) for name in ("q", "k", "v")},
        **{name: parts(getattr(call, name), 1) for name in ("mask", "block_mask", "alibi_slopes")},
        **{name: parts(getattr(call, name), None) for name in ("q_segments", "k_segments")},
        "row_diagonals": parts(call.row_diagonals, None),
    }
    sinks = [call.sinks] * heads if call.sinks is None else mx.split(call.sinks, query_edges)
    return [
        [
            call._replace(sinks=sinks[j], **{name: cells[i][j] for name, cells in named.items()})
            for j in range(heads)
        ]
        for i in range(batches)
    ]


def join(rows: list[list[mx.array]]) -> mx.array:
    """Join (batch, head, ...) arrays that :func:`cut` made apart."""
    by_batch = [mx.concatenate(row, 1) for row in rows]
    return mx.concatenate(by_batch, 0)


def _edges(n: int, parts: int) -> list[int]:
    """Return the inner edges of ``parts`` parts of n, as even as can be."""
    sizes = [n // parts + (i < n % parts) for i in range(parts)]
    return list(itertools.accumulate(sizes))[:-1]
