"""attention() on the CPU against the float64 reference, forward and backward, every option."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest

import flashrt
from tests import reference
from tests.runtime.arrays import assert_close, normal, to_mx, to_numpy

B, H, HK, QL, KL, D, DV = 2, 4, 2, 37, 70, 32, 24


def options(
    rng: np.random.Generator, names: tuple[str, ...]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return arguments of attention and of the reference for the options of these names."""
    ours: dict[str, Any] = {}
    theirs: dict[str, Any] = {}
    for name in names:
        match name:
            case "scale":
                ours["scale"] = theirs["scale"] = -0.3
            case "causal":
                ours["causal"] = theirs["causal"] = True
            case "window":
                ours["window_size"] = theirs["window"] = (9, 5)
            case "last_keys":
                ours["window_size"] = 7
                theirs["window"], theirs["causal"] = (6, 0), True
            case "bool_mask":
                mask = rng.random((B, 1, QL, KL)) < 0.5
                mask[0, 0, 3] = False  # a row that sees nothing
                ours["mask"], theirs["mask"] = to_mx(mask), mask
            case "additive_mask":
                mask = rng.standard_normal((H, QL, KL)).astype(np.float32)
                mask[rng.random(mask.shape) < 0.2] = -np.inf
                ours["mask"], theirs["mask"] = to_mx(mask), mask
            case "key_bias":
                mask = rng.standard_normal((1, H, 1, KL)).astype(np.float32)
                ours["mask"], theirs["mask"] = to_mx(mask), mask
            case "softcap":
                ours["softcap"] = theirs["softcap"] = 1.5
            case "sinks":
                sinks = rng.standard_normal(H).astype(np.float32)
                ours["sinks"], theirs["sinks"] = to_mx(sinks), sinks
            case "alibi":
                slopes = rng.random((B, H)).astype(np.float32)
                ours["alibi_slopes"], theirs["alibi"] = to_mx(slopes), slopes
            case "block_mask":
                block = rng.random((1, H, 2, 3)) < 0.6
                ours["block_mask"], theirs["block_mask"] = to_mx(block), block
            case "segments":
                q_ids = np.sort(rng.integers(0, 3, (B, QL))).astype(np.int32)
                k_ids = np.sort(rng.integers(0, 3, (B, KL))).astype(np.int32)
                ours["segment_ids"] = (to_mx(q_ids), to_mx(k_ids))
                theirs["segments"] = (q_ids, k_ids)
    return ours, theirs


COMBINATIONS: tuple[tuple[str, ...], ...] = (
    (),
    ("scale",),
    ("causal",),
    ("window",),
    ("last_keys",),
    ("bool_mask",),
    ("additive_mask",),
    ("key_bias", "causal"),
    ("softcap",),
    ("sinks",),
    ("alibi", "causal"),
    ("block_mask",),
    ("segments",),
    ("causal", "window", "bool_mask", "softcap", "sinks", "alibi", "block_mask", "segments"),
    ("last_keys", "additive_mask", "softcap", "sinks", "scale"),
)


