"""Launches kernels of the registry on the emulator, with parameters filled from the shapes.

Independent of the host's plan on purpose: a kernel is right by the ABI's words alone.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests import emulator
from tests.kernel import problems
from tests.kernel.abi import ROOT, abi, slot
from tests.kernel.problems import LOG2E, Problem, ceil_div
from tests.kernel.registry import Kernel, by_kind
from tests.kernel.storage import Strided, place

Array = NDArray[Any]
CHECKED = "trace"  # the emulator's mode that watches most
NO_LIMIT = 2**30  # of a window
GUARD = 256  # elements of poison around every tensor where the emulator does not watch bounds


@functools.cache
def library(kernel: Kernel, mode: str) -> emulator.Library:
    """One kernel, compiled."""
    return emulator.build([kernel.source], mode=mode, include=[ROOT / "runtime/metal"])


@dataclass
class Run:
    """How to launch, and what the launches reported."""

    mode: str = "fast"
    seed: int | None = None  # of the order in which lanes run
    heads_per_group: int | None = None  # None: all heads take turns
    parts: int = 1  # launches that the threadgroups are spread over
    build: Callable[[Kernel, str], emulator.Library] = library
    faults: list[str] = field(default_factory=list)
    counters: dict[str, int] = field(default_factory=dict)

    def launch(
        self,
        kernel: Kernel,
        grid: tuple[int, int, int],
        buffers: Mapping[int, Any],
        constants: Mapping[str, bool] | None = None,
    ) -> None:
        """Run one launch; faults and counters add up."""
        values = {**dict.fromkeys(abi().constants, False), **(constants or {})}
        indices = {abi().constants[n]: value for n, value in values.items()}
        report = self.build(kernel, self.mode).launch(
            kernel.name,
            grid=grid,
            group=(32, kernel.wm * kernel.wn, 1) if kernel.d else (kernel.threads, 1, 1),
            buffers=dict(buffers),
            constants=indices,
            seed=self.seed,
        )
        self.faults += [f"{fault.kind}: {fault.message}" for fault in report.faults]
        for name, count in report.counters.items():
            if name == "threadgroup_memory_bytes":
                self.counters[name] = max(self.counters.get(name, 0), count)
            else:
                self.counters[name] = self.counters.get(name, 0) + count

    def tensor(
        self, p: Problem, shape: tuple[int, ...], values: Array | None, layout: str = ""
    ) -> Strided:
        """Store a (B,H,L,D) tensor in the problem's layout."""
        B, H, L, D = shape
        guard = GUARD if self.mode == "fast" else 0
        return place(
            values,
            (B, H, L, D),
            p.dtype,
            layout or p.layout,
            guard=guard,
            poison=p.poison,
        )


def bind(s: Strided) -> emulator.Buffer:
    """Bind a tensor at its first element."""
    return emulator.Buffer(s.base, s.offset_bytes)


def constants(kernel: Kernel, p: Problem) -> dict[str, bool]:
    """Every function constant, as the host must set it."""
    return {
        "align_Q": p.qL % kernel.bq == 0,
        "align_K": p.kL % kernel.bk == 0,
        "has_mask": p.mask != "none",
        "do_causal": p.causal,
        "has_block_mask": p.block_mask or p.mask == "bool",
        "has_window": p.window is not None,
        "has_softcap": p.softcap is not None,
        "has_sinks": p.sinks,
        "has_alibi": p.alibi,
        "has_segments": p.segments,
        "mask_is_bool": p.mask == "bool",
        "mask_is_f32": p.mask == "f32",
        "has_row_diagonals": p.row_diagonals,
        "has_splits": p.splits > 1 and kernel.kind != "bwd_dq",  # dq does not split
        "has_dmask": p.dmask != "none" and kernel.kind == "bwd_dq",
    }


def strides3(s: Strided) -> Any:
    """Batch, head and row strides as the ABI has them."""
    return abi().structs["Strides3"](*s.strides)


