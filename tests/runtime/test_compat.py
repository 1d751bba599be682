"""Foreign signatures, and the patch of mx.fast."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

import flashrt
from flashrt import compat
from flashrt._route import Device, Target
from tests.runtime.arrays import assert_close, normal, to_numpy

# As flash_attn 2.8 declares them.
FLASH_ATTN = (
    "(q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), "
    "softcap=0.0, alibi_slopes=None, deterministic=False, return_attn_probs=False)"
)
FLASH_ATTN_VARLEN = (
    "(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0, "
    "softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None, "
    "deterministic=False, return_attn_probs=False, block_table=None)"
)
# As mlx 0.32.4 declares it.
MLX = "(q, k, v, *, scale, mask=None, sinks=None, force_fused=False, stream=None)"


@pytest.mark.parametrize(
    ("function", "declared"),
    [
        (compat.flash_attn_func, FLASH_ATTN),
        (compat.flash_attn_varlen_func, FLASH_ATTN_VARLEN),
        (compat.scaled_dot_product_attention, MLX),
    ],
)
def test_signatures(function: Any, declared: str) -> None:
    """Names, order and defaults."""
    signature = inspect.signature(function)
    bare = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
    assert str(inspect.Signature(bare)) == declared


def test_flash_attn_func() -> None:
    """(B, L, H, D) in and out; the window and causal as there."""
    rng = np.random.default_rng(1)
    q, k, v = normal(rng, 2, 9, 4, 16), normal(rng, 2, 13, 2, 16), normal(rng, 2, 13, 2, 16)
    slopes = mx.array([0.1, 0.2, 0.3, 0.4])
    o = compat.flash_attn_func(q, k, v, 0.0, 0.3, True, (4, -1), 5.0, slopes, deterministic=True)
    expected = flashrt.attention(
        *(x.swapaxes(1, 2) for x in (q, k, v)),
        scale=0.3,
        causal=True,
        window_size=(4, -1),
        softcap=5.0,
        alibi_slopes=slopes,
        impl="reference",
    ).swapaxes(1, 2)
    assert_close(o, to_numpy(expected))


def test_flash_attn_varlen_func() -> None:
    """(total, H, D) in and out."""
    rng = np.random.default_rng(2)
    q, k, v = (normal(rng, 20, h, 16) for h in (4, 2, 2))
    cu = mx.array([0, 5, 20], mx.int32)
    o = compat.flash_attn_varlen_func(q, k, v, cu, cu, 15, 15, causal=True)
    assert_close(o, to_numpy(flashrt.attention_varlen(q, k, v, cu, cu, causal=True)))


@pytest.mark.parametrize(
    "argument",
    [{"dropout_p": 0.1}, {"return_attn_probs": True}, {"block_table": mx.zeros((1, 1))}],
    ids=lambda a: next(iter(a)),
)
def test_what_has_no_counterpart(argument: dict[str, Any]) -> None:
    """Refused by name, never dropped."""
    q, cu = mx.zeros((8, 2, 16)), mx.array([0, 8], mx.int32)
    name = next(iter(argument))
    with pytest.raises(flashrt.UnsupportedError, match=name):
        compat.flash_attn_varlen_func(q, q, q, cu, cu, 8, 8, **argument)
    if name != "block_table":
        with pytest.raises(flashrt.UnsupportedError, match=name):
            compat.flash_attn_func(q[None], q[None], q[None], **argument)


def test_scaled_dot_product_attention_equals_mlx() -> None:
    """Where both mean the same."""
    rng = np.random.default_rng(3)
    q, k, v = normal(rng, 1, 4, 9, 16), normal(rng, 1, 2, 13, 16), normal(rng, 1, 2, 13, 16)
    keep = mx.array(rng.random((9, 13)) < 0.7)
    for mask in (None, "causal", keep, normal(rng, 1, 4, 9, 13)):
        for sinks in (None, normal(rng, 4)):
            expected = mx.fast.scaled_dot_product_attention(
                q, k, v, scale=0.3, mask=mask, sinks=sinks
            )
            found = compat.scaled_dot_product_attention(
                q, k, v, scale=0.3, mask=mask, sinks=sinks, force_fused=True
            )
            assert_close(found, to_numpy(expected))


@pytest.fixture
def original() -> Iterator[Any]:
    """MLX's own function, put back whatever a test does."""
    function = mx.fast.scaled_dot_product_attention
    yield function
    while mx.fast.scaled_dot_product_attention is not function:
        flashrt.unpatch_mlx()