@pytest.mark.parametrize("impl", ["kernel", "reference"])
@pytest.mark.parametrize("names", COMBINATIONS, ids=lambda names: "+".join(names) or "plain")
def test_values_and_gradients(names: tuple[str, ...], impl: str) -> None:
    """O, LSE and every gradient, with a cotangent on both outputs."""
    rng = np.random.default_rng(7)
    ours, theirs = options(rng, names)
    q, k, v = normal(rng, B, H, QL, D), normal(rng, B, HK, KL, D), normal(rng, B, HK, KL, DV)
    d_o, d_lse = normal(rng, B, H, QL, DV), normal(rng, B, H, QL)
    trained = [n for n in ("mask", "sinks") if n in ours and ours[n].dtype != mx.bool_]

    def forward(q: mx.array, k: mx.array, v: mx.array, *extras: mx.array) -> list[mx.array]:
        given = ours | dict(zip(trained, extras, strict=True))
        return list(flashrt.attention(q, k, v, **given, return_lse=True, impl=impl))

    inputs = [q, k, v, *(ours[n] for n in trained)]
    (o, lse), found = mx.vjp(forward, inputs, [d_o, d_lse])
    arrays = [to_numpy(x) for x in (q, k, v)]
    expected = reference.attention(*arrays, **theirs)
    assert_close(o, expected.o)
    assert_close(lse, expected.lse)
    # Where the LSE is -inf there is nothing to differentiate.
    gradients = reference.gradients(*arrays, d_o=to_numpy(d_o), d_lse=to_numpy(d_lse), **theirs)
    for name, gradient in zip(["q", "k", "v", *trained], found, strict=True):
        want = gradients["d" + name]
        assert want is not None
        assert_close(gradient, want.reshape(gradient.shape), times=2)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize(
    ("d", "dv"), [(64, 64), (72, 72), (27, 33), (192, 128), (256, 256), (1, 1)]
)
def test_dtypes_and_head_dims(dtype: str, d: int, dv: int) -> None:
    """Outputs and gradients keep the inputs' dtype."""
    rng = np.random.default_rng(3)
    q, k, v = (normal(rng, 1, 2, 33, n, dtype=dtype) for n in (d, d, dv))
    d_o = normal(rng, 1, 2, 33, dv, dtype=dtype)
    (o,), found = mx.vjp(
        lambda q, k, v: [flashrt.attention(q, k, v, causal=True)], [q, k, v], [d_o]
    )
    arrays = [to_numpy(x) for x in (q, k, v)]
    assert o.dtype == q.dtype
    assert_close(o, reference.attention(*arrays, causal=True).o, dtype)
    gradients = reference.gradients(*arrays, d_o=to_numpy(d_o), causal=True)
    for name, gradient in zip("qkv", found, strict=True):
        assert gradient.dtype == q.dtype
        assert_close(gradient, gradients["d" + name], dtype, times=2)


def test_mixed_dtypes_promote_and_gradients_keep_their_own() -> None:
    """Here q bfloat16 with k float32 and v float16 computes in float32."""
    rng = np.random.default_rng(4)
    q = normal(rng, 1, 2, 9, 16, dtype="bfloat16")
    k = normal(rng, 1, 2, 9, 16)
    v = normal(rng, 1, 2, 9, 16, dtype="float16")
    o, found = mx.value_and_grad(lambda *x: flashrt.attention(*x).sum(), (0, 1, 2))(q, k, v)
    assert o.dtype == mx.float32
    assert [g.dtype for g in found] == [mx.bfloat16, mx.float32, mx.float16]


def test_float64_is_composed() -> None:
    """float64 arrays live on the CPU only; MLX's own exp is good to about 1e-7 there."""
    rng = np.random.default_rng(5)
    q, k, v = (rng.standard_normal((1, 2, 9, 16)) for _ in range(3))
    with mx.stream(mx.cpu):
        o = flashrt.attention(*(mx.array(x, dtype=mx.float64) for x in (q, k, v)), causal=True)
        expected = reference.attention(q, k, v, causal=True)
        assert o.dtype == mx.float64
        assert np.abs(np.array(o) - expected.o).max() < 1e-6
    with pytest.raises(flashrt.UnsupportedError, match="float64"):
        flashrt.attention(*(mx.array(x, dtype=mx.float64) for x in (q, k, v)), impl="kernel")


def test_a_truncated_training_batch() -> None:
    """2047 tokens, what a limit of 2048 leaves of a batch that is shifted by one."""
    rng = np.random.default_rng(7)
    q, k, v, d_o = (normal(rng, 1, 1, 2047, 64, dtype="bfloat16") for _ in range(4))
    (o,), got = mx.vjp(lambda *x: flashrt.attention(*x, causal=True), [q, k, v], [d_o])
    arrays = [to_numpy(x) for x in (q, k, v)]
    f = reference.attention(*arrays, causal=True)
    right = reference.gradients(*arrays, causal=True, d_o=to_numpy(d_o))
    assert_close(o, f.o, "bfloat16")
    for gradient, name in zip(got, ("dq", "dk", "dv"), strict=True):
        assert_close(gradient, right[name], "bfloat16", times=2)
