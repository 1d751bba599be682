"""The race detector beside a brute-force one, on random programs of reads, writes and barriers."""

from __future__ import annotations

import functools
import itertools
from pathlib import Path

import numpy as np
import pytest

from tests import emulator

pytestmark = pytest.mark.skipif(
    emulator.unsupported() is not None, reason=str(emulator.unsupported())
)

SOURCE = Path(emulator.__file__).parent / "fixtures" / "programs.metal"
CELLS = 2
READ, WRITE = 10, 20
THREADGROUP_BARRIER, SIMDGROUP_BARRIER, BARRIER_OF_OTHER_MEMORY = 1, 2, 3
PROGRAMS = 2000


@functools.cache
def library() -> emulator.Library:
    return emulator.build([SOURCE], mode="trace")


def make_program(rng: np.random.Generator, steps: int, threads: int) -> np.ndarray:
    """Few accesses and many barriers: about half of the programs should race.

    Barriers of other memory order nothing, but let lanes run in turns.
    """
    program = np.zeros((steps, threads), np.int32)
    # Few threads and cells, so that they meet.
    busy = rng.choice([t for t in range(threads) if t % 32 < 3], rng.integers(3, 5), replace=False)
    cells = rng.integers(1, CELLS + 1)
    for step in range(steps):
        kind = rng.random()
        if kind < 0.08:
            program[step] = THREADGROUP_BARRIER
        elif kind < 0.2:
            program[step] = SIMDGROUP_BARRIER
        elif kind < 0.5:
            program[step] = BARRIER_OF_OTHER_MEMORY
        elif kind < 0.6:
            program[step, rng.choice(busy)] = WRITE + rng.integers(0, cells)
        else:
            who = rng.choice(busy, rng.integers(1, 3), replace=False)
            program[step, who] = READ + rng.integers(0, cells, len(who))
    return program


def races(program: np.ndarray, group: int) -> bool:
    """Whether two accesses of different threads to a cell, one a write, have no barrier between."""
    accesses: list[tuple[int, int, bool, int, int]] = []
    wide = narrow = 0  # barriers passed; all threads pass all of them
    for row in program:
        if row[0] == THREADGROUP_BARRIER:
            wide += 1
        elif row[0] == SIMDGROUP_BARRIER:
            narrow += 1
        elif row[0] != BARRIER_OF_OTHER_MEMORY:
            for thread in np.flatnonzero(row):
                cell = int(row[thread]) % 10
                accesses.append((int(thread), cell, bool(row[thread] >= WRITE), wide, narrow))
    for one, other in itertools.combinations(accesses, 2):
        (t1, c1, w1, wide1, narrow1), (t2, c2, w2, wide2, narrow2) = one, other
        if t1 == t2 or c1 != c2 or not (w1 or w2):
            continue
        if t1 // group != t2 // group:
            return True
        same_simdgroup = t1 % group // 32 == t2 % group // 32
        if wide1 == wide2 and (not same_simdgroup or narrow1 == narrow2):
            return True
    return False


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("kernel", "group", "groups"),
    [("threadgroup_program", 96, 1), ("device_program", 64, 1), ("device_program", 64, 3)],
)
def test_reports_are_those_of_brute_force(
    kernel: str, group: int, groups: int, threads: int
) -> None:
    rng = np.random.default_rng([group, groups, threads])
    seen = {True: 0, False: 0}
    for number in range(PROGRAMS):
        program = make_program(rng, int(rng.integers(4, 16)), group * groups)
        buffers = {
            0: program,
            1: np.zeros(group * groups, np.float32),
            2: np.int32(len(program)).tobytes(),
            3: np.zeros(CELLS, np.float32),
        }
        report = library().launch(
            kernel,
            grid=(groups, 1, 1),
            group=(group, 1, 1),
            buffers=buffers,
            threads=threads,
            seed=number,
        )
        expected = races(program, group)
        assert {fault.kind for fault in report.faults} == ({"race"} if expected else set()), (
            number,
            [row[row > 0] for row in program],
            report.faults,
        )
        seen[expected] += 1
    assert min(seen.values()) > PROGRAMS / 10, f"the programs tell nothing: {seen}"
