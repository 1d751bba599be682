"""What a kernel may get wrong, got wrong on purpose: each is reported, at its line."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import emulator
from tests.emulator.toolchain import Mode

pytestmark = pytest.mark.skipif(
    emulator.unsupported() is not None, reason=str(emulator.unsupported())
)

FIXTURES = Path(emulator.__file__).parent / "fixtures"
ORDERS = [None, 1, 2]  # seeds of lane, simdgroup and threadgroup order


@functools.cache
def library(name: str, mode: Mode = "trace") -> emulator.Library:
    return emulator.build([FIXTURES / f"{name}.metal"], mode=mode)


def line_of(fixture: str, marker: str) -> str:
    """`file:line` of the line with the comment `// @marker`."""
    text = (FIXTURES / f"{fixture}.metal").read_text().splitlines()
    lines = [i for i, line in enumerate(text, 1) if re.search(rf"// @{re.escape(marker)}$", line)]
    assert len(lines) == 1, marker
    return f"{fixture}.metal:{lines[0]}"


def floats(n: int) -> np.ndarray:
    return np.zeros(n, np.float32)


def launch(fixture: str, kernel: str, mode: Mode = "trace", **arguments: Any) -> emulator.Report:
    arguments = {"grid": (1, 1, 1), "group": (64, 1, 1)} | arguments
    return library(fixture, mode).launch(kernel, **arguments)


# --- races ------------------------------------------------------------------------------------

RACES = [
    ("dropped_barrier", (1, 1, 1), "write", "read"),
    ("narrow_barrier", (1, 1, 1), "write", "read"),
    ("memoryless_barrier", (1, 1, 1), "write", "read"),
    ("memoryless_simdgroup_barrier", (1, 1, 1), "write", "read"),
    ("shuffle_is_no_barrier", (1, 1, 1), "write", "read"),
    ("overwrite_too_early", (1, 1, 1), "read", "write"),
    ("reader_becomes_writer", (1, 1, 1), "read", "write"),
    ("pair_writes", (1, 1, 1), "write", "write"),
    ("groups_write", (2, 1, 1), "write", "write"),
    ("group_reads", (2, 1, 1), "write", "read"),
    ("device_exchange_wrong_flag", (1, 1, 1), "write", "read"),
]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("seed", ORDERS)
@pytest.mark.parametrize(("kernel", "grid", "first", "second"), RACES, ids=[r[0] for r in RACES])
def test_race_is_reported(
    kernel: str, grid: tuple[int, int, int], first: str, second: str, seed: int | None, threads: int
) -> None:
    report = launch(
        "races", kernel, grid=grid, buffers={0: floats(256)}, seed=seed, threads=threads
    )
    races = [fault.message for fault in report.faults if fault.kind == "race"]
    assert races, report.faults
    places = {line_of("races", f"{kernel}.{first}"), line_of("races", f"{kernel}.{second}")}
    # Which access comes first depends on the order of lanes, the pair of lines does not.
    for message in races:
        assert set(re.findall(r"races\.metal:\d+", message)) <= places, message
    assert any(set(re.findall(r"races\.metal:\d+", m)) == places for m in races), races


@pytest.mark.parametrize("seed", ORDERS)
@pytest.mark.parametrize(
    ("kernel", "dtype"),
    [
        ("exchange", np.float32),
        ("simdgroup_exchange", np.float32),
        ("device_exchange", np.float32),
        ("bytes", np.uint8),
        ("halves", np.float16),
    ],
)
def test_ordered_access_is_not_a_race(kernel: str, dtype: type, seed: int | None) -> None:
    out = np.zeros(128, dtype)
    assert launch("races", kernel, buffers={0: out}, seed=seed).faults == ()
    assert out.any()


# --- bounds -----------------------------------------------------------------------------------


def int32(value: int) -> bytes:
    return np.int32(value).tobytes()


FAR = 1 << 20


@pytest.mark.parametrize("shift", [1, -1, FAR, -FAR])
@pytest.mark.parametrize("kernel", ["read_shifted", "write_shifted"])
def test_out_of_bounds_is_reported(kernel: str, shift: int) -> None:
    # Neighbours in memory on purpose: a plain process would not notice.
    pool = np.zeros(3 * 64, np.float32)
    buffers = {0: pool[64:128].copy(), 1: floats(64), 2: int32(shift)}
    with pytest.raises(emulator.EmulatorError, match="out of bounds") as raised:
        launch("bounds", kernel, buffers=buffers)
    assert line_of("bounds", kernel) in str(raised.value)
    name = "in, buffer 0" if kernel == "read_shifted" else "out, buffer 1"
    assert f"of {name} of 256 bytes" in str(raised.value)


def test_reads_within_bounds_are_not_reported() -> None:
    data = np.arange(65, dtype=np.float32)
    out = floats(64)
    report = launch("bounds", "read_shifted", buffers={0: data, 1: out, 2: int32(1)})
    assert report.faults == ()
    np.testing.assert_array_equal(out, data[1:])
    assert report.counters["device_read_bytes"] == 64 * 4
    assert report.counters["device_write_bytes"] == 64 * 4
    assert report.counters["constant_read_bytes"] == 64 * 4


def test_buffer_offset_counts_from_the_base_array() -> None:
    data = np.arange(80, dtype=np.float32)
    out = floats(64)
    view = emulator.Buffer(data, offset_bytes=16 * 4)
    launch("bounds", "read_shifted", buffers={0: view, 1: out, 2: int32(-16)})
    np.testing.assert_array_equal(out, data[:64])
    with pytest.raises(emulator.EmulatorError, match="offset 320 of in"):
        launch("bounds", "read_shifted", buffers={0: view, 1: out, 2: int32(1)})


def test_one_array_in_two_slots_stays_one_array() -> None:
    data = np.arange(64, dtype=np.float32)
    report = launch("bounds", "read_shifted", buffers={0: data, 1: data, 2: int32(0)})
    assert report.faults == ()
    shifted = launch(
        "bounds", "read_shifted", buffers={0: data[:63], 1: data[1:], 2: int32(0)}, group=(63, 1, 1)
    )
    assert any(fault.kind == "race" for fault in shifted.faults)


def test_threadgroup_overrun_is_reported() -> None:
    with pytest.raises(emulator.EmulatorError, match="out of bounds") as raised:
        launch("bounds", "threadgroup_overrun", group=(32, 1, 1), buffers={1: floats(32)})
    assert line_of("bounds", "threadgroup_overrun") in str(raised.value)
    assert "offset 128 of threadgroup array s of 128 bytes" in str(raised.value)


def test_uninitialised_read_is_reported() -> None:
    report = launch("bounds", "uninitialised", buffers={1: floats(64)})
    messages = [fault.message for fault in report.faults if fault.kind == "uninitialised"]
    assert len(messages) == 1
    assert line_of("bounds", "uninitialised") in messages[0]
    assert "byte 20 of threadgroup array s" in messages[0]


def test_threadgroup_memory_is_new_in_every_threadgroup() -> None:
    out = floats(64)
    report = launch(
        "bounds", "left_by_another_group", grid=(2, 1, 1), group=(32, 1, 1), buffers={1: out}
    )
    assert [fault.kind for fault in report.faults] == ["uninitialised"]
    assert line_of("bounds", "left_by_another_group") in report.faults[0].message
    assert np.isnan(out[32:]).all()


@pytest.mark.parametrize("mode", ["fast", "trace", "asan"])
def test_uninitialised_private_memory_is_nan(mode: Mode) -> None:
    out = floats(64)
    launch("bounds", "uninitialised_private", mode, buffers={1: out, 2: int32(3)})
    written = np.arange(64) % 4 < 3
    np.testing.assert_array_equal(out[written], np.arange(64)[written])
    assert np.isnan(out[~written]).all()


def test_uninitialised_pointer_is_wild() -> None:
    with pytest.raises(emulator.EmulatorError, match="address of no buffer") as raised:
        launch("bounds", "uninitialised_pointer", buffers={1: floats(64), 2: int32(9)})
    assert "thread 9 writes" in str(raised.value)
    assert line_of("bounds", "uninitialised_pointer") in str(raised.value)


@pytest.mark.parametrize("mode", ["fast", "trace"])
def test_threadgroup_memory_limit(mode: Mode) -> None:
    group = (8, 1, 1)
    report = launch(
        "bounds", "largest_threadgroup_memory", mode, group=group, buffers={1: floats(8)}
    )
    assert report.faults == ()
    assert report.counters["threadgroup_memory_bytes"] == 32768
    with pytest.raises(emulator.EmulatorError, match="32784 bytes, the limit is 32768") as raised:
        launch("bounds", "too_much_threadgroup_memory", mode, group=group, buffers={1: floats(8)})
    assert line_of("bounds", "too_much_threadgroup_memory") in str(raised.value)


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        ("write_to_const", "thread 0 writes to in, buffer 0, which is const"),
        ("mutable_static", "thread 0 writes 4 bytes at an address of no buffer"),
    ],
)
def test_write_to_read_only_memory_is_reported(kernel: str, message: str) -> None:
    with pytest.raises(emulator.EmulatorError, match=message) as raised:
        launch("bounds", kernel, buffers={0: floats(64), 1: floats(64)})
    assert line_of("bounds", kernel) in str(raised.value)


def test_misaligned_access_is_reported() -> None:
    buffers = {0: np.zeros(512, np.uint8), 1: floats(64)}
    with pytest.raises(emulator.EmulatorError, match="misaligned") as raised:
        launch("bounds", "misaligned_float", buffers=buffers)
    assert line_of("bounds", "misaligned_float") in str(raised.value)


@pytest.mark.parametrize("threads", [1, 2])
def test_crash_of_a_lane_is_a_report(threads: int) -> None:
    for _ in range(3):  # the launches after it run as if nothing had been
        buffers = {1: floats(64), 2: int32(9)}
        with pytest.raises(emulator.EmulatorError, match="touches unmapped memory") as raised:
            launch("bounds", "uninitialised_pointer", "fast", buffers=buffers, threads=threads)
        assert line_of("bounds", "uninitialised_pointer") in str(raised.value)
        out = floats(64)
        launch("races", "exchange", "fast", buffers={0: out})
        np.testing.assert_array_equal(out, np.arange(63, -1, -1))


def test_crashes_are_reported_in_both_modes_by_turns() -> None:
    """The runtime of each mode has its own signal handler; neither takes away the other's."""
    arguments = {"group": (40, 1, 1), "buffers": {0: floats(1), 1: floats(64), 2: int32(1000)}}
    for mode in ("fast", "trace", "fast", "trace"):
        with pytest.raises(emulator.EmulatorError, match="used up its stack"):
            launch("bounds", "stack_overflow", mode, **arguments)


