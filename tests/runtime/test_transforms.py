"""MLX's function transforms over attention: one grid of options for every transform."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

import flashrt
from tests.runtime.arrays import assert_close, normal, widen

B, H, HK, QL, KL, D, DV = 2, 4, 2, 9, 13, 8, 6

Loss = Callable[..., mx.array]


def extras(rng: np.random.Generator, name: str) -> dict[str, Any]:
    """Return the options of a row of the grid."""
    ids = mx.array(np.sort(rng.integers(0, 2, (B, KL))).astype(np.int32))
    return {
        "plain": {},
        "causal": {"causal": True},
        "window": {"window_size": (3, 1)},
        "bool mask": {"mask": mx.array(rng.random((B, 1, QL, KL)) < 0.6)},
        "key bias": {"mask": normal(rng, 1, H, 1, KL)},
        "softcap and sinks": {"softcap": 2.0, "sinks": normal(rng, H)},
        "alibi and segments": {
            "alibi_slopes": mx.array(rng.random((B, H)).astype(np.float32)),
            "segment_ids": (ids[:, :QL], ids),
        },
        "block mask": {"block_mask": mx.array(np.ones((1, 1), bool)), "causal": True},
    }[name]


GRID = (
    *("plain", "causal", "window", "bool mask", "key bias"),
    *("softcap and sinks", "alibi and segments", "block mask"),
)


@pytest.fixture(params=GRID)
def case(request: pytest.FixtureRequest) -> tuple[dict[str, Any], list[mx.array], Loss, Loss]:
    """Options, inputs, and a scalar function of kernels and of composed operations."""
    rng = np.random.default_rng(11)
    options = extras(rng, request.param)
    mx.eval(options)  # what is sliced lazily could not be compiled without shapes
    inputs = [normal(rng, B, H, QL, D), normal(rng, B, HK, KL, D), normal(rng, B, HK, KL, DV)]
    w, u = normal(rng, B, H, QL, DV), normal(rng, B, H, QL)

    def loss(impl: str) -> Loss:
        def value(q: mx.array, k: mx.array, v: mx.array) -> mx.array:
            o, lse = flashrt.attention(q, k, v, **options, return_lse=True, impl=impl)
            seen = mx.where(lse == -mx.inf, 0.0, lse)
            return (mx.sin(o) * w).sum() + (mx.cos(seen) * u).sum()

        return value

    return options, inputs, loss("kernel"), loss("reference")


def same(found: Any, expected: Any, times: float = 5) -> None:
    """Compare two lists of arrays."""
    for x, y in zip(found, expected, strict=True):
        assert_close(x, widen(y), times=times)


def test_grad_equals_finite_differences(case: Any) -> None:
    """The gradient is that of the composed float64 function's difference quotients."""
    options, inputs, loss, _ = case
    rng = np.random.default_rng(1)
    gradients = mx.grad(loss, (0, 1, 2))(*inputs)
    for i, (x, gradient) in enumerate(zip(inputs, gradients, strict=True)):
        direction = mx.array(rng.standard_normal(x.shape).astype(np.float32))
        direction = direction / mx.sqrt((direction**2).sum())
        step = 2e-2

        def at(t: float, i: int = i, x: mx.array = x, d: mx.array = direction) -> float:
            moved = list(inputs)
            moved[i] = x + t * d
            return float(loss(*moved).item())

        # Fourth order: the truncation is far below float32's own noise of about 1e-6 / step.
        slope = (8 * (at(step) - at(-step)) - (at(2 * step) - at(-2 * step))) / (12 * step)
        expected = float((gradient * direction).sum().item())
        assert slope == pytest.approx(expected, rel=2e-2, abs=2e-3), f"input {i}, {options}"


def test_value_and_grad(case: Any) -> None:
    """Value and gradients together, in one evaluation."""
    _, inputs, loss, reference = case
    value, found = mx.value_and_grad(loss, (0, 1, 2))(*inputs)
    value_ref, expected = mx.value_and_grad(reference, (0, 1, 2))(*inputs)
    same([value, *found], [value_ref, *expected])


