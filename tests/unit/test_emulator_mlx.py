"""MLX's own Metal attention kernels, written for the hardware's lanes, through the emulator."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import emulator
from tests import reference as ref
from tests.emulator import mlx_headers
from tests.emulator.mlx_attention import (
    KERNELS,
    Steel,
    Vector,
    build_mlx,
    run_steel,
    run_vector,
)
from tests.emulator.toolchain import Mode
from tests.tolerance import compare, forward_bounds

pytestmark = pytest.mark.skipif(
    emulator.unsupported() is not None, reason=str(emulator.unsupported())
)

DTYPES = ["float16", "bfloat16", "float32"]

# B, H, Hk, qL, kL, causal
SHAPES = {
    "aligned": (1, 2, 2, 64, 64, False),
    "ragged-gqa": (2, 4, 2, 77, 101, False),
    "causal-ragged-mqa": (1, 4, 1, 50, 93, True),
    "causal-aligned": (1, 2, 2, 96, 96, True),
}


@functools.cache
def library(kernel: Steel | Vector, mode: Mode = "fast", row_major: bool = False) -> Any:
    defines = {"EMULATOR_ROW_MAJOR_FRAGMENTS": 1} if row_major else {}
    return build_mlx(kernel, mode, defines)


def tensors(dtype: str, shape: tuple[Any, ...], d: int) -> tuple[np.ndarray, ...]:
    b, h, hk, ql, kl, _ = shape
    rng = np.random.default_rng(d + ql)
    sizes = ((b, h, ql, d), (b, hk, kl, d), (b, hk, kl, d))
    q, k, v = (ref.narrow(rng.standard_normal(size), dtype) for size in sizes)
    return q, k, v


def mask_for(kind: str, dtype: str, shape: tuple[Any, ...]) -> np.ndarray:
    b, h, _, ql, kl, _ = shape
    rng = np.random.default_rng(3)
    if kind == "bool":
        mask = rng.random((b, h, ql, kl)) < 0.7
        mask[..., 0] = True  # MLX promises nothing for a row that sees no key
        return mask
    return ref.narrow(rng.standard_normal((b, h, ql, kl)), dtype)


def complaint(
    o: np.ndarray, q: np.ndarray, k: np.ndarray, v: np.ndarray, dtype: str, **options: Any
) -> str:
    exact = ref.attention(q, k, v, **options)
    bounds = forward_bounds(q, k, v, exact, dtype, **options)
    return compare("o", o, exact.o, bounds.o, dtype).complaint


@pytest.mark.parametrize("case", SHAPES)
@pytest.mark.parametrize("d", [64, 80, 128])
@pytest.mark.parametrize("dtype", DTYPES)
def test_steel_attention(dtype: str, d: int, case: str) -> None:
    kernel, shape = Steel(dtype, d), SHAPES[case]
    q, k, v = tensors(dtype, shape, d)
    options = {"scale": d**-0.5, "causal": shape[-1]}
    o, _ = run_steel(library(kernel), kernel, q, k, v, threads=2, **options)
    assert not complaint(o, q, k, v, dtype, **options)


@pytest.mark.parametrize("case", ["aligned", "ragged-gqa"])
@pytest.mark.parametrize("kind", ["bool", "own"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_steel_attention_with_mask(dtype: str, kind: str, case: str) -> None:
    kernel, shape = Steel(dtype, 64, mask=kind), SHAPES[case]
    q, k, v = tensors(dtype, shape, 64)
    options = {"scale": 0.125, "mask": mask_for(kind, dtype, shape)}
    o, _ = run_steel(library(kernel), kernel, q, k, v, **options)
    assert not complaint(o, q, k, v, dtype, **options)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("dtype", "d"), [("float16", 128), ("bfloat16", 64), ("float32", 96)])
def test_sdpa_vector(dtype: str, d: int, causal: bool) -> None:
    kernel, shape = Vector(dtype, d), (1, 4, 2, 3, 100, causal)
    q, k, v = tensors(dtype, shape, d)
    options = {"scale": d**-0.5, "causal": causal}
    o, report = run_vector(library(kernel), kernel, q, k, v, threads=2, **options)
    assert not complaint(o, q, k, v, dtype, **options)
    assert report.counters["reductions"] > 0


@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize(
    ("dtype", "d", "case"),
    [
        ("float16", 128, "causal-ragged-mqa"),
        ("bfloat16", 64, "ragged-gqa"),
        ("float32", 80, "aligned"),
    ],
)
def test_trace_mode_accepts_steel_attention(
    dtype: str, d: int, case: str, seed: int | None
) -> None:
    kernel, shape = Steel(dtype, d), SHAPES[case]
    q, k, v = tensors(dtype, shape, d)
    options = {"scale": d**-0.5, "causal": shape[-1]}
    o, report = run_steel(library(kernel, "trace"), kernel, q, k, v, seed=seed, **options)
    assert report.faults == ()
    again, _ = run_steel(library(kernel), kernel, q, k, v, **options)
    assert o.tobytes() == again.tobytes(), "modes and orders agree bit by bit"


def test_trace_mode_accepts_sdpa_vector() -> None:
    kernel, shape = Vector("float16", 128), (1, 2, 1, 2, 70, True)
    q, k, v = tensors("float16", shape, 128)
    o, report = run_vector(library(kernel, "trace"), kernel, q, k, v, scale=128**-0.5, causal=True)
    assert report.faults == ()
    assert not complaint(o, q, k, v, "float16", scale=128**-0.5, causal=True)


def test_asan_mode_accepts_steel_attention() -> None:
    kernel, shape = Steel("float16", 64), SHAPES["causal-ragged-mqa"]
    q, k, v = tensors("float16", shape, 64)
    o, _ = run_steel(library(kernel, "asan"), kernel, q, k, v, scale=0.125, causal=True)
    assert not complaint(o, q, k, v, "float16", scale=0.125, causal=True)


@pytest.mark.parametrize("threads", [1, 2])
def test_counters_are_those_counted_by_hand(threads: int) -> None:
    kernel = Steel("float16", 64)
    heads, length, d, block = 2, 128, 64, 32
    q, k, v = tensors("float16", (1, heads, heads, length, length, True), d)
    _, report = run_steel(
        library(kernel, "trace"), kernel, q, k, v, scale=0.125, causal=True, threads=threads
    )
    n = length // block
    tiles = heads * n * (n + 1) // 2  # visited by 4 simdgroups each
    groups = heads * n
    steps = d // 8
    assert report.counters == report.counters | {
        "mma": tiles * 4 * 2 * steps * (block // 8),
        "device_read_bytes": groups * block * d * 2 + tiles * 2 * block * d * 2,
        "device_write_bytes": groups * block * d * 2,
        # Q and K, or V, fragments: 8x8 halves, for each simdgroup and step.
        "threadgroup_read_bytes": tiles * 4 * 128 * (steps * 5 + steps * 4),
        "threadgroup_write_bytes": groups * block * d * 2 + tiles * 2 * block * d * 2,
        "threadgroup_barriers": 4 * (2 * groups + 4 * tiles),
        "simdgroup_barriers": tiles * 4 * 2 * steps,
        "barriers": 4 * (2 * groups + 4 * tiles) + tiles * 4 * 2 * steps,
        "shuffles": tiles * 4 * 2 * 2 * (block // 8),  # max and sum, two for each fragment
        "exp2": tiles * 128 * 9,
        "threadgroup_memory_bytes": block * (d + 8) * 2 + d * (block + 8) * 2,
    }


@pytest.mark.parametrize("dtype", DTYPES)
def test_another_fragment_layout_is_noticed(dtype: str) -> None:
    kernel, shape = Steel(dtype, 64), SHAPES["aligned"]
    q, k, v = tensors(dtype, shape, 64)
    o, _ = run_steel(library(kernel, row_major=True), kernel, q, k, v, scale=0.125)
    assert complaint(o, q, k, v, dtype, scale=0.125)


@pytest.mark.parametrize("barrier", range(6))
def test_each_barrier_of_steel_attention_counts(barrier: int, tmp_path: Path) -> None:
    header = Path(KERNELS) / "steel" / "attn" / "kernels" / "steel_attention.h"
    lines = (mlx_headers.include_dir() / header).read_text().splitlines()
    call = "threadgroup_barrier(mem_flags::mem_threadgroup);"
    # Those within `if constexpr (WN == 2)` are not compiled in.
    places = [i for i, line in enumerate(lines) if line.strip() == call]
    split = next(i for i, line in enumerate(lines) if "if constexpr (WN == 2)" in line)
    places = [i for i in places if not split < i < split + 30]
    assert len(places) == 5
    if barrier < 5:
        lines[places[barrier]] = ""
    (tmp_path / header).parent.mkdir(parents=True)
    (tmp_path / header).write_text("\n".join(lines))
    kernel, shape = Steel("float16", 64), SHAPES["causal-aligned"]
    q, k, v = tensors("float16", shape, 64)
    mutant = build_mlx(kernel, "trace", {}, first=[tmp_path])
    _, report = run_steel(mutant, kernel, q, k, v, scale=0.125, causal=True)
    races = [fault.message for fault in report.faults if fault.kind == "race"]
    # The first one protects nothing here: another follows before anything is read. 5: none taken.
    assert bool(races) == (1 <= barrier < 5)
    for message in races:
        assert "steel_attention.h:" in message


def test_headers_are_of_the_release_that_is_pinned() -> None:
    project = (Path(emulator.__file__).parents[2] / "pyproject.toml").read_text()
    assert f"mlx=={mlx_headers.VERSION};" in project


def test_kernels_are_listed_with_their_arguments() -> None:
    kernel = Steel("bfloat16", 128)
    signature = library(kernel).kernels[kernel.name]
    assert {p.slot: (p.name, p.space, p.writable) for p in signature.parameters} == {
        0: ("Q", "device", False),
        1: ("K", "device", False),
        2: ("V", "device", False),
        3: ("O", "device", True),
        4: ("params", "constant", False),
        5: ("mask_params", "constant", False),
        6: ("mask", "device", False),
        7: ("sinks", "device", False),
        8: ("lse", "device", True),
    }
    assert signature.parameters[8].constant == "save_lse"
    assert emulator.Parameter("Q", 0, "device", 2, False, None) == signature.parameters[0]
