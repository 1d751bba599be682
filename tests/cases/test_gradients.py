"""A48 to A57: gradients."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest

import flashrt
from tests import reference as ref
from tests.cases.support import agree, call, normal, qkv, same_bits, to_mx


@pytest.mark.parametrize("shape", [(1, 4, 1, 41), (2, 4, 33, 41), (33, 41), (2, 1, 33, 1), (1,)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_A48_gradient_of_an_additive_mask(shape: tuple[int, ...], dtype: str) -> None:
    q, k, v = qkv(dtype, 2, 4, 2, 33, 41, 32)
    for mask_dtype in {dtype, "float32"}:
        try:
            got = agree(q, k, v, mask=normal(mask_dtype, *shape), causal=True)
        except flashrt.UnsupportedError as error:
            assert "mask" in str(error)  # noqa: PT017 - a typed refusal is right, a zero is not
            continue
        assert got.dmask is not None
        assert got.dmask.any()


def test_A49_gradient_of_the_lse() -> None:
    q, k, v = qkv("float32", 2, 4, 2, 33, 41, 32)
    w = normal("float32", 2, 4, 33)
    zero = np.zeros(q.shape, np.float32)
    got = agree(q, k, v, zero, w)
    f = ref.attention(q, k, v)
    dq = f.scale * ((w[..., None] * f.p) @ ref.repeat_heads(k, 4))
    np.testing.assert_allclose(got.dq, dq, atol=1e-5)
    assert not got.dv.any()
    agree(q, k, v, normal("float32", *q.shape), w, causal=True, window=(9, 0))


MASKS: dict[str, Any] = {
    "none": lambda qL, kL: {},
    "causal": lambda qL, kL: {"causal": True},
    "window": lambda qL, kL: {"window": (7, 5)},
    "bool": lambda qL, kL: {"mask": normal("float32", qL, kL) > -0.5},
    "additive": lambda qL, kL: {"mask": normal("float32", 1, 4, qL, kL)},
    "block": lambda qL, kL: {
        "block_mask": (normal("float32", -(-qL // 32), -(-kL // 32)) > -0.8).astype(np.uint8)
    },
    "segments": lambda qL, kL: {
        "segments": (
            np.sort(np.arange(qL, dtype=np.int32)[None] % 3, 1),
            np.sort(np.arange(kL, dtype=np.int32)[None] % 3, 1),
        )
    },
    "softcap": lambda qL, kL: {"softcap": 2.0},
    "sinks": lambda qL, kL: {"sinks": normal("float32", 4)},
    "alibi": lambda qL, kL: {"alibi": np.abs(normal("float32", 4))},
}


@pytest.mark.parametrize("impl", ["kernel", "reference"])
@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("qL", [1, 8, 9, 64, 129])
def test_A50_lse_on_every_route(qL: int, kind: str, impl: str) -> None:
    q, k, v = qkv("float32", 1, 4, 2, qL, 70, 32)
    d_lse = normal("float32", 1, 4, qL, seed=5)
    agree(q, k, v, d_lse=d_lse, impl=impl, **MASKS[kind](qL, 70))


def test_A51_softcap() -> None:
    q, k, v = qkv("float32", 1, 2, 2, 40, 40, 64, spread=5.0)
    f = ref.attention(q, k, v, softcap=15.0)
    assert np.abs(f.raw).max() > 60
    got = agree(q, k, v, softcap=15.0)
    spread = np.log(40) + 15.0
    assert np.abs(got.lse).max() < spread, "logits stay below the cap"
    uncapped, loose = agree(q, k, v), agree(q, k, v, softcap=1e6)
    np.testing.assert_allclose(loose.o, uncapped.o, atol=1e-4)
    np.testing.assert_allclose(loose.dq, uncapped.dq, atol=2e-3)


def test_A52_block_mask_of_the_causal_pattern() -> None:
    L = 8 * 32
    q, k, v = qkv("float32", 1, 2, 2, L, L, 64)
    block = np.tril(np.ones((8, 8), np.uint8))
    same_bits(agree(q, k, v, block_mask=block, causal=True), agree(q, k, v, causal=True))
    whole_tiles = agree(q, k, v, block_mask=block)
    expanded = np.kron(block, np.ones((32, 32))).astype(bool)
    as_bool = agree(q, k, v, mask=expanded)
    for name in ("o", "dq", "dk", "dv"):
        np.testing.assert_allclose(
            getattr(whole_tiles, name), getattr(as_bool, name), rtol=1e-4, atol=1e-5
        )


@pytest.mark.parametrize("impl", ["kernel", "reference"])
def test_A53_packed_segments_are_separate_calls(impl: str) -> None:
    cut, L = 300, 512
    q, k, v = qkv("float32", 1, 2, 1, L, L, 64)
    d_o = normal("float32", 1, 2, L, 64, seed=4)
    ids = (np.arange(L) >= cut).astype(np.int32)[None]
    packed = agree(q, k, v, d_o, impl=impl, segments=(ids, ids), causal=True)
    for part in (slice(0, cut), slice(cut, L)):
        alone = agree(*(x[:, :, part] for x in (q, k, v, d_o)), impl=impl, causal=True)
        for name in ("o", "dq", "dk", "dv"):
            want = getattr(alone, name)
            np.testing.assert_allclose(
                getattr(packed, name)[:, :, part], want, rtol=1e-4, atol=1e-5
            )


def test_A54_gradients_of_keys_that_no_tile_visits() -> None:
    q, k, v = qkv("float32", 1, 4, 2, 64, 300, 64)
    for _ in range(20):
        fill = [mx.full(k.shape, float("nan")) for _ in range(8)]
        mx.eval(fill)
        del fill
        got = call(*map(to_mx, (q, k, v)), impl="kernel", causal=True, window=(31, 0))
        assert not got.dk[:, :, :205].any()
        assert not got.dv[:, :, :205].any()
    agree(q, k, v, causal=True, window=(31, 0))


def test_A55_gradients_of_some_arguments() -> None:
    q, k, v = map(to_mx, qkv("float32", 1, 4, 2, 40, 40, 32))

    def f(q: mx.array, k: mx.array, v: mx.array) -> mx.array:
        return (flashrt.attention(q, k, v, causal=True, impl="kernel") ** 2).sum()

    full = mx.grad(f, argnums=(0, 1, 2))(q, k, v)
    for argnums in ((0,), (1,), (2,), (0, 1), (0, 2), (1, 2)):
        some = mx.grad(f, argnums=argnums)(q, k, v)
        some = [some] if len(argnums) == 1 else some
        for i, got in zip(argnums, some, strict=True):
            assert mx.array_equal(got, full[i])


def _numeric(f: Any, x: np.ndarray, direction: np.ndarray, h: float = 1e-2) -> Any:
    up, down = f(x + h * direction), f(x - h * direction)
    return (up - down) / (2 * h)


def test_A56_jvp() -> None:
    q, k, v = qkv("float32", 1, 2, 2, 12, 12, 16)
    t = normal("float32", *q.shape, seed=7)
    try:
        _, (got,) = mx.jvp(
            lambda x: flashrt.attention(x, to_mx(k), to_mx(v), causal=True), [to_mx(q)], [to_mx(t)]
        )
        mx.eval(got)
    except (ValueError, TypeError) as error:
        assert "jvp" in str(error).lower() or "forward" in str(error)  # noqa: PT017
        return
    want = _numeric(lambda x: ref.attention(x, k, v, causal=True).o, q.astype(np.float64), t, 1e-5)
    np.testing.assert_allclose(np.array(got), want, atol=1e-4)


@pytest.mark.parametrize("argument", [0, 1, 2])
def test_A56_second_derivative(argument: int) -> None:
    arrays = list(qkv("float32", 1, 2, 2, 12, 12, 16))
    w = normal("float32", *arrays[0].shape, seed=8)
    t = normal("float32", *arrays[argument].shape, seed=7)

    def first(*x: mx.array) -> mx.array:
        def loss(*x: mx.array) -> mx.array:
            return (flashrt.attention(*x, causal=True) * to_mx(w)).sum()

        return (mx.grad(loss, argnums=argument)(*x) * to_mx(t)).sum()

    try:
        got = mx.grad(first, argnums=argument)(*map(to_mx, arrays))
        mx.eval(got)
    except (ValueError, TypeError) as error:
        message = str(error).lower()
        assert "second" in message or "deriv" in message or "vjp" in message
        return

    def slope(x: np.ndarray) -> np.ndarray:
        changed = [x if i == argument else y for i, y in enumerate(arrays)]
        gradient = ref.gradients(*changed, d_o=w, causal=True)[["dq", "dk", "dv"][argument]]
        assert gradient is not None
        return gradient

    # The Hessian is symmetric, so its product with t is a difference of gradients along t.
    want = _numeric(slope, arrays[argument].astype(np.float64), t, 1e-5)
    np.testing.assert_allclose(np.array(got), want, atol=2e-4)


def test_A57_wide_heads_in_a_batch_with_outliers() -> None:
    q, k, v = qkv("bfloat16", 2, 16, 2, 256, 256, 256)
    wide = np.ones(256)
    wide[::37] = 20.0
    q, k = (ref.narrow(ref.widen(x) * wide, "bfloat16") for x in (q, k))
    d_o = normal("bfloat16", *q.shape, seed=4)
    got = agree(q, k, v, d_o, causal=True)
    want = ref.gradients(q, k, v, d_o=d_o, causal=True)
    for name in ("dq", "dk", "dv"):
        a, b = ref.widen(getattr(got, name)).ravel(), want[name].ravel()
        assert a @ b / np.sqrt((a @ a) * (b @ b)) > 0.999, name
    for i in range(2):
        alone = call(*(to_mx(x[i : i + 1]) for x in (q, k, v)), d_o[i : i + 1], causal=True)
        for name in ("o", "dq", "dk", "dv"):
            np.testing.assert_array_equal(getattr(alone, name)[0], getattr(got, name)[i])