def strides4(array: Array, shape: tuple[int, int, int, int]) -> Any:
    """Strides of an array broadcast to a shape, as the ABI has them."""
    view = np.broadcast_to(array, shape)
    return abi().structs["Strides4"](*(s // array.itemsize for s in view.strides))


def _root(array: Array) -> Array:
    """Bind the whole memory that a slice looks into: it starts where the slice does."""
    return array.base if isinstance(array.base, np.ndarray) else array


@dataclass
class Call:
    """One problem in memory: parameters and the buffers that all kernels share."""

    params: Any
    buffers: dict[int, Any]

    def with_blocks(self, kernel: Kernel, p: Problem, heads_per_group: int | None) -> int:
        """Fill in what depends on the kernel; returns the number of threadgroups along x."""
        by_key = kernel.kind == "bwd_dkv"
        heads = p.Hk if by_key else p.H
        self.params.n_blocks = ceil_div(p.kL, kernel.bk) if by_key else ceil_div(p.qL, kernel.bq)
        self.params.heads_per_group = heads_per_group or heads
        self.params.n_splits = 1 if kernel.kind == "bwd_dq" else p.splits
        return int(p.B * heads * self.params.n_blocks)


def prepare(p: Problem, options: Mapping[str, Any], tensors: Mapping[str, Strided]) -> Call:
    """Parameters and optional operands of a problem whose tensors are in memory."""
    left, right = p.window if p.window is not None else (-1, -1)
    scale = p.scale_value
    softcap = np.float32(p.softcap or 1.0)
    shape = (p.B, p.H, p.qL, p.kL)
    params = abi().structs["AttnParams"](
        B=p.B,
        H=p.H,
        Hk=p.Hk,
        gqa_factor=p.H // p.Hk,
        qL=p.qL,
        kL=p.kL,
        q_off=p.off,
        window_left=left if left >= 0 else NO_LIMIT,
        window_right=0 if p.causal else right if right >= 0 else NO_LIMIT,
        n_splits=1,
        q_sign=float(np.sign(scale)),
        scale=scale,
        scale_log2=abs(scale) * LOG2E if scale else LOG2E,
        softcap_in=abs(scale) / softcap,
        softcap_out_log2=softcap * LOG2E,
        q_map_tiles=ceil_div(p.qL, 32),
        k_map_tiles=ceil_div(p.kL, 32),
    )
    for name, tensor in tensors.items():
        setattr(params, name, strides3(tensor))
    buffers: dict[int, Any] = {}
    if "mask" in options:
        mask = options["mask"]
        params.mask = strides4(mask, shape)
        root = _root(mask)
        buffers[slot("Mask")] = root.view(np.uint8) if root.dtype == np.bool_ else root
    if p.block_mask or p.mask == "bool":
        # A block mask alone is bound as it is; a bool mask goes through a tile map of every head.
        tiles = problems.tile_map(p, dict(options)) if p.mask == "bool" else options["block_mask"]
        params.tile_map = strides4(tiles, (p.B, p.H, ceil_div(p.qL, 32), ceil_div(p.kL, 32)))
        buffers[slot("TileMap")] = tiles
    if "sinks" in options:
        buffers[slot("Sinks")] = options["sinks"]
    if "alibi" in options:
        slopes = options["alibi"]
        params.alibi_b, params.alibi_h = (p.H if slopes.ndim == 2 else 0), 1
        buffers[slot("Alibi")] = slopes
    q_ids, k_ids = options.get("segments", (None, None))
    positions = options.get("row_diagonals")
    if q_ids is not None:
        params.q_segments_b, params.k_segments_b = p.qL, p.kL
        buffers[slot("QSegments")], buffers[slot("KSegments")] = q_ids, k_ids
        k_bounds = problems.row_bounds(k_ids, None, p.kL)
        params.k_bounds_b = k_bounds.shape[1]
        buffers[slot("KBounds")] = k_bounds
    if positions is not None:
        params.row_diagonals_b = p.qL if positions.shape[0] > 1 else 0
        buffers[slot("RowDiagonals")] = positions
    if q_ids is not None or positions is not None:
        q_bounds = problems.row_bounds(q_ids, positions, p.qL)
        params.q_bounds_b = q_bounds.shape[1] if q_bounds.shape[0] == p.B else 0
        buffers[slot("QBounds")] = q_bounds
    return Call(params, buffers)


def _run_tiled(run: Run, kernel: Kernel, p: Problem, call: Call, writes: Mapping[int, Any]) -> None:
    total = call.with_blocks(kernel, p, run.heads_per_group)
    edges = [total * i // run.parts for i in range(run.parts + 1)]
    if "b" in p.dmask and kernel.kind == "bwd_dq":
        # Heads that share an element of the mask's gradient add to it one after the other.
        call.with_blocks(kernel, p, 1)
        edges = list(range(0, total + 1, call.params.n_blocks))
    splits = call.params.n_splits
    for first, last in itertools.pairwise(edges):
        if first == last:
            continue
        call.params.first_threadgroup = first
        buffers = {**call.buffers, **writes, slot("Params"): bytes(call.params)}
        run.launch(kernel, (last - first, splits, 1), buffers, constants(kernel, p))


def empty(*shape: int) -> Array:
    """float32 memory that nothing has written yet."""
    return np.full(shape, np.nan, np.float32)


@dataclass(frozen=True, slots=True)
class Outputs:
    """What a kernel left behind."""

    arrays: dict[str, Array]
    stray: dict[str, int]  # elements written outside each output


def forward(run: Run, kernel: Kernel, p: Problem, t: problems.Tensors) -> Outputs:
    """O and the log2 LSE; joined by the merge kernel when the keys are split."""
    q = run.tensor(p, t.q.shape, t.q)
    k = run.tensor(p, t.k.shape, t.k)
    v = run.tensor(p, t.v.shape, t.v)
    o = run.tensor(p, t.d_o.shape, None)
    lse = empty(p.B, p.H, p.qL)
    call = prepare(p, t.options, {"q": q, "k": k, "v": v, "o": o})
    call.buffers |= {slot("Q"): bind(q), slot("K"): bind(k), slot("V"): bind(v)}
    writes: dict[int, Any] = {slot("O"): bind(o), slot("Lse"): lse}
    if p.splits > 1:
        o_partial = empty(p.splits, p.B, p.H, p.qL, p.dv)
        lse_partial = empty(p.splits, p.B, p.H, p.qL)
        writes |= {slot("OPartial"): o_partial, slot("LsePartial"): lse_partial}
    _run_tiled(run, kernel, p, call, writes)
    if p.splits > 1:
        merge(run, p, o_partial, lse_partial, o, lse)
    return Outputs({"o": o.view, "lse": lse}, {"o": o.stray_writes()})


def gradient(
    run: Run, kernel: Kernel, p: Problem, t: problems.Tensors, lse: Array, delta: Array
) -> Outputs:
    """dQ, or dK and dV, from a given log2 LSE and delta."""
    q = run.tensor(p, t.q.shape, t.q)
    k = run.tensor(p, t.k.shape, t.k)
    v = run.tensor(p, t.v.shape, t.v)
    d_o = run.tensor(p, t.d_o.shape, t.d_o)
    shapes = {"d_q": t.q.shape} if kernel.kind == "bwd_dq" else {"d_k": t.k.shape, "d_v": t.v.shape}
    outputs = {name: run.tensor(p, shape, None) for name, shape in shapes.items()}
    call = prepare(p, t.options, {"q": q, "k": k, "v": v, "d_o": d_o, **outputs})
    call.buffers |= {slot("Q"): bind(q), slot("K"): bind(k), slot("V"): bind(v)}
    call.buffers |= {slot("DO"): bind(d_o), slot("Lse"): lse, slot("Delta"): delta}
    slots = {"d_q": "DQ", "d_k": "DK", "d_v": "DV"}
    writes: dict[int, Any] = {slot(slots[name]): bind(s) for name, s in outputs.items()}
    partials = {}
    d_mask = np.zeros(p.dmask_shape, np.float32)
    if constants(kernel, p)["has_dmask"]:
        call.params.d_mask = strides4(d_mask, (p.B, p.H, p.qL, p.kL))
        writes[slot("DMask")] = d_mask
    if constants(kernel, p)["has_splits"]:
        partials = {name: empty(p.splits, *shape) for name, shape in shapes.items()}
        writes |= {slot(slots[name] + "Partial"): a for name, a in partials.items()}
    _run_tiled(run, kernel, p, call, writes)
    for name, partial in partials.items():
        joined = run.tensor(p, shapes[name], None)
        reduce_splits(run, p, partial, joined)
        outputs[name] = joined
    arrays = {name.replace("_", ""): s.view for name, s in outputs.items()}
    stray = {name.replace("_", ""): s.stray_writes() for name, s in outputs.items()}
    if constants(kernel, p)["has_dmask"]:
        arrays["dmask"] = d_mask
    return Outputs(arrays, stray)


def _helper(kind: str, dtype: str) -> Kernel:
    (kernel,) = by_kind(kind, dtype)
    return kernel


def rows_grid(kernel: Kernel, rows: int) -> tuple[int, int, int]:
    """One simdgroup per row."""
    return (ceil_div(rows, kernel.threads // 32), 1, 1)


def elements_grid(kernel: Kernel, n: int) -> tuple[int, int, int]:
    """One thread per element."""
    return (ceil_div(n, kernel.threads), 1, 1)


def merge(
    run: Run, p: Problem, o_partial: Array, lse_partial: Array, o: Strided, lse: Array
) -> None:
    """Join the key splits of a forward."""
    kernel = _helper("fwd_merge", p.dtype)
    params = abi().structs["MergeParams"](
        B=p.B, H=p.H, qL=p.qL, Dv=p.dv, n_splits=p.splits, o=strides3(o)
    )
    buffers = {
        slot("HelperParams"): bytes(params),
        slot("HelperOut"): bind(o),
        slot("HelperIn0"): o_partial,
        slot("HelperIn1"): lse_partial,
        slot("HelperIn2"): lse,
    }
    run.launch(kernel, rows_grid(kernel, p.B * p.H * p.qL), buffers)


def reduce_splits(run: Run, p: Problem, partial: Array, out: Strided) -> None:
    """Sum the splits of a gradient."""
    kernel = _helper("bwd_reduce", p.dtype)
    n = partial[0].size
    _, H, L, D = partial[0].shape
    params = abi().structs["ReduceParams"](n=n, H=H, L=L, D=D, n_splits=p.splits, out=strides3(out))
    buffers = {
        slot("HelperParams"): bytes(params),
        slot("HelperOut"): bind(out),
        slot("HelperIn0"): partial,
    }
    run.launch(kernel, elements_grid(kernel, n), buffers)