@pytest.mark.parametrize("argnums", [(0,), (1,), (2,), (0, 2), (1, 2)])
def test_some_gradients(case: Any, argnums: tuple[int, ...]) -> None:
    """A subset is the same as those entries of all."""
    _, inputs, loss, _ = case
    everything = mx.grad(loss, (0, 1, 2))(*inputs)
    found = mx.grad(loss, argnums)(*inputs)
    found = [found] if len(argnums) == 1 else found
    same(found, [everything[i] for i in argnums], times=0.1)


def test_checkpoint(case: Any) -> None:
    """Recomputing the forward changes nothing."""
    _, inputs, loss, _ = case
    found = mx.grad(lambda *x: mx.checkpoint(loss)(*x), (0, 1, 2))(*inputs)
    same(found, mx.grad(loss, (0, 1, 2))(*inputs), times=0)


@pytest.mark.parametrize("shapeless", [False, True])
def test_compile(case: Any, shapeless: bool) -> None:
    """A compiled gradient, called twice."""
    _, inputs, loss, _ = case
    expected = mx.grad(loss, (0, 1, 2))(*inputs)
    compiled = mx.compile(mx.grad(loss, (0, 1, 2)), shapeless=shapeless)
    for _ in range(2):
        same(compiled(*inputs), expected, times=0.1)


def test_jvp(case: Any) -> None:
    """Forward mode goes through the composed formula."""
    _, inputs, loss, reference = case
    rng = np.random.default_rng(2)
    tangents = [normal(rng, *x.shape) for x in inputs]
    (value,), (found,) = mx.jvp(lambda *x: [loss(*x)], inputs, tangents)
    _, (expected,) = mx.jvp(lambda *x: [reference(*x)], inputs, tangents)
    same([value, found], [loss(*inputs), expected])


def test_second_derivative(case: Any) -> None:
    """The gradient of a function of the gradient, towards every input."""
    _, inputs, loss, reference = case

    def squares(f: Loss) -> Loss:
        return lambda *x: sum((g**2).sum() for g in mx.grad(f, (0, 1, 2))(*x))

    found = mx.grad(squares(loss), (0, 1, 2))(*inputs)
    assert max(mx.abs(g).max().item() for g in found) > 1e-3
    same(found, mx.grad(squares(reference), (0, 1, 2))(*inputs), times=20)


def test_forward_over_reverse(case: Any) -> None:
    """A Hessian-vector product."""
    _, inputs, loss, reference = case
    tangents = [mx.ones_like(x) for x in inputs]

    def product(f: Loss) -> list[mx.array]:
        return mx.jvp(lambda *x: list(mx.grad(f, (0, 1, 2))(*x)), inputs, tangents)[1]

    same(product(loss), product(reference), times=20)


@pytest.mark.parametrize("axes", [(0, 0, 0), (0, None, None), (None, 2, 1), (4, 0, None)])
def test_vmap(case: Any, axes: tuple[int | None, ...]) -> None:
    """Mapped over any axes, forward and gradient, equal to a loop."""
    _, inputs, loss, _ = case
    N = 3
    rng = np.random.default_rng(3)
    batched = [
        x if axis is None else mx.stack([normal(rng, *x.shape) for _ in range(N)], axis)
        for x, axis in zip(inputs, axes, strict=True)
    ]

    def entry(n: int) -> list[mx.array]:
        return [
            x if axis is None else mx.take(x, n, axis)
            for x, axis in zip(batched, axes, strict=True)
        ]

    value = mx.vmap(loss, in_axes=axes)(*batched)
    same([value], [mx.stack([loss(*entry(n)) for n in range(N)])])
    gradient = mx.grad(loss, (0, 1, 2))
    found = mx.vmap(gradient, in_axes=axes)(*batched)
    each = [gradient(*entry(n)) for n in range(N)]
    same(found, [mx.stack(g) for g in zip(*each, strict=True)])
    total = mx.grad(lambda *x: mx.vmap(loss, in_axes=axes)(*x).sum(), (0, 1, 2))(*batched)
    for i, (x, axis) in enumerate(zip(total, axes, strict=True)):
        parts = [g[i] for g in each]
        same([x], [sum(parts[1:], parts[0]) if axis is None else mx.stack(parts, axis)])


