"""A19 to A26: causal alignment and windows."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest

import flashrt
from tests import reference as ref
from tests.cases.support import agree, from_mx, qkv, to_mx


def forward(q: Any, k: Any, v: Any, **options: Any) -> np.ndarray:
    return from_mx(flashrt.attention(to_mx(q), to_mx(k), to_mx(v), impl="kernel", **options))


def test_A19_causal_is_aligned_to_the_last_key() -> None:
    q, k, v = qkv("float32", 1, 1, 1, 3, 7, 64)
    causal = agree(q, k, v, causal=True)
    lower = np.tril(np.ones((3, 7), bool), 4)
    np.testing.assert_allclose(causal.o, agree(q, k, v, mask=lower).o, atol=1e-6)
    changed = k.copy()
    changed[:, :, 5:] += 1
    np.testing.assert_array_equal(forward(q, changed, v, causal=True)[:, :, 0], causal.o[:, :, 0])
    changed[:, :, 4] += 1
    assert (forward(q, changed, v, causal=True)[:, :, 0] != causal.o[:, :, 0]).any()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_A20_no_row_depends_on_a_later_key(dtype: str) -> None:
    q, k, v = qkv(dtype, 1, 4, 4, 64, 64, 64)
    before = forward(q, k, v, causal=True)
    _, k2, v2 = (x + np.uint16(1) if dtype == "bfloat16" else x * 2 for x in (q, k, v))
    for i in range(64):
        late_k, late_v = k.copy(), v.copy()
        late_k[:, :, i + 1 :], late_v[:, :, i + 1 :] = k2[:, :, i + 1 :], v2[:, :, i + 1 :]
        after = forward(q, late_k, late_v, causal=True)
        np.testing.assert_array_equal(after[:, :, : i + 1], before[:, :, : i + 1])


def test_A21_backward_without_a_mask() -> None:
    q, k, v = qkv("float32", 1, 2, 2, 128, 128, 64)
    agree(q, k, v, causal=False)


def test_A22_the_causal_flag_has_an_effect() -> None:
    q, k, v = qkv("float32", 2, 4, 4, 96, 96, 64)
    causal, full = agree(q, k, v, causal=True), agree(q, k, v, causal=False)
    np.testing.assert_array_equal(causal.o[:, :, 0], v[:, :, 0])
    assert np.abs(causal.o - full.o).max() > 0.1


def test_A23_prefill_in_chunks() -> None:
    q, k, v = qkv("float16", 1, 1, 1, 2049, 2049, 64)
    whole = agree(q, k, v, causal=True).o
    f = ref.attention(q, k, v, causal=True)
    for first, last in ((0, 1024), (1024, 2049)):
        part = forward(q[:, :, first:last], k[:, :, :last], v[:, :, :last], causal=True)
        np.testing.assert_allclose(part, f.o[:, :, first:last], rtol=2e-3, atol=2e-3)
        np.testing.assert_allclose(part, whole[:, :, first:last], rtol=2e-3, atol=2e-3)


def test_A24_a_window_counts_the_row_itself() -> None:
    q, k, v = qkv("float32", 1, 1, 1, 70, 70, 64)
    before = agree(q, k, v, causal=True, window=(15, 0)).o
    np.testing.assert_array_equal(forward(q, k, v, window_size=16), before)
    np.testing.assert_array_equal(forward(q, k, v, window_size=(15, 0)), before)
    for i in (16, 40, 69):
        changed = k.copy()
        changed[:, :, i - 16] += 3
        after = forward(q, changed, v, window_size=16)
        np.testing.assert_array_equal(after[:, :, i], before[:, :, i])
        assert (after[:, :, i - 1] != before[:, :, i - 1]).any()


@pytest.mark.parametrize("window", [(32, 64), (5, 0), (0, 5), (-1, 3), (3, -1), (0, 0)])
def test_A25_a_window_that_leaves_rows_without_keys(window: tuple[int, int]) -> None:
    q, k, v = qkv("float32", 1, 2, 2, 129, 64, 64)
    got = agree(q, k, v, window=window)
    seen = ref.visibility((1, 2, 129, 64), window=window).any(-1)
    assert not got.o[~seen].any()
    assert np.array_equal(np.isfinite(got.lse), seen)


@pytest.mark.parametrize(
    "window", [-5, 0, (3,), (1, 2, 3), ("a", 0), 1.5, True, (1, -2), "4", (None, 1), (1.0, 2)]
)
def test_A26_nonsense_windows(window: Any) -> None:
    q, k, v = map(to_mx, qkv("float32", 1, 1, 1, 8, 8, 16))
    with pytest.raises((ValueError, TypeError), match="window_size"):
        flashrt.attention(q, k, v, window_size=window)


@pytest.mark.parametrize("offset", [0, 1, 15, 16, 17, 31, -1, -17])
@pytest.mark.parametrize("window", [None, (20, 0)])
def test_every_offset_of_the_diagonal(offset: int, window: tuple[int, int] | None) -> None:
    for length in (1, 31, 32, 64, 77):
        if length + offset < 1:
            continue
        q, k, v = qkv("float32", 1, 2, 1, length, length + offset, 32)
        agree(q, k, v, causal=True, window=window)


def test_windows_beyond_the_sequence_hide_nothing() -> None:
    q, k, v = qkv("float32", 1, 1, 1, 9, 9, 16)
    whole = forward(q, k, v, causal=True)
    for window in (9, 1000, 2**31, 2**62, (8, 0), (2**62, 0)):
        np.testing.assert_array_equal(forward(q, k, v, window_size=window), whole)
    assert mx.array_equal(
        flashrt.attention(*map(to_mx, (q, k, v)), mask="causal", impl="kernel"), mx.array(whole)
    )
