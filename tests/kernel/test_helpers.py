"""The small kernels around the attention kernels, on the emulator, against numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests import reference as ref
from tests import tolerance as tol
from tests.kernel import problems
from tests.kernel.abi import abi, slot
from tests.kernel.launch import (
    CHECKED,
    Run,
    bind,
    elements_grid,
    empty,
    rows_grid,
    strides3,
    strides4,
)
from tests.kernel.problems import LOG2E, Problem, ceil_div
from tests.kernel.registry import TILED, Kernel, by_kind, kernels
from tests.kernel.storage import LAYOUTS, Strided, place, reserved

Array = NDArray[Any]
OUT = slot("HelperOut")
MODES = [
    pytest.param(CHECKED, id=CHECKED),
    pytest.param("asan", id="asan", marks=pytest.mark.slow),
]
WIDTHS = sorted({k.dv for k in kernels() if k.kind in TILED} | {8, 104})


def of(kind: str) -> Any:
    """Parametrise over the kernels of a kind, by name."""
    return pytest.mark.parametrize("kernel", [pytest.param(k, id=k.name) for k in by_kind(kind)])


def params(name: str, **values: Any) -> bytes:
    """Make the bytes of a parameter struct."""
    return bytes(abi().structs[name](**values))


def normal(dtype: str, *shape: int, seed: int = 0) -> Array:
    """Draw rounded normal values."""
    return ref.narrow(np.random.default_rng(seed).standard_normal(shape), dtype)


def launch(run: Run, kernel: Kernel, grid: Any, buffers: dict[int, Any]) -> None:
    """Launch and insist on no fault."""
    run.launch(kernel, grid, buffers)
    assert not run.faults, run.faults[:5]


def test_every_helper_is_tested() -> None:
    tested = {"bwd_delta", "bwd_reduce", "fwd_merge", "pack", "tile_map", "row_bounds"}
    assert {k.kind for k in kernels()} - set(TILED) == tested


@of("bwd_delta")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dv", WIDTHS)
def test_delta(kernel: Kernel, dv: int, mode: str) -> None:
    B, H, qL = 2, 3, 9
    for i, layout in enumerate(LAYOUTS):
        shape = (B, H, qL, dv)
        o, d_o = normal(kernel.dtype, *shape, seed=1), normal(kernel.dtype, *shape, seed=2)
        d_lse2 = np.random.default_rng(3).standard_normal((B, H, qL)).astype(np.float32)
        stored = place(o, shape, kernel.dtype, layout)
        stored_d = place(d_o, shape, kernel.dtype, LAYOUTS[-i])
        rows, has_dlse, got = B * H * qL, i % 2, empty(B, H, qL)
        for first, count in ((0, 10), (10, rows - 10)):  # a launch may cover part of the rows
            values = params(
                "DeltaParams",
                B=B,
                H=H,
                qL=qL,
                Dv=dv,
                has_dlse=has_dlse,
                first_row=first,
                o=strides3(stored),
                d_o=strides3(stored_d),
            )
            buffers = {
                slot("HelperParams"): values,
                OUT: got,
                slot("HelperIn0"): bind(stored),
                slot("HelperIn1"): bind(stored_d),
                slot("HelperIn2"): d_lse2,
            }
            launch(Run(mode), kernel, rows_grid(kernel, count), buffers)
        products = ref.widen(o) * ref.widen(d_o)
        expected = products.sum(-1) - (LOG2E * d_lse2 if has_dlse else 0.0)
        bound = (dv + 4) * tol.U32 * (np.abs(products).sum(-1) + has_dlse * np.abs(LOG2E * d_lse2))
        c = tol.compare("delta", got, expected, bound, "float32")
        assert not c.complaint, f"{layout}: {c.complaint}"


@of("bwd_reduce")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_reduce(kernel: Kernel, layout: str, mode: str) -> None:
    B, Hk, kL, D, splits = 2, 3, 7, 24, 3
    partial = np.random.default_rng(4).standard_normal((splits, B, Hk, kL, D)).astype(np.float32)
    out = place(None, (B, Hk, kL, D), kernel.dtype, layout)
    n = B * Hk * kL * D
    for first, count in ((0, 300), (300, n - 300)):
        values = params(
            "ReduceParams", n=n, first=first, H=Hk, L=kL, D=D, n_splits=splits, out=strides3(out)
        )
        buffers = {slot("HelperParams"): values, OUT: bind(out), slot("HelperIn0"): partial}
        launch(Run(mode), kernel, elements_grid(kernel, count), buffers)
    in_order = partial[0].copy()
    for part in partial[1:]:
        in_order += part
    np.testing.assert_array_equal(out.view, ref.narrow(in_order, kernel.dtype))
    assert out.stray_writes() == 0


@of("fwd_merge")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dv", WIDTHS)
def test_merge(kernel: Kernel, dv: int, mode: str) -> None:
    B, H, qL, splits = 2, 3, 9, 4
    rng = np.random.default_rng(5)
    lse = rng.normal(0, 3, (splits, B, H, qL)).astype(np.float32)
    lse[rng.random(lse.shape) < 0.3] = -np.inf
    lse[:, 0, 1, 2:5] = -np.inf  # rows that no split sees
    lse[:, 0, 1, 6] = (1e4, -1e4, 1e4, -np.inf)  # far apart, far from zero
    o = rng.standard_normal((splits, B, H, qL, dv)).astype(np.float32)
    o[np.isneginf(lse)] = 0.0
    for layout in LAYOUTS:
        out, got_lse = place(None, (B, H, qL, dv), kernel.dtype, layout), empty(B, H, qL)
        rows = B * H * qL
        for first, count in ((0, 11), (11, rows - 11)):
            values = params(
                "MergeParams",
                B=B,
                H=H,
                qL=qL,
                Dv=dv,
                n_splits=splits,
                first_row=first,
                o=strides3(out),
            )
            buffers = {
                slot("HelperParams"): values,
                OUT: bind(out),
                slot("HelperIn0"): o,
                slot("HelperIn1"): lse,
                slot("HelperIn2"): got_lse,
            }
            launch(Run(mode), kernel, rows_grid(kernel, count), buffers)
        top = lse.max(0).astype(np.float64)
        shift = np.where(np.isneginf(top), 0.0, top)
        weights = np.exp2(lse - shift)
        total = weights.sum(0)
        with np.errstate(divide="ignore"):
            expected_lse = shift + np.log2(total)
        weights = weights / np.where(total == 0, 1.0, total)
        expected = (weights[..., None] * o).sum(0)
        # One exponential and one product per split, the sum, the quotient.
        few = (splits + 4) * tol.FUNCTION
        bound = few * (weights[..., None] * np.abs(o)).sum(0) + tol.SUBNORMAL[kernel.dtype]
        bound = bound + tol.UNIT[kernel.dtype] * np.abs(expected)
        lse_bound = np.where(np.isfinite(top), few + 4 * tol.U32 * np.abs(shift), 0.0)
        for c in (
            tol.compare("o", out.view, expected, bound, kernel.dtype),
            tol.compare("lse", got_lse, expected_lse, lse_bound, "float32"),
        ):
            assert not c.complaint, f"{layout}: {c.complaint}"
        assert out.stray_writes() == 0


@of("pack")
@pytest.mark.parametrize("mode", MODES)
def test_pack(kernel: Kernel, mode: str) -> None:
    memory = normal(kernel.dtype, 3, 5, 7, 11)
    for view in (
        memory.transpose(3, 1, 0, 2),
        memory[::2, 1:, :, ::3],
        np.broadcast_to(memory[:1, :, :1], (4, 5, 6, 11)),
    ):
        out = ref.narrow(np.full(view.size, np.nan), kernel.dtype)
        start = view.__array_interface__["data"][0] - memory.__array_interface__["data"][0]
        for first, count in ((0, 100), (100, view.size - 100)):
            values = params(
                "PackParams",
                n=view.size,
                first=first,
                shape=view.shape,
                strides=tuple(s // memory.itemsize for s in view.strides),
            )
            source = bind(Strided(memory.reshape(-1), memory, start // memory.itemsize, memory))
            buffers = {slot("HelperParams"): values, OUT: out, slot("HelperIn0"): source}
            launch(Run(mode), kernel, elements_grid(kernel, count), buffers)
        np.testing.assert_array_equal(out.reshape(view.shape), view)


@of("tile_map")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("with_block", [False, True])
def test_tile_map(kernel: Kernel, with_block: bool, mode: str) -> None:
    for seed, (qL, kL) in enumerate([(1, 1), (33, 97), (64, 64), (100, 31), (257, 129)]):
        p = Problem("float32", 64, 64, B=2, H=3, Hk=3, qL=qL, kL=kL, mask="bool")
        rng = np.random.default_rng(seed)
        tiles = (ceil_div(qL, 32), ceil_div(kL, 32))
        stored = rng.random((2, 3, qL, kL)) < 2e-3  # most tiles are empty, most others hold one
        mask = np.broadcast_to(stored[:, :1, :1], (2, 1, qL, kL)) if seed == 3 else stored
        block = (rng.random((1, 3, *tiles)) < 0.7).astype(np.uint8) * np.uint8(5)
        out = np.full((2, 3, *tiles), 255, np.uint8)
        strides = {"mask": strides4(mask, (2, 3, qL, kL)), "block": strides4(block, (2, 3, *tiles))}
        for first, count in ((0, 2), (2, out.size - 2)):
            values = params(
                "TileMapParams",
                B=2,
                H=3,
                qL=qL,
                kL=kL,
                has_block=with_block,
                first_tile=first,
                **strides,
            )
            buffers = {
                slot("HelperParams"): values,
                OUT: out,
                slot("HelperIn0"): stored.view(np.uint8),
                slot("HelperIn1"): block,
            }
            launch(Run(mode), kernel, (count, 1, 1), buffers)
        options = {"mask": mask, **({"block_mask": block} if with_block else {})}
        np.testing.assert_array_equal(out != 0, problems.tile_map(p, options) != 0)


@of("row_bounds")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("has", ["segments", "diagonals", "both"])
def test_row_bounds(kernel: Kernel, has: str, mode: str) -> None:
    for length in (1, 31, 32, 33, 200):
        rng = np.random.default_rng(length)
        ids = rng.integers(-(2**31), 2**31, (3, length), dtype=np.int64).astype(np.int32)
        positions = rng.integers(-300, 300, (3, length)).astype(np.int32)
        out = np.full((3, ceil_div(length, 32), 4), 77, np.int32)
        values = params(
            "RowBoundsParams",
            B=3,
            L=length,
            has_segments=has != "diagonals",
            has_diagonals=has != "segments",
            segments_b=length,
            diagonals_b=length,
        )
        buffers = {
            slot("HelperParams"): values,
            OUT: out,
            slot("HelperIn0"): ids,
            slot("HelperIn1"): positions,
        }
        launch(Run(mode), kernel, (ceil_div(length, 32), 3, 1), buffers)
        used = slice(0, 4) if has == "both" else slice(0, 2) if has == "segments" else slice(2, 4)
        expected = problems.row_bounds(ids, positions, length)
        np.testing.assert_array_equal(out[..., used], expected[..., used])


@of("pack")
def test_pack_counts_beyond_32_bits(kernel: Kernel) -> None:
    """The end of an output of more than 2^32 elements."""
    source = normal(kernel.dtype, 2, 64)
    shape = (2, 2**19 + 1, 2**6, 64)
    n = int(np.prod(shape))
    assert n - 300 > 2**32
    out = reserved(n, source.dtype)
    values = params("PackParams", n=n, first=n - 300, shape=shape, strides=(64, 0, 0, 1))
    buffers = {slot("HelperParams"): values, OUT: out, slot("HelperIn0"): source}
    launch(Run(), kernel, elements_grid(kernel, 300), buffers)
    np.testing.assert_array_equal(out[-256:].reshape(4, 64), np.tile(source[1], (4, 1)))
