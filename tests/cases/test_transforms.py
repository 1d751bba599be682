"""A66 to A70: transforms, threads, determinism."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import threading
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

import flashrt
from tests import reference as ref
from tests.cases.support import call, normal, qkv, same_bits, to_mx

VMAP = """
import mlx.core as mx, flashrt
mx.random.seed(0)
q = mx.random.normal((2, 1, 4, 4, 64))
k, v = mx.random.normal((2, 2, 1, 2, 4, 64))
f = lambda q, k, v: flashrt.attention(q, k, v, causal=True)
try:
    got = mx.vmap(f)(q, k, v)
    mx.eval(got)
except (ValueError, TypeError) as error:
    assert "vmap" in str(error), error
else:
    want = mx.stack([f(q[i], k[i], v[i]) for i in range(2)])
    assert mx.allclose(got, want, atol=1e-5).item()
"""


def test_A66_vmap_with_grouped_heads() -> None:
    """In a process of its own: what is to be seen is that it ends."""
    subprocess.run([sys.executable, "-c", VMAP], check=True, timeout=60)


@pytest.mark.parametrize("axes", [(0, 0, 0), (0, None, None), (None, 0, 0), (1, 1, 1), (0, 1, 2)])
def test_A66_vmap_over_any_axis(axes: tuple[int | None, ...]) -> None:
    stacked = [
        np.stack(x)
        for x in zip(*(qkv("float32", 2, 4, 2, 9, 11, 16) for _ in range(3)), strict=False)
    ]
    stacked = [x + normal("float32", *x.shape, seed=i) for i, x in enumerate(stacked)]
    arrays, at = [], []
    for x, axis in zip(stacked, axes, strict=True):
        arrays.append(to_mx(x[0] if axis is None else np.moveaxis(x, 0, axis)))
        at.append(axis)

    def f(q: mx.array, k: mx.array, v: mx.array) -> mx.array:
        return flashrt.attention(q, k, v, causal=True)

    got = mx.vmap(f, in_axes=tuple(at))(*arrays)
    for i in range(3):
        one = [x[0] if axis is None else x[i] for x, axis in zip(stacked, axes, strict=True)]
        want = ref.attention(*one, causal=True).o
        np.testing.assert_allclose(np.array(got)[i], want, atol=1e-5)


def test_A66_vmap_of_the_gradient() -> None:
    q, k, v = (normal("float32", 3, 1, h, 9, 16, seed=h) for h in (4, 2, 2))

    def loss(q: mx.array, k: mx.array, v: mx.array) -> mx.array:
        return flashrt.attention(q, k, v, causal=True).sum()

    got = mx.vmap(mx.grad(loss, argnums=(0, 1, 2)))(*map(to_mx, (q, k, v)))
    for i in range(3):
        want = ref.gradients(q[i], k[i], v[i], d_o=np.ones(q[i].shape), causal=True)
        for name, gradient in zip(("dq", "dk", "dv"), got, strict=True):
            np.testing.assert_allclose(np.array(gradient)[i], want[name], atol=3e-5)


@pytest.mark.parametrize("shapeless", [False, True])
def test_A67_compile(shapeless: bool) -> None:
    for causal in (False, True):

        def f(*x: mx.array, causal: bool = causal) -> mx.array:
            return flashrt.attention(*x, causal=causal)

        compiled = mx.compile(f, shapeless=shapeless)
        for qL, kL in ((9, 11), (17, 17), (1, 40)):
            arrays = qkv("float32", 1, 4, 2, qL, kL, 64, 32)
            got = compiled(*map(to_mx, arrays))
            assert got.shape == (1, 4, qL, 32)
            want = ref.attention(*arrays, causal=causal).o
            np.testing.assert_allclose(np.array(got), want, atol=1e-5)


def test_A67_compiled_training_step() -> None:
    arrays = qkv("float32", 1, 4, 2, 20, 20, 32)

    def loss(*x: mx.array) -> mx.array:
        return (flashrt.attention(*x, causal=True, window_size=7) ** 2).sum()

    step = mx.value_and_grad(loss, argnums=(0, 1, 2))
    plain, compiled = (f(*map(to_mx, arrays)) for f in (step, mx.compile(step)))
    np.testing.assert_allclose(compiled[0].item(), plain[0].item(), rtol=1e-6)
    for a, b in zip(plain[1], compiled[1], strict=True):
        np.testing.assert_allclose(np.array(a), np.array(b), atol=1e-6)


def test_A68_built_here_and_evaluated_in_another_thread() -> None:
    arrays = list(map(to_mx, qkv("float32", 1, 4, 2, 33, 33, 64)))
    mx.eval(arrays)
    lazy = flashrt.attention(*arrays, causal=True)
    plain = arrays[0] @ arrays[0].swapaxes(-1, -2)
    errors: dict[str, str] = {}

    def evaluate(name: str, x: mx.array) -> None:
        try:
            mx.eval(x)
        except (RuntimeError, ValueError) as error:
            errors[name] = str(error)

    for name, x in (("flashrt", lazy), ("plain", plain)):
        worker = threading.Thread(target=evaluate, args=(name, x))
        worker.start()
        worker.join(60)
        assert not worker.is_alive()
    assert ("flashrt" in errors) == ("plain" in errors), errors
    if not errors:
        want = flashrt.attention(*arrays, causal=True)
        assert mx.array_equal(lazy, want)


def test_A68_calls_from_many_threads() -> None:
    arrays = [qkv("float32", 1, 4, 2, 33 + i, 33 + i, 32) for i in range(4)]
    results: dict[int, Any] = {}

    def work(i: int) -> None:
        with mx.stream(mx.new_stream(mx.default_device())):
            results[i] = call(*map(to_mx, arrays[i]), causal=True)

    workers = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    for i in range(4):
        same_bits(results[i], call(*map(to_mx, arrays[i]), causal=True))


VARIANTS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"causal": True}, {"causal": False}),
    ({"softcap": 5.0}, {"softcap": 50.0}),
    ({"scale": 1.0}, {"scale": 0.5}),
    ({"window": (3, 0)}, {"window": (9, 0)}),
    ({"sinks": np.zeros(4, np.float32)}, {}),
]


@pytest.mark.parametrize("variants", VARIANTS)
def test_A69_two_variants_in_one_evaluation(variants: tuple[dict[str, Any], ...]) -> None:
    from tests.cases.support import api_options

    arrays = qkv("float32", 1, 4, 2, 40, 40, 64)
    lazy = [
        flashrt.attention(*map(to_mx, arrays), **api_options(options), impl="kernel")
        for options in variants
    ]
    mx.eval(lazy)
    for options, got in zip(variants, lazy, strict=True):
        np.testing.assert_allclose(np.array(got), ref.attention(*arrays, **options).o, atol=2e-5)


DETERMINISM = """
import hashlib, sys
import numpy as np
from tests.cases.test_transforms import digest
sys.stdout.write(digest())
"""


def digest() -> str:
    """Hash the bits of one training step."""
    q, k, v = qkv("bfloat16", 2, 8, 8, 513, 513, 64)
    got = call(*map(to_mx, (q, k, v)), normal("bfloat16", *q.shape), causal=True)
    joined = b"".join(getattr(got, n).tobytes() for n in ("o", "lse", "dq", "dk", "dv"))
    return hashlib.sha256(joined).hexdigest()


def test_A70_same_bits_every_time(pytestconfig: pytest.Config) -> None:
    first = digest()
    for _ in range(5):
        assert digest() == first
    fresh = subprocess.run(
        [sys.executable, "-c", DETERMINISM],
        capture_output=True,
        text=True,
        check=True,
        cwd=pytestconfig.rootpath,
        timeout=300,
    )
    assert fresh.stdout == first
