"""The primitives' eval_gpu on the emulator: what a Mac's GPU would make of strided arrays."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests import emulator
from tests.mac.fake import functions
from tests.runtime.plan_calls import Call, complaints, inputs_of
from tests.runtime.plan_executor import library
from tests.runtime.test_plan_emulator import CALLS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform == "darwin", reason="a Mac has the real one"),
]

Array = NDArray[Any]
# The order in which the primitives take what may be left out.
EXTRAS = ("mask", "sinks", "alibi", "block_mask", "q_segments", "k_segments", "row_diagonals")
RANKS = {"mask": 4, "block_mask": 4, "alibi": 2}
GRADIENTS = ("d_q", "d_k", "d_v", "d_mask")


def replay(calls: Sequence[Any]) -> list[str]:
    """Run recorded launches on the emulator, in the memory of the arrays that they bound.

    Returns their kernels.
    """
    ran = []
    kernel, constants, buffers = "", {}, {}
    for name, *arguments in calls:
        if name == "set_kernel":
            kernel, constants, _ = arguments
            buffers = {}
        elif name in ("bind_input", "bind_output"):
            slot, (address, size, offset) = arguments
            memory = (ctypes.c_uint8 * size).from_address(address)
            buffers[slot] = emulator.Buffer(np.frombuffer(memory, np.uint8), offset)
        elif name == "set_params":
            slot, params = arguments
            buffers[slot] = params
        elif name == "dispatch":
            grid, group, _ = arguments
            report = library(kernel).launch(
                kernel, grid=grid, group=group, buffers=buffers, constants=constants
            )
            assert not report.faults, report.faults
            ran.append(kernel)
    return ran


def typed(call: Call, name: str, array: Array) -> tuple[Array, str]:
    """Name the type of an input: bfloat16 has none of its own in numpy."""
    if array.dtype == np.uint16:
        return array, "bfloat16"
    rank = RANKS.get(name, array.ndim)
    return array.reshape((1,) * (rank - array.ndim) + array.shape), array.dtype.name


def evaluate(metal: ModuleType, call: Call) -> tuple[dict[str, Array], list[str]]:
    """Evaluate Attention, then AttentionBackward from its outputs; also return what ran."""
    values = inputs_of(call)
    extras = {name: values[name] for name in EXTRAS if name in values}
    given = [typed(call, name, values[name]) for name in ("q", "k", "v", *extras)]
    left, right = call.options.get("window", (-1, -1))
    options = {
        "scale": call.options.get("scale", call.D**-0.5),
        "softcap": call.options.get("softcap", 0.0),
        "causal": call.options.get("causal", False),
        "window_left": left,
        "window_right": right,
        "lse_is_used": call.d_lse,
    }
    present = [EXTRAS.index(name) for name in extras]
    ran = replay(metal.eval_gpu(given, present, options, [], functions()))
    o, lse = metal.read_outputs()
    rows = [(o, call.dtype), (lse, "float32"), typed(call, "d_o", values["d_o"])]
    rows += [(values["d_lse"], "float32")] if call.d_lse else []
    wanted = [name in call.wanted for name in GRADIENTS]
    ran += replay(metal.eval_gpu([*given, *rows], present, options, wanted, functions()))
    gradients = [name for name in GRADIENTS if name in call.wanted]
    found = dict(zip(gradients, metal.read_outputs(), strict=True))
    return {"o": o, "lse": lse, **found}, ran


def evaluable(call: Call) -> bool:
    """Leave out what only a planner can be asked for: cut rows, chosen splits, other GPUs."""
    return "q_off" not in call.options and not call.n_splits and not call.device


@pytest.mark.usefixtures("metallib")
@pytest.mark.parametrize("call", [c for c in CALLS if evaluable(c)], ids=lambda call: call.name)
def test_results_are_within_their_bounds(call: Call, metal: ModuleType) -> None:
    got, _ = evaluate(metal, call)
    assert complaints(call, got) == []


@pytest.mark.usefixtures("metallib")
def test_few_threadgroups_are_split(metal: ModuleType) -> None:
    call = Call("long keys", B=1, H=2, Hk=1, qL=40, kL=600)
    got, ran = evaluate(metal, call)
    assert complaints(call, got) == []
    assert "flash_attn_fwd_merge_float16" in ran
