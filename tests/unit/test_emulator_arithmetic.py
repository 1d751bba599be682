"""Types, literals, collectives and fragments of the emulator against numpy and Apple's layout."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import numpy as np
import pytest

from tests import emulator
from tests.emulator.toolchain import Mode, ToolchainError
from tests.reference import bf16_to_float32, float_to_bf16

pytestmark = pytest.mark.skipif(
    emulator.unsupported() is not None, reason=str(emulator.unsupported())
)

FIXTURES = Path(emulator.__file__).parent / "fixtures"
ONE_SIMDGROUP = {"grid": (1, 1, 1), "group": (32, 1, 1)}


@functools.cache
def library(mode: Mode = "fast", row_major: bool = False) -> emulator.Library:
    defines = {"EMULATOR_ROW_MAJOR_FRAGMENTS": 1} if row_major else {}
    return emulator.build([FIXTURES / "arithmetic.metal"], mode=mode, defines=defines)


@pytest.mark.parametrize("mode", ["fast", "trace", "asan"])
def test_half_rounds_every_operation(mode: Mode) -> None:
    rng = np.random.default_rng(0)
    a, b, c = (rng.normal(0, 3, 4096).astype(np.float16) for _ in range(3))
    out = np.zeros((4096, 8), np.float16)
    buffers = {0: a, 1: b, 2: c, 3: out}
    library(mode).launch("half_operations", grid=(128, 1, 1), group=(32, 1, 1), buffers=buffers)
    f, d = np.float32, np.float64
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        expected = [
            a * b + c,
            a + b + c,
            a * b * c,
            a / b - c,
            (a.astype(d) * b.astype(d) + c.astype(d)).astype(np.float16),
            (a.astype(f) * b.astype(f) + c.astype(f)).astype(np.float16),
            np.maximum(a, b),
            a * np.float16(3),
        ]
    assert (expected[0] != expected[4]).any(), "the inputs tell one rounding from two"
    for column, values in enumerate(expected):
        np.testing.assert_array_equal(out[:, column], values, err_msg=f"column {column}")


@pytest.mark.parametrize("mode", ["fast", "trace"])
def test_bfloat_rounds_to_nearest_even(mode: Mode) -> None:
    rng = np.random.default_rng(1)
    a, b, c = (float_to_bf16(rng.normal(0, 3, 4096)) for _ in range(3))
    a[:4] = [0x7F80, 0xFF80, 0x7FC0, 0x0001]  # infinities, NaN, the smallest subnormal
    out = np.zeros((4096, 8), np.uint16)
    buffers = {0: a, 1: b, 2: c, 3: out}
    library(mode).launch("bfloat_operations", grid=(128, 1, 1), group=(32, 1, 1), buffers=buffers)

    def rounded(x: np.ndarray) -> np.ndarray:
        return bf16_to_float32(float_to_bf16(x))

    fa, fb, fc = (bf16_to_float32(x) for x in (a, b, c))
    with np.errstate(over="ignore", invalid="ignore"):
        expected = [
            rounded(rounded(fa * fb) + fc),
            rounded(rounded(fa + fb) + fc),
            rounded(fa * np.float32(0.3)),
            rounded(fa / fb),
            rounded(fa * np.float32(3)),
            -fa,
            rounded(fa.astype(np.float16).astype(np.float32)),
            np.full_like(fa, 1.5),
        ]
    for column, values in enumerate(expected):
        np.testing.assert_array_equal(
            bf16_to_float32(out[:, column]), values, err_msg=f"column {column}"
        )


def test_literals_are_single_precision() -> None:
    out = np.zeros(8, np.float32)
    library().launch("literals", grid=(1, 1, 1), group=(1, 1, 1), buffers={3: out})
    f = np.float32
    expected = [f(0.1), f(1) / f(3), 4, f(f(0.1) + f(0.2) == f(0.3)), np.float16(1e-3), 0, 0, 0]
    np.testing.assert_array_equal(out, np.array(expected, f))


@pytest.mark.parametrize("seed", [None, 5])
@pytest.mark.parametrize("mode", ["fast", "trace"])
def test_simdgroup_operations(mode: Mode, seed: int | None) -> None:
    out = np.zeros((32, 10), np.int32)
    report = library(mode).launch("lanes", **ONE_SIMDGROUP, buffers={3: out}, seed=seed)
    lane = np.arange(32)
    expected = [
        lane ^ 5,
        31 - lane,
        np.where(lane < 3, lane, lane - 3),
        np.where(lane > 28, lane, lane + 3),
        np.full(32, 496),
        np.full(32, 31),
        np.full(32, -7),
        np.full(32, 1),
        np.full(32, 0),
        np.cumsum(lane),
    ]
    np.testing.assert_array_equal(out, np.stack(expected, 1))
    assert report.counters["shuffles"] == 4
    assert report.counters["reductions"] == 6


@pytest.mark.parametrize("mode", ["fast", "trace", "asan"])
def test_matrix_products(mode: Mode) -> None:
    rng = np.random.default_rng(2)
    a, b = (rng.normal(size=(8, 8)).astype(np.float16) for _ in range(2))
    p = rng.normal(size=(8, 8)).astype(np.float32)
    out = np.zeros((3, 8, 8), np.float32)
    report = library(mode).launch("products", **ONE_SIMDGROUP, buffers={0: a, 1: b, 2: p, 3: out})
    assert report.faults == ()
    assert report.counters["mma"] == 3
    for got, x, y in zip(out, (a, p, p), (b, b, p), strict=True):
        exact = x.astype(np.float64) @ y.astype(np.float64)
        bound = 9 * 2.0**-24 * (np.abs(x.astype(np.float64)) @ np.abs(y.astype(np.float64)))
        assert (np.abs(got - exact) <= bound).all()


def test_fragments_lie_where_the_hardware_has_them() -> None:
    a = np.arange(64, dtype=np.float16).reshape(8, 8)
    b = np.eye(8, dtype=np.float16)
    out = np.zeros((8, 8), np.float32)
    buffers = {0: a, 1: b, 3: out}
    library().launch("placed_product", **ONE_SIMDGROUP, buffers=buffers)
    np.testing.assert_array_equal(out, a)
    wrong = np.zeros((8, 8), np.float32)
    library(row_major=True).launch("placed_product", **ONE_SIMDGROUP, buffers=buffers | {3: wrong})
    assert (wrong != a).any()
    # With its own loads the other layout is consistent: only kernels that place elements notice.
    p = a.astype(np.float32)
    own = np.zeros((3, 8, 8), np.float32)
    library(row_major=True).launch("products", **ONE_SIMDGROUP, buffers=buffers | {2: p, 3: own})
    np.testing.assert_array_equal(own[0], a)


def test_positions_of_threads() -> None:
    grid, group = (2, 3, 2), (8, 5, 2)
    threads = int(np.prod(group))
    out = np.zeros((int(np.prod(grid)) * threads, 9), np.uint32)
    library().launch("positions", grid=grid, group=group, buffers={3: out}, threads=2)
    where = iter(out)
    for gz in range(grid[2]):
        for gy in range(grid[1]):
            for gx in range(grid[0]):
                for t in range(threads):
                    x, y, z = t % 8, t // 8 % 5, t // 40
                    expected = [gx * 8 + x, gy * 5 + y, gz * 2 + z, x, y, z, t, t // 32, t % 32]
                    assert next(where).tolist() == expected


# --- what must not compile ---------------------------------------------------------------------

MISTAKES = {
    "float to bfloat": ("device bfloat* o [[buffer(0)]]", "o[0] = 1.0;", "bfloat"),
    "half to bfloat": ("device bfloat* o [[buffer(0)]]", "half h = 1.0h; o[0] = h;", "bfloat"),
    "bfloat to half": (
        "device half* o [[buffer(0)]]",
        "bfloat b = 1.0bf; o[0] = b;",
        "half|Float16",
    ),
    "bfloat times float": (
        "device bfloat* o [[buffer(0)]]",
        "bfloat b = 1.0bf; o[0] = b * 2.0;",
        "bfloat",
    ),
    "constant is const": ("constant int& o [[buffer(0)]]", "o = 1;", "const"),
    "vectors of other types": ("device float4* o [[buffer(0)]]", "half4 h; o[0] = h;", "vec"),
    "barrier without flags": ("device int* o [[buffer(0)]]", "threadgroup_barrier();", "barrier"),
    "fragment of five": (
        "device int* o [[buffer(0)]]",
        "simdgroup_matrix<float, 5, 5> m; o[0] = 0;",
        "8x8",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistake_does_not_compile(name: str, tmp_path: Path) -> None:
    parameter, body, message = MISTAKES[name]
    source = tmp_path / "mistake.metal"
    text = "#include <metal_stdlib>\nusing namespace metal;\nkernel void f(%s) { %s }\n"
    source.write_text(text % (parameter, body))
    with pytest.raises(ToolchainError) as raised:
        emulator.build([source])
    assert "mistake.metal:3:" in str(raised.value)
    assert re.search(rf"error: (.|\n)*({message})", str(raised.value))


def test_explicit_conversions_compile(tmp_path: Path) -> None:
    source = tmp_path / "fine.metal"
    source.write_text(
        "#include <metal_stdlib>\nusing namespace metal;\n"
        "kernel void f(device bfloat* o [[buffer(0)]], device half* h [[buffer(1)]]) {\n"
        "  o[0] = bfloat(1.5); o[1] = static_cast<bfloat>(h[0]); h[1] = half(o[0]); h[2] = 2.5;\n"
        "  float x = o[0]; o[2] = bfloat(x * o[1]); o[3] = o[0] + o[1]; o[4] += bfloat(1); }\n"
    )
    o, h = np.zeros(5, np.uint16), np.full(3, 3, np.float16)
    arguments = {"grid": (1, 1, 1), "group": (1, 1, 1)}
    emulator.build([source]).launch("f", **arguments, buffers={0: o, 1: h})
    assert bf16_to_float32(o).tolist() == [1.5, 3, 4.5, 4.5, 1]
    assert h.tolist() == [3, 1.5, 2.5]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("kernel void f(device int* o) {}", "argument o: no attribute the emulator knows"),
        ("kernel void f(device int* o [[texture(0)]]) {}", "argument o: no attribute"),
        ("kernel void f(int* o [[buffer(0)]]) {}", "device or constant memory"),
        ("void f(device int* o [[buffer(0)]]) {}", "no kernel found"),
    ],
)
def test_unknown_construct_is_named(text: str, message: str, tmp_path: Path) -> None:
    source = tmp_path / "unknown.metal"
    source.write_text(f"#include <metal_stdlib>\n{text}\n")
    with pytest.raises(ToolchainError, match=message):
        emulator.build([source])
