"""The cases that concern kernels, on the emulator; the same ids as on the route of this machine."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from tests import reference as ref
from tests.kernel import check, launch
from tests.kernel.problems import Problem, Tensors, make_tensors
from tests.kernel.registry import TILED, Kernel, kernels
from tests.kernel.storage import reserved

Array = np.ndarray


def kernel(kind: str, dtype: str, d: int, dv: int | None = None) -> Kernel:
    """Find the default kernel of a kind, dtype and head dims."""
    for k in kernels():
        if (k.kind, k.dtype, k.d, k.dv, k.rank) == (kind, dtype, d, dv or d, 0):
            return k
    raise LookupError(f"no {kind} kernel for {dtype} {d}/{dv or d}")


def verdicts(
    dtype: str,
    d: int,
    dv: int | None = None,
    change: Any = None,
    kinds: tuple[str, ...] = TILED,
    **problem: Any,
) -> dict[str, Array]:
    """Run forward and backward kernels on one problem; what they gave, by name.

    ``change(tensors)`` edits inputs or options before the launch.
    """
    out: dict[str, Array] = {}
    p = Problem(dtype=dtype, d=d, dv=dv or d, **problem)
    tensors = make_tensors(p)
    if change is not None:
        tensors = change(tensors) or tensors
    for kind in kinds:
        k = kernel(kind, dtype, d, dv)
        verdict = check.check(k, p, launch.Run(), tensors)
        assert not verdict.complaints, check.explain(k, verdict)
        out |= verdict.arrays
    return out


def masked(keep: Array) -> Any:
    """Replace the bool mask."""

    def change(t: Tensors) -> None:
        t.options["mask"] = keep

    return change


def test_A01_rows_that_a_boolean_mask_empties() -> None:
    keep = np.zeros((8, 8), bool)
    keep[:4, :4] = True
    got = verdicts("float32", 64, qL=8, kL=8, mask="bool", change=masked(keep))
    assert not got["o"][:, :, 4:].any()
    assert np.isneginf(got["lse"][:, :, 4:]).all()
    assert not got["dq"][:, :, 4:].any()
    assert not got["dk"][:, :, 4:].any()
    assert not got["dv"][:, :, 4:].any()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_A02_one_query_and_one_key(dtype: str) -> None:
    got = verdicts(dtype, 64, B=1, H=1, Hk=1, qL=1, kL=1, spread=3.0)
    t = make_tensors(Problem(dtype, 64, 64, B=1, H=1, Hk=1, qL=1, kL=1, spread=3.0))
    np.testing.assert_array_equal(got["o"], t.v)
    # P is recomputed from the stored LSE and right to its rounding.
    close = {"float16": 1e-3, "bfloat16": 8e-3, "float32": 1e-5}[dtype]
    np.testing.assert_allclose(ref.widen(got["dv"]), ref.widen(t.d_o), rtol=close)


def test_A03_inputs_three_times_wider_than_unit_normal() -> None:
    verdicts("float16", 128, H=1, Hk=1, qL=200, kL=200, spread=3.0, causal=True)


@pytest.mark.parametrize("sign", [1, -1])
def test_A04_products_beyond_the_range_of_half(sign: int) -> None:
    def change(t: Tensors) -> None:
        t.q[...] = 300.0
        t.k[...] = sign * 300.0 * np.array([1.0, 0.9, 0.8, 0.7])[:, None]

    got = verdicts("float16", 128, H=1, Hk=1, qL=4, kL=4, change=change)
    v = make_tensors(Problem("float16", 128, 128, H=1, Hk=1, qL=4, kL=4)).v
    for i in range(4):
        np.testing.assert_array_equal(got["o"][:, :, i], v[:, :, 0 if sign > 0 else 3])
    assert np.isfinite(got["dq"]).all()


def test_A05_key_blocks_that_are_masked_from_the_start() -> None:
    keep = np.ones((40, 257), bool)
    keep[:, :200] = False
    got = verdicts("float32", 64, qL=40, kL=257, mask="bool", change=masked(keep))
    assert not got["dk"][:, :, :200].any()
    assert not got["dv"][:, :, :200].any()


def test_A06_nan_in_a_key_that_the_mask_removes() -> None:
    """O only, as on every route."""
    p = Problem("float32", 64, 64, qL=17, kL=17, mask="bool")
    t = make_tensors(p)
    t.options["mask"] = np.tile(np.arange(17) != 5, (17, 1))
    expected = ref.attention(t.q, t.k, t.v, **t.options).o
    t.k[:, :, 5] = np.nan
    got = launch.forward(launch.Run(), kernel("fwd", "float32", 64), p, t)
    np.testing.assert_allclose(got.arrays["o"], expected, atol=1e-5)


@pytest.mark.parametrize("value", [np.finfo(np.float32).min, -np.inf])
def test_A07_a_mask_row_of_the_lowest_finite_number(value: float) -> None:
    mask = np.zeros((9, 9), np.float32)
    mask[3] = value
    got = verdicts("float32", 64, qL=9, kL=9, mask="f32", change=masked(mask))
    mean = make_tensors(Problem("float32", 64, 64, qL=9, kL=9, mask="f32")).v.mean(2)
    expected = np.zeros_like(mean) if np.isinf(value) else mean
    np.testing.assert_allclose(got["o"][:, :, 3], expected, atol=1e-6)
    assert all(np.isfinite(got[name]).all() for name in ("o", "dq", "dk", "dv"))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_A08_masked_keys_with_the_largest_logits(dtype: str) -> None:
    def change(t: Tensors) -> None:
        keep = np.random.default_rng(8).random((70, 70)) < 0.5
        keep[:, ::7] = False
        t.options["mask"] = keep
        t.q[...] = ref.narrow(ref.widen(t.q) * 0.2 + 1.0, dtype)
        t.k[:, :, ::7] = 15.0

    got = verdicts(dtype, 64, qL=70, kL=70, mask="bool", change=change)
    assert not got["dk"][:, :, ::7].any()


def test_A10_a_mask_of_batch_one() -> None:
    mask = np.zeros((1, 1, 1, 128), np.float32)
    mask[..., 64:] = -np.inf
    shape = {"B": 4, "H": 8, "Hk": 2, "qL": 1, "kL": 128, "mask": "f32"}
    shared = verdicts("float32", 64, **shape, change=masked(mask))
    whole = verdicts("float32", 64, **shape, change=masked(np.tile(mask, (4, 1, 1, 1))))
    for name, array in shared.items():
        assert array.tobytes() == whole[name].tobytes(), name


@pytest.mark.parametrize("length", [16, 40, 41])
def test_A11_a_triangular_mask_is_causal(length: int) -> None:
    lower = np.where(np.tril(np.ones((length, length), bool)), 0, -np.inf)
    change = masked(ref.narrow(lower, "bfloat16"))
    verdicts("bfloat16", 64, qL=length, kL=length, mask="dtype", change=change)


def test_A13_a_mask_that_is_a_slice() -> None:
    verdicts("float32", 64, H=8, Hk=8, qL=77, kL=77, mask="f32", mask_shape="sliced")


@pytest.mark.parametrize("mask", ["bool", "f32"])
def test_A15_causal_and_a_mask(mask: str) -> None:
    verdicts("float32", 64, H=4, Hk=2, qL=33, kL=65, causal=True, mask=mask)


def far_apart(rows: int, width: int, pitch: int, dtype: Any) -> Array:
    """Rows ``pitch`` elements apart in memory that is reserved but hardly used."""
    return reserved(rows * pitch, dtype).reshape(rows, pitch)[:, :width]


def test_A16_a_mask_of_more_than_two_billion_elements() -> None:
    keep = far_apart(40, 64, 2**26, np.bool_)
    keep[...] = np.random.default_rng(2).random((40, 64)) < 0.3
    assert keep.strides[0] * 39 > 2**31
    change = masked(keep)
    p = Problem("float32", 64, 64, H=1, Hk=1, qL=40, kL=64, mask="bool")
    for kind in TILED:
        t = make_tensors(p)
        change(t)
        verdict = check.check(kernel(kind, "float32", 64), p, launch.Run(), t)
        assert not verdict.complaints, verdict.complaints


def test_A18_a_mask_for_every_head() -> None:
    mask = np.random.default_rng(18).standard_normal((1, 64, 1, 300)).astype(np.float32)
    verdicts("float32", 64, H=64, Hk=64, qL=1, kL=300, mask="f32", change=masked(mask))


def test_A19_causal_is_aligned_to_the_last_key() -> None:
    verdicts("float32", 64, qL=3, kL=7, causal=True)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_A20_no_row_depends_on_a_later_key(dtype: str) -> None:
    p = Problem(dtype, 64, 64, H=2, Hk=2, qL=64, kL=64, causal=True)
    fwd = kernel("fwd", dtype, 64)
    before = launch.forward(launch.Run(), fwd, p, make_tensors(p)).arrays["o"].copy()
    for i in range(0, 64, 3):
        t = make_tensors(p)
        for x in (t.k, t.v):
            x[:, :, i + 1 :] = ref.narrow(2 * ref.widen(x[:, :, i + 1 :]), dtype)
        after = launch.forward(launch.Run(), fwd, p, t).arrays["o"]
        np.testing.assert_array_equal(after[:, :, : i + 1], before[:, :, : i + 1])


def test_A21_backward_without_a_mask() -> None:
    verdicts("float32", 64, qL=128, kL=128)


def test_A24_a_window_counts_the_row_itself() -> None:
    got = verdicts("float32", 64, H=1, Hk=1, qL=70, kL=70, causal=True, window=(15, 0))

    def change(t: Tensors) -> None:
        t.k[:, :, 24] += 3

    moved = verdicts(
        "float32", 64, H=1, Hk=1, qL=70, kL=70, causal=True, window=(15, 0), change=change
    )
    np.testing.assert_array_equal(moved["o"][:, :, 40], got["o"][:, :, 40])
    assert (moved["o"][:, :, 39] != got["o"][:, :, 39]).any()


def test_A25_a_window_that_leaves_rows_without_keys() -> None:
    got = verdicts("float32", 64, qL=129, kL=64, window=(32, 64))
    seen = ref.visibility((1, 2, 129, 64), window=(32, 64)).any(-1)
    assert not got["o"][~seen].any()
    assert np.array_equal(np.isfinite(got["lse"]), seen)


@pytest.mark.parametrize("qL", [1, 8])
@pytest.mark.parametrize("kL", [38, 39, 70])
@pytest.mark.parametrize("d", [64, 96, 128])
def test_A27_nothing_behind_the_last_key_is_read(qL: int, kL: int, d: int) -> None:
    for poison in (np.nan, 1e4):
        verdicts("float16", d, qL=qL, kL=kL, layout="cache", poison=poison)


def test_A29_all_columns_of_a_wide_head_count() -> None:
    def change(t: Tensors) -> None:
        t.q[..., :64] = 0

    verdicts("float32", 128, qL=40, kL=40, change=change)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_A31_decode_with_192_and_128(dtype: str) -> None:
    verdicts(dtype, 192, 128, H=4, Hk=2, qL=1, kL=700)


@pytest.mark.parametrize("layout", ["blhd", "padded", "cache"])
def test_A33_A36_layouts_do_not_change_a_bit(layout: str) -> None:
    p = Problem("bfloat16", 64, 64, B=2, H=4, Hk=2, qL=37, kL=45, causal=True)
    t = make_tensors(p)
    for kind in TILED:
        k = kernel(kind, "bfloat16", 64)
        plain = check.check(k, p, tensors=t)
        placed = check.check(k, dataclasses.replace(p, layout=layout), tensors=t)
        assert not plain.complaints + placed.complaints
        for name, array in plain.arrays.items():
            assert array.tobytes() == placed.arrays[name].tobytes(), name


@pytest.mark.parametrize("causal", [False, True])
def test_A38_slices_of_a_longer_cache(causal: bool) -> None:
    shape = {"qL": 3, "kL": 1031, "H": 2, "Hk": 1, "causal": causal}
    verdicts("float16", 64, layout="cache", poison=3e4, **shape)


def test_A40_sixteen_query_heads_per_key_head() -> None:
    verdicts("bfloat16", 128, H=32, Hk=2, qL=1, kL=257)


@pytest.mark.parametrize("kL", [1023, 1024, 1025])
def test_A41_no_jump_at_any_length(kL: int) -> None:
    for splits in (1, 4):
        verdicts("float16", 128, H=4, Hk=1, qL=1, kL=kL, splits=splits)


@pytest.mark.parametrize(("H", "Hk"), [(6, 2), (12, 3)])
def test_A42_heads_are_split_by_the_right_count(H: int, Hk: int) -> None:
    for splits in (1, 3):
        verdicts("float32", 64, H=H, Hk=Hk, qL=50, kL=50, splits=splits)


def test_A51_softcap() -> None:
    got = verdicts("float32", 64, qL=40, kL=40, spread=5.0, softcap=15.0)
    assert np.abs(got["lse"]).max() * np.log(2) < 15.0 + np.log(40)


@pytest.mark.parametrize("causal", [False, True])
def test_A52_block_mask_of_the_causal_pattern(causal: bool) -> None:
    def change(t: Tensors) -> None:
        t.options["block_mask"] = np.tril(np.ones((8, 8), np.uint8))

    shape = {"H": 1, "Hk": 1, "qL": 256, "kL": 256, "causal": causal}
    verdicts("float32", 64, block_mask=True, change=change, **shape)


def test_A53_packed_segments() -> None:
    def change(t: Tensors) -> None:
        ids = (np.arange(160) >= 100).astype(np.int32)[None]
        t.options["segments"] = (ids, ids)

    shape = {"H": 2, "Hk": 1, "qL": 160, "kL": 160, "causal": True}
    got = verdicts("float32", 64, segments=True, change=change, **shape)
    assert np.isfinite(got["o"]).all()


def test_A54_gradients_of_keys_that_no_tile_visits() -> None:
    got = verdicts("float32", 64, H=4, Hk=2, qL=64, kL=300, causal=True, window=(31, 0))
    assert not got["dk"][:, :, :205].any()
    assert not got["dv"][:, :, :205].any()


def test_A57_wide_heads_in_a_batch_with_outliers() -> None:
    def change(t: Tensors) -> None:
        wide = np.ones(256)
        wide[::37] = 20.0
        for x in (t.q, t.k):
            x[...] = ref.narrow(ref.widen(x) * wide, "bfloat16")

    verdicts("bfloat16", 256, B=2, H=4, Hk=1, qL=64, kL=64, causal=True, change=change)


def test_A60_rows_more_than_two_billion_elements_apart() -> None:
    """Queries whose last row is 2.6e9 elements behind the first, as in (1, L, 3, 24, 128)."""
    p = Problem("float16", 64, 64, B=1, H=1, Hk=1, qL=40, kL=64)
    t = make_tensors(p)
    expected = ref.attention(t.q, t.k, t.v, **t.options).o
    far = far_apart(40, 64, 2**26, np.float16)
    far[...] = t.q[0, 0]

    class FarRun(launch.Run):
        def tensor(self, p: Problem, shape: Any, values: Any, layout: str = "") -> Any:
            stored = super().tensor(p, shape, values, layout)
            if values is not t.q:
                return stored
            return dataclasses.replace(stored, base=far.base, view=far[None, None], offset=0)

    got = launch.forward(FarRun(), kernel("fwd", "float16", 64), p, t)
    np.testing.assert_allclose(ref.widen(got.arrays["o"]), expected, atol=2e-3)


def test_A61_threadgroups_beyond_65535() -> None:
    """The last of 70,000 heads, launched alone."""
    p = Problem("float32", 64, 64, B=70_000, H=1, Hk=1, qL=1, kL=1)
    rng = np.random.default_rng(61)
    q, k, v = (rng.standard_normal((p.B, 1, 1, 64), np.float32) for _ in range(3))
    o, lse = np.full_like(q, np.nan), launch.empty(p.B, 1, 1)
    stored = [launch.Run().tensor(p, x.shape, x, "contiguous") for x in (q, k, v)]
    fwd = kernel("fwd", "float32", 64)
    out = launch.Run().tensor(p, o.shape, None, "contiguous")
    call = launch.prepare(p, {}, dict(zip("qkvo", [*stored, out], strict=True)))
    total = call.with_blocks(fwd, p, None)
    assert total == p.B
    call.params.first_threadgroup = p.B - 100
    buffers = dict(enumerate(map(launch.bind, [*stored, out])))
    buffers |= {4: lse, 5: bytes(call.params)}
    launch.Run().launch(fwd, (100, 1, 1), buffers, launch.constants(fwd, p))
    np.testing.assert_allclose(out.view[-100:], v[-100:], rtol=1e-6)
    assert np.isnan(out.view[:-100]).all()


@pytest.mark.parametrize("kind", TILED)
def test_A70_same_bits_every_time(kind: str) -> None:
    k = kernel(kind, "bfloat16", 64)
    p = Problem("bfloat16", 64, 64, B=2, H=2, Hk=2, qL=133, kL=133, causal=True)
    runs = [check.check(k, p, launch.Run(seed=seed)).arrays for seed in (None, None, 7)]
    for again in runs[1:]:
        for name, array in runs[0].items():
            assert array.tobytes() == again[name].tobytes(), name


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_a_query_that_is_not_finite_spoils_its_own_row_alone(dtype: str) -> None:
    fwd = kernel("fwd", dtype, 64)
    p = Problem(dtype, 64, 64, qL=40, kL=72, causal=True)
    good = launch.forward(launch.Run(), fwd, p, make_tensors(p)).arrays["o"].copy()
    for value in (np.nan, np.inf, -np.inf):
        t = make_tensors(p)
        t.q[:, :, 7, 3] = value
        got = launch.forward(launch.Run(), fwd, p, t).arrays["o"]
        others = np.arange(40) != 7
        np.testing.assert_array_equal(got[:, :, others], good[:, :, others])
        assert np.isnan(got[:, :, 7]).all() or not np.isnan(value)
