"""Calls of the planned operation on numpy arrays, and how far off the reference they end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests import reference, tolerance
from tests.runtime import plan_module
from tests.runtime.plan_executor import execute
from tests.runtime.plan_problems import kernels

Array = NDArray[Any]
NUMPY = {"float16": np.float16, "bfloat16": np.uint16, "float32": np.float32}
LN2 = np.log(2.0)


def place(values: Array, layout: str) -> Array:
    """Return a copy of a (B,H,L,D) array in a memory layout; NaN wherever no kernel may look."""
    B, H, L, D = values.shape

    def memory(*shape: int) -> Array:
        return np.full(shape, 0xFFFF if values.dtype == np.uint16 else np.nan, values.dtype)

    view = {
        "contiguous": lambda: memory(B, H, L, D),
        "blhd": lambda: memory(B, L, H, D).swapaxes(1, 2),
        "cache": lambda: memory(B, H, L + 7, D)[:, :, 2 : L + 2],
        "reversed": lambda: memory(B, H, L, D)[:, ::-1, ::-1],
        "columns": lambda: memory(B, H, D, L).swapaxes(2, 3),  # the last axis is not contiguous
        "thinned": lambda: memory(B, H, L, 2 * D)[..., ::2],
    }[layout]()
    view[...] = values
    return view


@dataclass
class Call:
    """Shapes, memory layouts and options of one attention, and how it is planned."""

    name: str
    dtype: str = "float16"
    B: int = 2
    H: int = 4
    Hk: int = 2
    qL: int = 45
    kL: int = 77
    D: int = 64
    Dv: int = 64
    layout: str = "contiguous"  # of q, k, v, o and dO
    gradients: str = "contiguous"  # layout of dQ, dK, dV
    options: dict[str, Any] = field(default_factory=dict)  # as the reference takes them
    d_lse: bool = False
    shared_batch: bool = False  # k and v are one batch, broadcast
    n_splits: int = 0
    device: dict[str, Any] = field(default_factory=dict)
    wanted: tuple[str, ...] = ("d_q", "d_k", "d_v")

    def values(self) -> dict[str, Array]:
        """Return q, k, v, dO and dLSE, the same on every call."""
        rng = np.random.default_rng(len(self.name) + self.qL)
        Bk = 1 if self.shared_batch else self.B

        def normal(*shape: int) -> Array:
            return reference.narrow(rng.standard_normal(shape), self.dtype)

        tensors = {
            "q": normal(self.B, self.H, self.qL, self.D),
            "k": normal(Bk, self.Hk, self.kL, self.D),
            "v": normal(Bk, self.Hk, self.kL, self.Dv),
            "d_o": normal(self.B, self.H, self.qL, self.Dv),
        }
        if self.d_lse:
            tensors["d_lse"] = rng.standard_normal((self.B, self.H, self.qL)).astype(np.float32)
        return tensors

    def problem(self, tensors: Mapping[str, Array]) -> dict[str, Any]:
        """Describe the call to the planner."""
        o = self.options
        scores = (self.B, self.H, self.qL, self.kL)
        p: dict[str, Any] = {name: getattr(self, name) for name in PLAIN}
        p["scale"] = o.get("scale", self.D**-0.5)
        p |= {name: o[name] for name in ("causal", "softcap", "q_off") if name in o}
        p["window_left"], p["window_right"] = o.get("window", (-1, -1))
        p["has_dlse"] = self.d_lse
        for name in ("q", "k", "v", "o", "d_o"):
            if name in tensors:
                p[name] = strides(tensors[name])
        for name in ("d_q", "d_k", "d_v"):
            if name in tensors:
                p[name] = strides(tensors[name])[:3]
        if "mask" in o:
            mask = o["mask"]
            same = mask.dtype == NUMPY[self.dtype]
            p["mask_kind"] = (
                "boolean" if mask.dtype == np.bool_ else "in_dtype" if same else "in_f32"
            )
            p["mask"] = strides(np.broadcast_to(mask, scores))
        if "block_mask" in o:
            tiles = (self.B, self.H, -(-self.qL // 32), -(-self.kL // 32))
            p["has_block_mask"] = True
            p["block_mask"] = strides(np.broadcast_to(o["block_mask"], tiles))
        if "segments" in o:
            p["has_segments"] = True
            for name, ids in zip(("q_segments_b", "k_segments_b"), o["segments"], strict=True):
                p[name] = strides(ids)[0]
        if "row_diagonals" in o:
            p["has_row_diagonals"] = True
            p["row_diagonals_b"] = strides(o["row_diagonals"])[0]
        if "alibi" in o:
            p["has_alibi"] = True
            slopes = np.broadcast_to(o["alibi"], (self.B, self.H))
            p["alibi_b"], p["alibi_h"] = strides(slopes)
        p["has_sinks"] = "sinks" in o
        return p

    def operands(self) -> dict[str, Array]:
        """Return the optional operands by the names that plans bind."""
        o = self.options
        q_segments, k_segments = o.get("segments", (None, None))
        found = {"q_segments": q_segments, "k_segments": k_segments}
        found |= {n: o.get(n) for n in ("mask", "sinks", "alibi", "block_mask", "row_diagonals")}
        return {name: value for name, value in found.items() if value is not None}


PLAIN = ("dtype", "B", "H", "Hk", "qL", "kL", "D", "Dv")


def strides(view: Array) -> tuple[int, ...]:
    """Return strides in elements, 0 along axes of length one as a caller may say."""
    return tuple(
        0 if n == 1 else s // view.itemsize for n, s in zip(view.shape, view.strides, strict=True)
    )


def inputs_of(call: Call) -> dict[str, Array]:
    """Return what the call is given, in memory as its layout says."""
    values = call.values()
    tensors = {name: place(v, call.layout) for name, v in values.items() if v.ndim == 4}
    for name in ("k", "v"):
        shape = (call.B, *tensors[name].shape[1:])
        tensors[name] = np.broadcast_to(tensors[name], shape)
    if call.d_lse:
        tensors["d_lse"] = (values["d_lse"] * LN2).astype(np.float32)  # of the log2-domain LSE
    return tensors | call.operands()


def run(call: Call) -> dict[str, Array]:
    """Plan and execute forward, then backward from its results."""
    tensors = inputs_of(call)
    shape = (call.B, call.H, call.qL)
    nothing = np.full((*shape, call.Dv), np.nan).astype(np.float32)
    packed = call.layout in ("columns", "thinned")  # operands may be; outputs never are
    tensors["o"] = place(reference.narrow(nothing, call.dtype), "blhd" if packed else call.layout)
    tensors["lse"] = np.full(shape, np.nan, np.float32)
    _execute(call, tensors, {"n_splits": call.n_splits})

    tensors["o"] = place(tensors["o"], call.layout)
    operation: dict[str, Any] = {"kind": "backward", "n_splits": call.n_splits}
    operation |= {name: name in call.wanted for name in ("d_q", "d_k", "d_v", "d_mask")}
    for name in call.wanted:
        if name == "d_mask":
            mask = call.options["mask"]
            tensors[name] = np.full(mask.shape, np.nan, np.float32)
            whole = np.broadcast_to(tensors[name], (*shape, call.kL))
            operation["d_mask_strides"] = strides(whole)
        else:
            like = tensors[name[2:]]
            empty = reference.narrow(np.full(like.shape, np.nan, np.float32), call.dtype)
            tensors[name] = place(empty, call.gradients)
    _execute(call, tensors, operation)
    return tensors


def _execute(call: Call, tensors: Mapping[str, Array], operation: dict[str, Any]) -> None:
    plan = plan_module.load().plan(call.problem(tensors), operation, call.device)
    assert "unsupported" not in plan, plan
    execute(plan, tensors, seed=1)


def complaints(call: Call, got: Mapping[str, Array]) -> list[str]:
    """Return what is wrong with the results of a call, element by element."""
    values = call.values()
    q, k, v, d_o = (values[name] for name in ("q", "k", "v", "d_o"))
    k, v = (np.broadcast_to(x, (call.B, *x.shape[1:])) for x in (k, v))
    options = {"scale": call.D**-0.5} | call.options
    f = reference.attention(q, k, v, **options)
    b = reference.backward(q, k, v, d_o=d_o, d_lse=values.get("d_lse"), forward=f, **options)
    del options["scale"]
    near = tolerance.forward_bounds(q, k, v, f, call.dtype, **options)
    limits = tolerance.backward_bounds(
        q, k, v, d_o, f, b, near, call.dtype, slot=_uses_slot(call), **options
    )
    lse = got["lse"].astype(np.float64) * LN2
    results = [
        tolerance.compare("o", got["o"], f.o, near.o, call.dtype),
        tolerance.compare("lse", lse, f.lse, near.lse, "float32"),
    ]
    for name in call.wanted:
        short = name.replace("_", "")
        expected, limit = getattr(b, short), getattr(limits, short)
        dtype = "float32" if name == "d_mask" else call.dtype
        results.append(tolerance.compare(short, got[name], expected, limit, dtype))
    return [result.complaint for result in results if result.complaint]


def _uses_slot(call: Call) -> bool:
    (row,) = (
        row
        for row in kernels().values()
        if (row["kind"], row["dtype"], row["d"], row["dv"], row["rank"])
        == ("bwd_dkv", call.dtype, call.D, call.Dv, 0)
    )
    return "role" in row["split"] and call.dtype != "float32"
