"""Memory over many calls, and inputs that go away before the work runs."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

import flashrt
from tests.runtime.arrays import assert_close, normal, to_numpy

STATM = Path("/proc/self/statm")


def resident_bytes() -> int:
    """Return the resident memory of this process."""
    return int(STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not STATM.exists(), reason="reads /proc")
def test_memory_stays_flat() -> None:
    """3,000 steps of forward and every gradient leave nothing behind."""
    rng = np.random.default_rng(1)
    q, k, v = (normal(rng, 1, 4, 65, 32) for _ in range(3))
    bias, sinks = normal(rng, 1, 4, 1, 65), normal(rng, 4)
    step = mx.value_and_grad(
        lambda *x: flashrt.attention(*x[:3], mask=x[3], sinks=x[4], causal=True).sum(),
        tuple(range(5)),
    )

    def run(n: int) -> tuple[int, int]:
        for _ in range(n):
            mx.eval(step(q, k, v, bias, sinks))
        gc.collect()
        return resident_bytes(), mx.get_active_memory()

    resident, active = run(300)
    resident_after, active_after = run(2700)
    assert active_after == active
    assert resident_after - resident <= 2**20


def test_inputs_may_go_away() -> None:
    """What a graph needs it keeps, also the copies of strided inputs."""
    rng = np.random.default_rng(2)
    q, k, v = (normal(rng, 1, 2, 200, 64) for _ in range(3))
    expected = to_numpy(flashrt.attention(q, k, v))
    outputs = []
    for _ in range(20):
        views = [mx.contiguous(x.swapaxes(2, 3)).swapaxes(2, 3) for x in (q, k, v)]
        outputs.append(flashrt.attention(*views))
        mx.async_eval(outputs[-1])
        del views
    for o in outputs:
        assert_close(o, expected)