@pytest.mark.parametrize("mode", ["fast", "trace"])
def test_stack_overflow_is_a_report(mode: Mode) -> None:
    arguments = {"group": (40, 1, 1), "buffers": {0: floats(1), 1: floats(64), 2: int32(1000)}}
    with pytest.raises(emulator.EmulatorError, match="used up its stack"):
        launch("bounds", "stack_overflow", mode, **arguments)
    arguments["buffers"][2] = int32(10)
    assert launch("bounds", "stack_overflow", mode, **arguments).faults == ()


# --- arguments --------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["fast", "trace", "asan"])
def test_constant_that_is_not_set_is_named(mode: Mode) -> None:
    with pytest.raises(emulator.EmulatorError, match=r"function constant has_extra \(index 1\)"):
        launch("arguments", "optional_argument", mode, buffers={1: floats(64)})


def test_constant_that_nothing_reads_need_not_be_set() -> None:
    out = floats(64)
    launch("arguments", "optional_argument", buffers={1: out}, constants={1: False})
    assert (out == -1).all()
    assert "has_other" not in library("arguments").kernels["optional_argument"].constants.values()


@pytest.mark.parametrize("mode", ["fast", "trace", "asan"])
def test_unbound_buffer_is_named(mode: Mode) -> None:
    with pytest.raises(emulator.EmulatorError, match="argument extra: buffer 3 is not bound"):
        launch("arguments", "optional_argument", mode, buffers={1: floats(64)}, constants={1: True})
    with pytest.raises(emulator.EmulatorError, match="argument out: buffer 1 is not bound"):
        launch("arguments", "optional_argument", mode, buffers={}, constants={1: False})