def test_patch_and_unpatch(original: Any) -> None:
    """Calls nest, the last undo restores MLX, one more does nothing."""
    flashrt.patch_mlx()
    patched = mx.fast.scaled_dot_product_attention
    assert patched is not original
    with flashrt.patch_mlx():
        assert mx.fast.scaled_dot_product_attention is patched
    assert mx.fast.scaled_dot_product_attention is patched
    flashrt.unpatch_mlx()
    assert mx.fast.scaled_dot_product_attention is original
    flashrt.unpatch_mlx()
    assert mx.fast.scaled_dot_product_attention is original


def test_patched_calls_run_flashrt(original: Any) -> None:
    """The difference shows in a row whose keys are all masked: 0 and not the mean of V."""
    rng = np.random.default_rng(4)
    q, k, v = (normal(rng, 1, 2, 5, 8) for _ in range(3))
    mask = mx.array([[False] * 5] + [[True] * 5] * 4)
    assert mx.abs(original(q, k, v, scale=1.0, mask=mask)[:, :, 0]).max().item() > 0.01
    with flashrt.patch_mlx():
        o = mx.fast.scaled_dot_product_attention(q, k, v, scale=1.0, mask=mask)
        gradient = mx.grad(
            lambda q: mx.fast.scaled_dot_product_attention(q, k, v, scale=1.0, mask=mask).sum()
        )(q)
    assert not o[:, :, 0].any().item()
    assert mx.isfinite(gradient).all().item()


def test_patched_calls_leave_the_rest_to_mlx(original: Any) -> None:
    """Integer masks and MLX's own errors are MLX's."""
    rng = np.random.default_rng(5)
    q, k, v = (normal(rng, 1, 2, 5, 8) for _ in range(3))
    mask = mx.zeros((5, 5), mx.int32)
    expected = original(q, k, v, scale=1.0, mask=mask)
    with flashrt.patch_mlx():
        found = mx.fast.scaled_dot_product_attention(q, k, v, scale=1.0, mask=mask)
        with pytest.raises(ValueError, match="scaled_dot_product_attention"):
            mx.fast.scaled_dot_product_attention(q, k[0], v, scale=1.0)
        with pytest.raises(TypeError):
            mx.fast.scaled_dot_product_attention(q, k, v)
    assert mx.array_equal(found, expected)