@pytest.mark.parametrize("name", ["mask", "sinks"])
@pytest.mark.parametrize("batch", [1, 2])
def test_vmap_over_trained_extras(name: str, batch: int) -> None:
    """Mapped masks and sinks, whose gradients stay apart per mapped entry."""
    rng = np.random.default_rng(5)
    q = normal(rng, batch, H, QL, D)
    shape = {"mask": (1, H, 1, KL), "sinks": (H,)}[name]
    k, v = normal(rng, batch, HK, KL, D), normal(rng, batch, HK, KL, DV)
    extra = normal(rng, 3, *shape)

    def loss(x: mx.array) -> mx.array:
        return (flashrt.attention(q, k, v, **{name: x}) ** 2).sum()

    found = mx.vmap(mx.grad(loss))(extra)
    same([found], [mx.stack([mx.grad(loss)(extra[n]) for n in range(3)])])
    shared = mx.vmap(
        lambda q: mx.grad(lambda x: flashrt.attention(q, k, v, **{name: x}).sum())(extra[0])
    )
    queries = normal(rng, 3, *q.shape)
    one_by_one = [
        mx.grad(lambda x, n=n: flashrt.attention(queries[n], k, v, **{name: x}).sum())(extra[0])
        for n in range(3)
    ]
    same([shared(queries)], [mx.stack(one_by_one)])


@pytest.mark.parametrize(("N", "qL", "kL"), [(3, 0, 4), (3, 5, 0), (0, 5, 4)])
def test_vmap_of_nothing(N: int, qL: int, kL: int) -> None:
    """Empty sequences, and no entries at all, where entries cannot join the batch."""
    q, k = mx.ones((N, 1, 2, qL, 8)), mx.ones((N, 1, 2, kL, 8))
    sinks, mask = mx.zeros((N, 2)), mx.zeros((1, 1, 1, kL))

    def gradient(impl: str) -> Callable[..., Any]:
        def loss(q: mx.array, k: mx.array, s: mx.array, m: mx.array) -> mx.array:
            return flashrt.attention(q, k, k, sinks=s, mask=m, impl=impl).sum()

        return mx.grad(loss, (0, 2, 3))

    for make in (
        lambda impl: lambda q, k, s, m: [flashrt.attention(q, k, k, sinks=s, mask=m, impl=impl)],
        gradient,
    ):
        found = mx.vmap(make("kernel"), in_axes=(0, 0, 0, None))(q, k, sinks, mask)
        expected = mx.vmap(make("reference"), in_axes=(0, 0, 0, None))(q, k, sinks, mask)
        assert [x.shape for x in found] == [x.shape for x in expected]
        same(found, expected)


def test_trained_extras_under_second_derivatives() -> None:
    """Mask and sinks take part in second derivatives like q, k and v."""
    rng = np.random.default_rng(6)
    inputs = [
        *(normal(rng, B, H, QL, D), normal(rng, B, HK, KL, D), normal(rng, B, HK, KL, DV)),
        *(normal(rng, 1, H, QL, KL), normal(rng, H)),
    ]
    every = tuple(range(5))

    def squares(impl: str) -> Loss:
        def f(q: mx.array, k: mx.array, v: mx.array, m: mx.array, s: mx.array) -> mx.array:
            return mx.sin(flashrt.attention(q, k, v, mask=m, sinks=s, impl=impl)).sum()

        return lambda *x: sum((g**2).sum() for g in mx.grad(f, every)(*x))

    found = mx.grad(squares("kernel"), every)(*inputs)
    same(found, mx.grad(squares("reference"), every)(*inputs), times=20)