def test_absent_argument_is_null() -> None:
    buffers = {1: floats(64), 3: floats(64)}
    with pytest.raises(emulator.EmulatorError, match="null pointer") as raised:
        launch("arguments", "absent_argument", buffers=buffers, constants={1: False})
    assert line_of("arguments", "absent_argument") in str(raised.value)


def test_short_parameter_struct_is_refused() -> None:
    buffers = {0: floats(64), 1: floats(64), 2: b"\0\0"}
    with pytest.raises(emulator.EmulatorError, match="buffer 2 holds 2 bytes, its type needs 4"):
        launch("bounds", "read_shifted", buffers=buffers)


def test_group_larger_than_declared_is_refused() -> None:
    buffers = {0: floats(96), 1: floats(96), 2: int32(96)}
    with pytest.raises(emulator.EmulatorError, match="threadgroup of 96 threads: 1 to 64"):
        launch("bounds", "copy", group=(96, 1, 1), buffers=buffers)
    assert library("bounds").kernels["copy"].max_threads == 64


def test_strided_view_is_refused() -> None:
    with pytest.raises(emulator.EmulatorError, match="whole base array"):
        launch("races", "exchange", buffers={0: floats(256)[::2]})


# --- divergence -------------------------------------------------------------------------------

DIVERGENCES = [
    ("barriers_by_simdgroup", "different threadgroup barriers", ["0", "1"]),
    ("barriers_by_lane", "different statements: threadgroup_barrier", ["0", "1"]),
    ("barriers_on_a_line", "different threadgroup barriers", [""]),
    ("barrier_flags", "different memory flags", [""]),
    ("different_collectives", "different collectives", ["0", "1"]),
    ("missing_lanes", "have ended before|wait at", [""]),
    ("missing_simdgroup", "simdgroups have ended before|wait at the threadgroup", [""]),
    ("unequal_trips", "different numbers of simdgroup barriers", [""]),
    ("reads_absent_lane", "reads lane 32 of 32", [""]),
]