def test_the_mlx_route_is_mlx_while_patched(original: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked for by argument, by the environment, or under another wrapper: never flashrt again."""
    rng = np.random.default_rng(6)
    q, k, v = (normal(rng, 1, 2, 33, 16, dtype="bfloat16") for _ in range(3))
    expected = original(q, k, v, scale=0.25)
    gradient = mx.grad(lambda q: original(q, k, v, scale=0.25).sum())(q)
    assert not mx.array_equal(expected, flashrt.attention(q, k, v, impl="kernel"))
    with flashrt.patch_mlx():
        assert mx.array_equal(flashrt.attention(q, k, v, impl="mlx"), expected)
        monkeypatch.setenv("FLASHRT_IMPL", "mlx")
        patched = mx.fast.scaled_dot_product_attention
        assert mx.array_equal(patched(q, k, v, scale=0.25), expected)
        found = mx.grad(lambda q: patched(q, k, v, scale=0.25).sum())(q)
        assert mx.array_equal(found, gradient)
    assert mx.array_equal(flashrt.attention(q, k, v), expected)


def test_the_mlx_route_is_mlx_under_a_patch_of_ones_own(
    original: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The compatible function put in by hand is not MLX either."""
    q = mx.random.normal((1, 1, 64, 16))
    expected = original(q, q, q, scale=0.25)
    monkeypatch.setattr(
        mx.fast, "scaled_dot_product_attention", compat.scaled_dot_product_attention
    )
    assert mx.array_equal(flashrt.attention(q, q, q, impl="mlx"), expected)
    monkeypatch.setenv("FLASHRT_IMPL", "mlx")
    assert mx.array_equal(mx.fast.scaled_dot_product_attention(q, q, q, scale=0.25), expected)


@pytest.mark.parametrize("scale", [0.5, mx.array(0.5), np.array(0.5), np.float16(0.5), 1, True])
def test_scales_that_mlx_takes(scale: Any, original: Any) -> None:
    """Whatever wraps the number, flashrt runs: a hidden row is 0 and not the mean of V."""
    q = mx.random.normal((1, 1, 4, 8))
    hidden = mx.zeros((4, 4), dtype=mx.bool_)
    with flashrt.patch_mlx():
        o = mx.fast.scaled_dot_product_attention(q, q, q, scale=scale, mask=hidden)
        plain = mx.fast.scaled_dot_product_attention(q, q, q, scale=scale)
    assert not o.any().item()
    assert_close(plain, to_numpy(original(q, q, q, scale=float(scale))))


def test_kernels_that_are_asked_for_by_name_run_or_raise(
    original: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLASHRT_IMPL", "kernel")
    wide = mx.ones((1, 1, 4, 300))
    with flashrt.patch_mlx(), pytest.raises(flashrt.UnsupportedError, match="300"):
        mx.fast.scaled_dot_product_attention(wide, wide, wide, scale=1.0)


def test_window_and_dropout_of_other_kinds() -> None:
    """The message names the argument and its value."""
    q = mx.ones((1, 4, 2, 8))
    for window in (4, None):
        with pytest.raises(TypeError, match=f"window_size={window}.*left, right"):
            compat.flash_attn_func(q, q, q, window_size=window)
    with pytest.raises(TypeError, match="dropout_p"):
        compat.flash_attn_func(q, q, q, dropout_p=mx.array([0.0, 1.0]))


def test_patched_calls_look_at_their_stream(original: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """MLX keeps a few queries on a GPU, not those that are sent to the CPU."""
    cpu = mx.new_stream(mx.cpu)

    def target(settings: object) -> Target:
        return Target(Device.CPU if mx.default_stream(mx.cpu) == cpu else Device.METAL)

    monkeypatch.setattr(importlib.import_module("flashrt.patch"), "current_target", target)
    q = mx.ones((1, 2, 4, 8))
    hidden = mx.zeros((4, 4), dtype=mx.bool_)  # MLX gives the mean of V, flashrt 0
    with flashrt.patch_mlx():
        patched = mx.fast.scaled_dot_product_attention
        assert patched(q, q, q, scale=1.0, mask=hidden).any().item()
        assert not patched(q, q, q, scale=1.0, mask=hidden, stream=cpu).any().item()


@pytest.mark.parametrize("queries", [1, 8, 9])
def test_decoding_on_a_gpu_stays_with_mlx(
    queries: int, original: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to 8 queries; on a CPU flashrt takes them all."""
    q, k = mx.ones((1, 2, queries, 8)), mx.ones((1, 2, 9, 8))
    hidden = mx.zeros((queries, 9), mx.bool_)  # MLX gives the mean of V, flashrt 0

    def runs_on_mlx() -> bool:
        with flashrt.patch_mlx():
            o = mx.fast.scaled_dot_product_attention(q, k, k, scale=1.0, mask=hidden)
        return bool(o.any().item())

    assert not runs_on_mlx()
    module = importlib.import_module("flashrt.patch")
    monkeypatch.setattr(module, "current_target", lambda settings: Target(Device.METAL))
    assert runs_on_mlx() == (queries <= 8)


def test_patch_of_somebody_else(original: Any) -> None:
    """Undoing over another replacement would undo that too: refused, and nothing changed."""

    def other(*args: Any, **kwargs: Any) -> Any:
        return original(*args, **kwargs)

    flashrt.patch_mlx()
    patched = mx.fast.scaled_dot_product_attention
    mx.fast.scaled_dot_product_attention = other
    try:
        with pytest.raises(RuntimeError, match="replaced by"):
            flashrt.unpatch_mlx()
        with pytest.raises(RuntimeError, match="replaced by"):
            flashrt.patch_mlx()
        assert mx.fast.scaled_dot_product_attention is other
    finally:
        mx.fast.scaled_dot_product_attention = patched
    flashrt.unpatch_mlx()
    assert mx.fast.scaled_dot_product_attention is original
