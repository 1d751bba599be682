"""Every refusal is typed, at the call, and names argument, value, what is supported, a way out."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest

import flashrt

Q = mx.zeros((1, 4, 8, 16))
K = mx.zeros((1, 2, 12, 16))


def shaped(*shape: int, dtype: mx.Dtype = mx.float32) -> mx.array:
    return mx.zeros(shape, dtype=dtype)


def call(q: Any = Q, k: Any = K, v: Any = None, **options: Any) -> Any:
    return flashrt.attention(q, k, k if v is None else v, **options)


# name: (arguments, error, what the message says)
REFUSED: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "q of numpy": ({"q": np.zeros((1, 4, 8, 16))}, TypeError, r"q is a ndarray.*mx\.array\(q\)"),
    "q None": ({"q": None}, TypeError, "q is a NoneType"),
    "q rank 3": ({"q": shaped(4, 8, 16)}, ValueError, r"q has shape \(4, 8, 16\).*rank 4"),
    "v rank 5": ({"v": shaped(1, 1, 2, 12, 16)}, ValueError, "v has shape.*rank 5"),
    "q of integers": ({"q": shaped(1, 4, 8, 16, dtype=mx.int32)}, TypeError, "q has dtype int32"),
    "q complex": ({"q": shaped(1, 4, 8, 16, dtype=mx.complex64)}, TypeError, "complex64"),
    "batches differ": ({"q": shaped(3, 4, 8, 16)}, ValueError, "batch sizes 3 and 1"),
    "head dims differ": ({"q": shaped(1, 4, 8, 32)}, ValueError, "head dims 32 and 16"),
    "k and v differ": ({"v": shaped(1, 2, 13, 16)}, ValueError, r"k has shape.*v has shape"),
    "heads 5/2": ({"q": shaped(1, 5, 8, 16)}, ValueError, "5 query heads are not a multiple of 2"),
    "heads 2/4": (
        {"q": shaped(1, 2, 8, 16), "k": shaped(1, 4, 8, 16)},
        ValueError,
        "multiple of 4",
    ),
    "heads 4/0": ({"k": shaped(1, 0, 12, 16)}, ValueError, "0 key heads"),
    "heads 0/0": ({"q": shaped(1, 0, 8, 16), "k": shaped(1, 0, 12, 16)}, ValueError, "0 query"),
    "head dim 0": ({"q": shaped(1, 4, 8, 0), "k": shaped(1, 2, 8, 0)}, ValueError, "head dim of 0"),
    "layout B L H D": (
        {"q": shaped(1, 7, 4, 16), "k": shaped(1, 9, 2, 16)},
        ValueError,
        r"\(B, L, H, D\).*swapaxes\(1, 2\)",
    ),
    "scale nan": ({"scale": float("nan")}, ValueError, "scale=nan"),
    "scale inf": ({"scale": float("inf")}, ValueError, "scale=inf"),
    "scale beyond float32": ({"scale": 1e300}, ValueError, r"scale=1e\+300"),
    "scale text": ({"scale": "1"}, TypeError, "scale='1'"),
    "scale bool": ({"scale": True}, TypeError, "scale=True"),
    "scale array": ({"scale": mx.array(0.5)}, TypeError, r"scale\.item\(\)"),
    "mask by another name": ({"mask": "full"}, ValueError, "mask='full'.*'causal'"),
    "mask of numpy": ({"mask": np.ones((8, 12), bool)}, TypeError, "mask is a ndarray"),
    "mask int32": ({"mask": shaped(8, 12, dtype=mx.int32)}, TypeError, "mask has dtype int32"),
    "mask uint8": ({"mask": shaped(8, 12, dtype=mx.uint8)}, TypeError, "mask has dtype uint8"),
    "mask complex": ({"mask": shaped(8, 12, dtype=mx.complex64)}, TypeError, "complex64"),
    "mask rank 5": ({"mask": shaped(1, 1, 1, 8, 12)}, ValueError, r"\(1, 4, 8, 12\)"),
    "mask of the queries": (
        {"mask": shaped(8, 8)},
        ValueError,
        r"mask has shape \(8, 8\).*\(1, 4, 8, 12\).*4 columns",
    ),
    "mask transposed": ({"mask": shaped(12, 8)}, ValueError, r"mask has shape \(12, 8\)"),
    "causal by name": ({"causal": "top_left"}, TypeError, "causal='top_left'.*True or False"),
    "causal 1": ({"causal": 1}, TypeError, "causal=1"),
    "window 0": ({"window_size": 0}, ValueError, "window_size=0"),
    "window -5": ({"window_size": -5}, ValueError, "window_size=-5"),
    "window (3,)": ({"window_size": (3,)}, TypeError, r"window_size=\(3,\)"),
    "window (1, 2, 3)": ({"window_size": (1, 2, 3)}, TypeError, r"\(1, 2, 3\)"),
    "window (-2, 0)": ({"window_size": (-2, 0)}, ValueError, r"\(-2, 0\)"),
    "window ('a', 0)": ({"window_size": ("a", 0)}, TypeError, r"\('a', 0\)"),
    "window 1.5": ({"window_size": 1.5}, TypeError, "window_size=1.5"),
    "window True": ({"window_size": True}, TypeError, "window_size=True"),
    "softcap -1": ({"softcap": -1.0}, ValueError, "softcap=-1.0"),
    "softcap nan": ({"softcap": float("nan")}, ValueError, "softcap=nan"),
    "softcap 1e-40": ({"softcap": 1e-40}, ValueError, "softcap=1e-40"),
    "sinks per key head": ({"sinks": shaped(2)}, ValueError, r"sinks has shape \(2,\).*\(4,\)"),
    "sinks of integers": ({"sinks": shaped(4, dtype=mx.int32)}, TypeError, "sinks has dtype int32"),
    "slopes per key head": ({"alibi_slopes": shaped(2)}, ValueError, r"alibi_slopes has shape"),
    "block mask float": ({"block_mask": shaped(1, 1)}, TypeError, "block_mask has dtype float32"),
    "block mask too fine": (
        {"block_mask": shaped(8, 12, dtype=mx.bool_)},
        ValueError,
        r"block_mask has shape \(8, 12\).*\(1, 1\)",
    ),
    "block mask rank 3": (
        {"block_mask": shaped(4, 1, 1, dtype=mx.bool_)},
        ValueError,
        "block_mask has shape",
    ),
    "one id array": (
        {"segment_ids": shaped(1, 8, dtype=mx.int32)},
        ValueError,
        r"qL=8, kL=12.*\(q_ids, k_ids\)",
    ),
    "float ids": ({"segment_ids": (shaped(1, 8), shaped(1, 12))}, TypeError, "dtype float32"),
    "int64 ids": (
        {"segment_ids": (shaped(1, 8, dtype=mx.int64), shaped(1, 12, dtype=mx.int64))},
        TypeError,
        "dtype int64",
    ),
    "ids of the wrong length": (
        {"segment_ids": (shaped(1, 8, dtype=mx.int32), shaped(1, 8, dtype=mx.int32))},
        ValueError,
        r"segment_ids of k has shape \(1, 8\).*\(1, 12\)",
    ),
    "three id arrays": (
        {"segment_ids": (shaped(1, 8, dtype=mx.int32),) * 3},
        TypeError,
        "segment_ids has 3 arrays",
    ),
    "impl by another name": ({"impl": "metal"}, ValueError, "impl='metal'.*'kernel'"),
    "return_lse 1": ({"return_lse": 1}, TypeError, "return_lse=1"),
    "kernel for D=300": (
        {"q": shaped(1, 4, 8, 300), "k": shaped(1, 2, 8, 300), "impl": "kernel"},
        flashrt.UnsupportedError,
        "D=300.*256.*impl='reference'",
    ),
    "mlx with a window": (
        {"impl": "mlx", "window_size": 3},
        flashrt.UnsupportedError,
        "impl='mlx'.*window_size.*impl='auto'",
    ),
    "mlx with an LSE": (
        {"impl": "mlx", "return_lse": True},
        flashrt.UnsupportedError,
        "return_lse",
    ),
    "mlx with a mask": (
        {"impl": "mlx", "mask": shaped(8, 12, dtype=mx.bool_)},
        flashrt.UnsupportedError,
        "mean of V",
    ),
    "mlx with empty rows": (
        {"impl": "mlx", "causal": True, "k": shaped(1, 2, 4, 16)},
        flashrt.UnsupportedError,
        "qL=8 > kL=4",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name: str) -> None:
    """The message matches, the type is right, and a refusal is a ValueError or a TypeError."""
    arguments, error, message = REFUSED[name]
    with pytest.raises(error, match="(?s)" + message) as raised:
        call(**arguments)
    assert type(raised.value) in (ValueError, TypeError, flashrt.UnsupportedError)
    assert issubclass(flashrt.UnsupportedError, ValueError)


ACCEPTED: dict[str, dict[str, Any]] = {
    "numpy scale": {"scale": np.float32(0.25)},
    "integer scale": {"scale": 2},
    "numpy integer scale": {"scale": np.int64(-1)},
    "zero scale": {"scale": 0},
    "numpy causal": {"causal": np.bool_(True)},
    "mask by name": {"mask": "causal"},
    "numpy window": {"window_size": np.int32(3)},
    "window list": {"window_size": [2, 0]},
    "unbounded window": {"window_size": (-1, -1)},
    "huge window": {"window_size": 2**40},
    "no softcap": {"softcap": 0.0},
    "float16 mask": {"mask": shaped(8, 12, dtype=mx.float16)},
    "bfloat16 sinks": {"sinks": shaped(4, dtype=mx.bfloat16)},
    "uint8 block mask": {"block_mask": shaped(1, 4, 1, 1, dtype=mx.uint8)},
    "int16 ids": {"segment_ids": (shaped(1, 8, dtype=mx.int16), shaped(1, 12, dtype=mx.int16))},
    "wide head dim": {"q": shaped(1, 4, 8, 300), "k": shaped(1, 2, 8, 300)},
    "no keys": {"k": shaped(1, 2, 0, 16)},
    "no queries": {"q": shaped(1, 4, 0, 16)},
    "no batch": {"q": shaped(0, 4, 8, 16), "k": shaped(0, 2, 12, 16)},
}


@pytest.mark.parametrize("impl", ["auto", "reference"])
@pytest.mark.parametrize("name", ACCEPTED)
def test_what_is_accepted(name: str, impl: Any) -> None:
    """Runs, forward and backward, with the right shapes."""
    arguments = {"q": Q, "k": K} | ACCEPTED[name]
    q, k = arguments.pop("q"), arguments.pop("k")

    def loss(q: mx.array, k: mx.array) -> mx.array:
        o, lse = call(q, k, **arguments, impl=impl, return_lse=True)
        assert o.shape == q.shape
        assert lse.shape == q.shape[:3]
        return o.sum()

    gradients = mx.grad(loss, (0, 1))(q, k)
    assert [g.shape for g in gradients] == [q.shape, k.shape]
    assert all(mx.isfinite(g).all().item() for g in gradients)


def test_rows_that_see_nothing() -> None:
    """KL = 0: O is 0, the LSE -inf or the sink, gradients 0; the sink's own gets dLSE."""
    q, k = mx.ones((1, 2, 3, 8)), mx.ones((1, 2, 0, 8))
    o, lse = flashrt.attention(q, k, k, return_lse=True)
    assert mx.array_equal(o, mx.zeros((1, 2, 3, 8)))
    assert mx.array_equal(lse, mx.full((1, 2, 3), -mx.inf))
    sinks = mx.array([1.0, -2.0])

    def total(sinks: mx.array) -> mx.array:
        return flashrt.attention(q, k, k, sinks=sinks, return_lse=True)[1].sum()

    value, gradient = mx.value_and_grad(total)(sinks)
    assert value.item() == pytest.approx(3 * -1.0)
    assert mx.allclose(gradient, mx.array([3.0, 3.0]))


def test_a_scale_of_zero_and_below() -> None:
    """Zero weighs all keys alike; a negative one turns the order round."""
    mx.random.seed(1)
    q, k, v = (mx.random.normal((1, 2, 5, 8)) for _ in range(3))
    even = flashrt.attention(q, k, v, scale=0)
    assert mx.allclose(even, mx.broadcast_to(v.mean(2, keepdims=True), v.shape), atol=1e-6)
    assert mx.allclose(
        flashrt.attention(q, k, v, scale=-0.5), flashrt.attention(-q, k, v, scale=0.5), atol=1e-6
    )


@pytest.mark.parametrize("name", ["scale", "softcap"])
def test_integers_beyond_any_float(name: str) -> None:
    q = mx.ones((1, 1, 4, 8))
    with pytest.raises(ValueError, match=f"{name}=inf: supported: finite numbers"):
        flashrt.attention(q, q, q, **{name: 10**400})


def test_an_architecture_is_a_name() -> None:
    q = mx.ones((1, 1, 4, 8))
    with pytest.raises(TypeError, match="architecture=5 is a int; expected"):
        flashrt.explain(q, q, q, architecture=5)
