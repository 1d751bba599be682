"""A58 to A65: empty and extreme sizes, memory, errors."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

import flashrt
from tests import reference as ref
from tests.cases.support import agree, call, finite, from_mx, normal, qkv, to_mx


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("impl", ["auto", "kernel", "reference"])
def test_A58_no_keys(causal: bool, impl: str) -> None:
    q, k, v = qkv("float32", 2, 4, 2, 5, 0, 64)
    got = call(*map(to_mx, (q, k, v)), impl=impl, causal=causal)
    assert got.o.shape == (2, 4, 5, 64)
    assert not got.o.any()
    assert np.isneginf(got.lse).all()
    assert got.dq.shape == q.shape
    assert not got.dq.any()
    assert got.dk.shape == got.dv.shape == (2, 2, 0, 64)


def test_A58_no_keys_but_sinks() -> None:
    q, k, v = qkv("float32", 2, 4, 2, 5, 0, 64)
    sinks = normal("float32", 4)
    d_lse = normal("float32", 2, 4, 5)
    got = call(*map(to_mx, (q, k, v)), None, d_lse, impl="kernel", sinks=sinks)
    np.testing.assert_allclose(got.lse, np.broadcast_to(sinks[:, None], (2, 4, 5)), rtol=1e-6)
    np.testing.assert_allclose(got.dsinks, d_lse.sum((0, 2)), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("impl", ["auto", "kernel", "reference"])
@pytest.mark.parametrize(("B", "H", "qL", "kL"), [(0, 2, 4, 4), (2, 2, 0, 4), (0, 2, 0, 0)])
def test_A59_nothing_to_compute(B: int, H: int, qL: int, kL: int, impl: str) -> None:
    q, k, v = qkv("float32", B, H, H, qL, kL, 16)
    got = call(*map(to_mx, (q, k, v)), impl=impl)
    assert got.o.shape == q.shape
    assert got.lse.shape == (B, H, qL)
    assert got.dk.shape == k.shape
    assert not got.dk.any()
    assert not got.dv.any()


# Arrays beyond what malloc keeps: memory that is given up is unmapped, and a late write to it ends
# the process. The product holds the stream back, so that what follows is late.
STRIDED_BESIDE_NOTHING = """
import mlx.core as mx
import flashrt

mx.set_default_device(mx.cpu)
busy = mx.ones((400, 400))
long = mx.random.normal((1, 90000, 2, 64)).swapaxes(1, 2)
none = mx.zeros((1, 2, 0, 64))
mx.eval(busy, long, none)

def everything(*x):
    square = lambda *y: (mx.grad(f, (0, 1, 2))(*y)[0] ** 2).sum()
    return [f(*x), *mx.grad(f, (0, 1, 2))(*x), *mx.grad(square, (0, 1, 2))(*x)]

def f(q, k, v):
    return flashrt.attention(q, k, v, impl=impl).sum()

for impl in ("reference", "kernel"):
    for inputs in ((long, none, none), (none, long, long)):
        mx.async_eval(busy @ busy)
        found = everything(*inputs)
        mx.eval(found)
        assert all(x.size == 0 or mx.abs(x).max().item() == 0 for x in found)
"""


def test_A59_strided_operands_beside_an_empty_one() -> None:
    """MLX's own product writes to freed memory then, so none may be asked for."""
    done = subprocess.run(
        [sys.executable, "-c", STRIDED_BESIDE_NOTHING], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("qL", "kL"), [(0, 4), (4, 0)])
def test_A59_mlx_is_not_given_empty_sequences(qL: int, kL: int) -> None:
    q, k, v = map(to_mx, qkv("float32", 1, 2, 2, qL, kL, 16))
    with pytest.raises(flashrt.UnsupportedError, match="empty sequence"):
        flashrt.attention(q, k, v, impl="mlx")


def test_A59_no_heads() -> None:
    none = mx.zeros((1, 0, 4, 16))
    with pytest.raises((ValueError, TypeError), match="head"):
        flashrt.attention(none, none, none)


@pytest.mark.parametrize(("B", "H", "L"), [(65536, 1, 16), (1, 65536, 10)])
def test_A61_more_than_65535_batches_or_heads(B: int, H: int, L: int) -> None:
    q, k, v = qkv("float32", B, H, H, L, L, 16)
    o = from_mx(flashrt.attention(*map(to_mx, (q, k, v)), causal=True, impl="kernel"))
    ends = np.r_[0:8, -8:0]
    pick = (ends,) if B > 1 else (slice(None), ends)
    want = ref.attention(q[pick], k[pick], v[pick], causal=True).o
    np.testing.assert_allclose(o[pick], want, atol=1e-5)