@pytest.mark.parametrize("mode", ["fast", "trace"])
@pytest.mark.parametrize("seed", ORDERS)
@pytest.mark.parametrize(
    ("kernel", "message", "places"), DIVERGENCES, ids=[d[0] for d in DIVERGENCES]
)
def test_divergence_is_an_error(
    kernel: str, message: str, places: list[str], seed: int | None, mode: Mode
) -> None:
    with pytest.raises(emulator.EmulatorError, match=message) as raised:
        launch("divergence", kernel, mode, buffers={0: floats(64)}, seed=seed)
    for place in places:
        marker = f"{kernel}.{place}" if place else kernel
        assert line_of("divergence", marker) in str(raised.value)


@pytest.mark.parametrize("mode", ["fast", "trace"])
def test_branches_may_differ_between_threadgroups(mode: Mode) -> None:
    out = floats(128)
    report = launch("divergence", "uniform_branch", mode, grid=(2, 1, 1), buffers={0: out})
    assert report.faults == ()
    assert report.counters["threadgroup_barriers"] == 2 * (2 + 3)
    np.testing.assert_array_equal(out, np.tile(np.arange(64), 2))


# --- sanitizers -------------------------------------------------------------------------------


@pytest.mark.parametrize("shift", [1, -1])
@pytest.mark.parametrize("kernel", ["read_shifted", "write_shifted"])
def test_asan_sees_out_of_bounds(kernel: str, shift: int) -> None:
    buffers = {0: floats(64), 1: floats(64), 2: int32(shift)}
    with pytest.raises(emulator.EmulatorError, match="heap-buffer-overflow") as raised:
        launch("bounds", kernel, "asan", buffers=buffers)
    assert line_of("bounds", kernel) in str(raised.value)


def test_asan_sees_threadgroup_overrun() -> None:
    with pytest.raises(emulator.EmulatorError, match="use-after-poison") as raised:
        launch("bounds", "threadgroup_overrun", "asan", group=(32, 1, 1), buffers={1: floats(32)})
    assert line_of("bounds", "threadgroup_overrun") in str(raised.value)


def test_asan_sees_private_overrun() -> None:
    buffers = {0: floats(64), 1: floats(64), 2: int32(5)}
    with pytest.raises(emulator.EmulatorError, match=r"out of bounds|stack-buffer") as raised:
        launch("bounds", "private_overrun", "asan", buffers=buffers)
    assert line_of("bounds", "private_overrun") in str(raised.value)


def test_asan_results_are_those_of_fast_mode() -> None:
    out = floats(64)
    report = launch("races", "exchange", "asan", buffers={0: out})
    np.testing.assert_array_equal(out, np.arange(63, -1, -1))
    assert report.counters["threadgroup_barriers"] == 2


def test_asan_refuses_buffers_that_share_a_part() -> None:
    data = floats(65)
    with pytest.raises(ValueError, match="two buffers share a part"):
        launch("bounds", "read_shifted", "asan", buffers={0: data[1:], 1: data[:64], 2: int32(0)})


def test_asan_reports_divergence_too() -> None:
    with pytest.raises(emulator.EmulatorError, match="different collectives") as raised:
        launch("divergence", "different_collectives", "asan", buffers={0: floats(64)})
    assert line_of("divergence", "different_collectives.0") in str(raised.value)
