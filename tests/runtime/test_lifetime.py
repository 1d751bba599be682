"""Memory over many calls, and inputs that go away before the work runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

import flashrt
from tests.runtime.arrays import assert_close, normal, to_numpy

STATM = Path("/proc/self/statm")

# Run in a process of its own: what other tests leave in the heap moves the resident size.
STEPS = """
import gc, os, sys
import mlx.core as mx
import flashrt

def state():
    gc.collect()
    pages = int(open("/proc/self/statm").read().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE"), mx.get_active_memory()

q, k, v = (mx.random.normal((1, 4, 65, 32)) for _ in range(3))
bias, sinks = mx.random.normal((1, 4, 1, 65)), mx.random.normal((4,))
step = mx.value_and_grad(
    lambda *x: flashrt.attention(*x[:3], mask=x[3], sinks=x[4], causal=True).sum(),
    tuple(range(5)),
)
for _ in range(300):
    mx.eval(step(q, k, v, bias, sinks))
before = state()
for _ in range(3000):
    mx.eval(step(q, k, v, bias, sinks))
after = state()
print(after[0] - before[0], after[1] - before[1])
"""


@pytest.mark.skipif(not STATM.exists(), reason="reads /proc")
def test_memory_stays_flat() -> None:
    """3,000 steps of forward and every gradient leave nothing behind."""
    done = subprocess.run([sys.executable, "-c", STEPS], capture_output=True, text=True, check=True)
    resident, active = map(int, done.stdout.split())
    assert active == 0
    assert resident <= 2**19


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
