"""Carries plans out on the emulator: what a Mac would launch, with numpy arrays for memory."""

from __future__ import annotations

import functools
import random
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests import emulator
from tests.kernel.abi import ROOT

Array = NDArray[Any]
FILLS = {"zero": 0.0, "minus_infinity": -np.inf}


@functools.cache
def library(kernel: str) -> emulator.Library:
    """Return one generated kernel, compiled."""
    return emulator.build(
        [ROOT / f"generated/{kernel}.metal"], mode="trace", include=[ROOT / "runtime/metal"]
    )


def execute(plan: Mapping[str, Any], tensors: Mapping[str, Array], seed: int = 0) -> None:
    """Run a plan's fills and launches; outputs are written in place.

    Scratch memory starts as NaN and is as large as the plan says, which the emulator watches.
    Launches of one stage run in an order that ``seed`` draws.
    """
    scratch = [np.full(size, 0xFF, np.uint8) for _, size in plan["temporaries"]]
    for name, value, size in plan["fills"]:
        assert tensors[name].nbytes == size, f"{name} is not filled whole"
        tensors[name][...] = FILLS[value]
    order = list(plan["launches"])
    random.Random(seed).shuffle(order)
    for launch in sorted(order, key=lambda launch: launch["stage"]):
        buffers: dict[int, Any] = {launch["params_slot"]: launch["params"]}
        for slot, name, _ in launch["bindings"]:
            buffers[slot] = scratch[name] if isinstance(name, int) else _whole(tensors[name])
        report = library(launch["kernel"]).launch(
            launch["kernel"],
            grid=launch["grid"],
            group=launch["group"],
            buffers=buffers,
            constants=launch["constants"],
            seed=seed,
        )
        assert not report.faults, report.faults


def _whole(view: Array) -> emulator.Buffer:
    """Bind a view as a GPU array is bound: its memory, at its first element."""
    base = view
    while isinstance(base.base, np.ndarray):
        base = base.base
    offset = view.__array_interface__["data"][0] - base.__array_interface__["data"][0]
    return emulator.Buffer(base.view(np.uint8) if base.dtype == np.bool_ else base, offset)