def test_slopes_have_a_typed_error() -> None:
    """Never a silent zero: the kernels do not differentiate slopes."""
    rng = np.random.default_rng(8)
    q, k, v = (normal(rng, 1, 2, 5, 8) for _ in range(3))

    def loss(slopes: mx.array, impl: str) -> mx.array:
        return flashrt.attention(q, k, v, alibi_slopes=slopes, impl=impl).sum()

    slopes = mx.array([0.5, 0.25])
    with pytest.raises(flashrt.UnsupportedError, match="alibi_slopes"):
        mx.grad(loss)(slopes, "kernel")
    assert mx.abs(mx.grad(loss)(slopes, "reference")).max().item() > 1e-3


def test_shapeless_compile_takes_other_lengths() -> None:
    """One graph, several lengths, Dv apart from D, with and without causal."""
    rng = np.random.default_rng(9)
    for causal in (False, True):
        f = mx.compile(
            lambda q, k, v, causal=causal: flashrt.attention(q, k, v, causal=causal),
            shapeless=True,
        )
        for qL, kL in ((5, 7), (33, 70), (1, 1)):
            q, k, v = normal(rng, 1, 4, qL, 16), normal(rng, 1, 2, kL, 16), normal(rng, 1, 2, kL, 8)
            expected = flashrt.attention(q, k, v, causal=causal, impl="reference")
            same([f(q, k, v)], [expected])


def test_shapeless_compile_checks_new_shapes() -> None:
    """A mask that no longer fits is an error, not a read past its end."""
    f = mx.compile(lambda q, m: flashrt.attention(q, q, q, mask=m), shapeless=True)
    mx.eval(f(mx.zeros((1, 1, 8, 4)), mx.zeros((8, 8))))
    with pytest.raises(ValueError, match="mask"):
        mx.eval(f(mx.zeros((1, 1, 9, 4)), mx.zeros((8, 8))))


def test_stream_argument() -> None:
    """A stream or a device, and the default stream is left as it was."""
    rng = np.random.default_rng(10)
    q, k, v = (normal(rng, 1, 2, 5, 8) for _ in range(3))
    before = mx.default_stream(mx.default_device())
    expected = flashrt.attention(q, k, v)
    for stream in (mx.new_stream(mx.cpu), mx.cpu):
        same([flashrt.attention(q, k, v, stream=stream)], [expected], times=0)
    assert mx.default_stream(mx.default_device()) == before


def test_threads() -> None:
    """Graphs built and evaluated in several threads at once, each on its own stream."""
    rng = np.random.default_rng(12)
    q, k, v = (normal(rng, 1, 4, 64, 32) for _ in range(3))
    mx.eval(q, k, v)
    expected = mx.grad(lambda q: flashrt.attention(q, k, v, causal=True).sum())(q)
    mx.eval(expected)
    results: list[Any] = [None] * 4

    def work(i: int) -> None:
        try:
            with mx.stream(mx.new_stream(mx.cpu)):
                for _ in range(20):
                    g = mx.grad(lambda q: flashrt.attention(q, k, v, causal=True).sum())(q)
                    mx.eval(g)
                results[i] = np.array(g)
        except Exception as error:
            results[i] = error

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for found in results:
        assert isinstance(found, np.ndarray), found
        assert np.array_equal(found, np.array(expected))


def test_same_bits_every_run() -> None:
    """Deterministic, whatever the threads do."""
    rng = np.random.default_rng(13)
    q, k, v = (normal(rng, 2, 4, 257, 64, dtype="bfloat16") for _ in range(3))
    f = mx.value_and_grad(lambda *x: flashrt.attention(*x, causal=True).sum(), (0, 1, 2))

    def bits() -> list[bytes]:
        value, gradients = f(q, k, v)
        return [bytes(np.array(x.view(mx.uint16))) for x in (value.reshape(1), *gradients)]

    first = bits()
    assert all(bits() == first for _ in range(10))


def test_nothing_runs_while_building() -> None:
    """A graph over inputs that cannot be made builds, and fails when evaluated."""
    huge = mx.zeros((1, 2**20, 2**11, 64))  # half a petabyte, were it ever made
    o = flashrt.attention(huge, huge, huge, causal=True)
    g = mx.grad(lambda q: flashrt.attention(q, huge, huge).sum())(huge)
    assert o.shape == g.shape == huge.shape