def test_A62_memory_does_not_grow_with_repetition() -> None:
    q, k, v = map(to_mx, qkv("float16", 4, 8, 8, 256, 256, 64))
    step = mx.value_and_grad(
        lambda *x: flashrt.attention(*x, causal=True, impl="kernel").sum(), argnums=(0, 1, 2)
    )
    active = []
    for i in range(60):
        mx.eval(step(q, k, v))
        if i in (19, 59):
            active.append(mx.get_active_memory())
    assert active[1] <= active[0] + 2**20
    assert active[0] > 0, "this backend counts its memory"


PEAK = """
import json, sys
import mlx.core as mx, flashrt
L, kind = int(sys.argv[1]), sys.argv[2]
mx.random.seed(0)
q, k, v = (mx.random.normal((1, 8, L, 64)).astype(mx.float16) for _ in range(3))
options = {"causal": {"causal": True}, "window": {"window_size": 128}}.get(kind, {})
if kind == "segments":
    options = {"causal": True, "segment_ids": (mx.arange(L) // 500).astype(mx.int32)[None]}
if kind == "bool":
    options = {"mask": mx.random.uniform(shape=(L, L)) < 0.5}
mx.eval(q, k, v, options)
before = mx.get_active_memory()
mx.reset_peak_memory()
step = mx.value_and_grad(lambda *x: flashrt.attention(*x, **options).sum(), argnums=(0, 1, 2))
mx.eval(step(q, k, v))
print(json.dumps(mx.get_peak_memory() - before))
"""


@pytest.mark.parametrize("kind", ["causal", "window", "segments", "bool"])
def test_A63_memory_is_linear_in_the_length(kind: str, depth: str) -> None:
    lengths = (1024, 2048) if depth == "quick" else (2048, 4096, 8192)
    peaks = []
    for L in lengths:
        command = [sys.executable, "-c", PEAK, str(L), kind]
        run = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600)
        peaks.append(json.loads(run.stdout))
    for L, peak in zip(lengths, peaks, strict=True):
        assert 0 < peak < 8 * L * L * 2 / 2, f"L={L}: {peak} bytes"
    for less, more in itertools.pairwise(peaks):
        assert more <= 2.3 * less, f"{kind}: {dict(zip(lengths, peaks, strict=True))}"


def bad(**changes: Any) -> dict[str, Any]:
    good = mx.zeros((1, 4, 8, 16))
    return {"q": good, "k": good, "v": good, **changes}


REFUSED: dict[str, dict[str, Any]] = {
    "q": bad(q=mx.zeros((4, 8, 16))),
    "k": bad(k=mx.zeros((1, 4, 8, 15))),
    "v": bad(v=mx.zeros((1, 4, 9, 16))),
    "q ": bad(q=np.zeros((1, 4, 8, 16), np.float32)),
    "batch": bad(k=mx.zeros((2, 4, 8, 16)), v=mx.zeros((2, 4, 8, 16))),
    "head": bad(q=mx.zeros((1, 5, 8, 16))),
    "scale": bad(scale=float("nan")),
    "scale ": bad(scale="1"),
    "softcap": bad(softcap=-1.0),
    "window_size": bad(window_size=-5),
    "mask": bad(mask=mx.ones((8, 9), mx.bool_)),
    "mask ": bad(mask="lower"),
    "causal": bad(causal="top_left"),
    "sinks": bad(sinks=mx.zeros((3,))),
    "alibi_slopes": bad(alibi_slopes=mx.zeros((3,))),
    "block_mask": bad(block_mask=mx.ones((2, 2), mx.bool_)),
    "block_mask ": bad(block_mask=mx.ones((1, 1))),
    "segment_ids": bad(segment_ids=mx.zeros((1, 9), mx.int32)),
    "segment_ids ": bad(segment_ids=mx.zeros((1, 8))),
    "impl": bad(impl="fastest"),
    "return_lse": bad(return_lse=1),
}


@pytest.mark.parametrize("name", REFUSED)
def test_A65_refusals_are_exceptions_at_the_call(name: str) -> None:
    with pytest.raises((ValueError, TypeError), match=name.strip()):
        flashrt.attention(**REFUSED[name])
    finite(agree(*qkv("float32", 1, 2, 1, 4, 4, 16)))


def test_large_scales_and_small_ones() -> None:
    q, k, v = qkv("float32", 1, 2, 2, 33, 33, 32)
    for scale in (0.0, -0.2, 1e-20, 3.0, -1.0):
        agree(q, k, v, scale=scale, causal=True)
