"""Which kernels are legal: one function from a kernel as written to everything wrong with it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from codegen.model import FRAGMENT, KernelSpec, Owner, splits_of
from codegen.resources import (
    LIVE_LIMIT,
    THREADGROUP_LIMIT,
    least_threadgroup_bytes,
    live_bytes,
)

ROWS = (8, 16)  # owner rows per row group: one or two fragments
STEPS = (8, 16, 32, 64)  # rows of the other side per step
MAX_SIMDGROUPS = 8
MAP_TILE = 32  # block masks have 32x32 tiles


EVERYTHING = frozenset({"dtypes", "D", "Dv", "BQ", "BK", "WM", "WN", "split"})


@dataclass(frozen=True, slots=True)
class Violation:
    """A rule that a kernel breaks; no key where the kernel as a whole does."""

    key: str
    message: str
    depends_on: frozenset[str]  # the keys that the rule looks at


def violations(spec: KernelSpec) -> tuple[Violation, ...]:
    """Return every broken rule; sizes are only computed for tiles that make sense."""
    return tuple(_shape_violations(spec)) or tuple(_size_violations(spec))


def _owner_key(spec: KernelSpec) -> str:
    return "BK" if spec.kind.owner is Owner.KEY else "BQ"


def _step_key(spec: KernelSpec) -> str:
    return "BQ" if spec.kind.owner is Owner.KEY else "BK"


def _meets_map_tiles(edge: int) -> bool:
    return MAP_TILE % edge == 0 or edge % MAP_TILE == 0


def _owner_rows(WM: int) -> list[int]:
    """Return the legal owner rows of `WM` row groups."""
    return [rows * WM for rows in ROWS if _meets_map_tiles(rows * WM)]


def _nearest(value: int, legal: list[int]) -> int:
    return min(legal, key=lambda candidate: (abs(candidate - value), candidate))


def _shape_violations(spec: KernelSpec) -> Iterator[Violation]:
    splits = splits_of(spec.kind)
    if spec.split not in splits:
        names = ", ".join(split.token for split in splits)
        message = f"{spec.kind} has no such kernel; use one of {names}"
        yield Violation("split", message, frozenset({"split"}))
    elif spec.WN != spec.split.WN:
        message = f"must be {spec.split.WN} with split: {spec.split}; try {spec.split.WN}"
        yield Violation("WN", message, frozenset({"WN", "split"}))
    elif spec.WM * spec.WN > MAX_SIMDGROUPS:
        most = MAX_SIMDGROUPS // spec.WN
        message = f"WM*WN = {spec.WM * spec.WN} simdgroups, at most {MAX_SIMDGROUPS}; try {most}"
        yield Violation("WM", message, frozenset({"WM", "WN"}))
    if spec.WM <= MAX_SIMDGROUPS:
        yield from _owner_violations(spec)
    if spec.C not in STEPS:
        key, options = _step_key(spec), ", ".join(map(str, STEPS))
        message = f"must be one of {options}; try {_nearest(spec.C, list(STEPS))}"
        yield Violation(key, message, frozenset({key}))
    part = FRAGMENT * spec.W
    if spec.split in splits and (spec.D % part or spec.Dv % part):
        message = (
            f"{spec.split} needs D and Dv to be multiples of 8*{spec.W} = {part}, "
            f"here {spec.D} and {spec.Dv}; try split: none"
        )
        yield Violation("split", message, frozenset({"split", "D", "Dv"}))


def _owner_violations(spec: KernelSpec) -> Iterator[Violation]:
    key, rows = _owner_key(spec), spec.OB
    both = frozenset({key, "WM"})
    legal = _owner_rows(spec.WM)
    group = FRAGMENT * spec.WM
    if rows in legal:
        return
    if not legal:
        message = f"no {key} fits {spec.WM} row groups; try WM: 4"
        yield Violation("WM", message, frozenset({"WM"}))
        return
    if rows % group:
        rule = f"must be a multiple of 8*WM = {group}"
    elif rows // spec.WM not in ROWS:
        per_group = rows // spec.WM
        rule = f"gives each of WM = {spec.WM} row groups {per_group} rows, must be 8 or 16"
    else:
        rule = f"must divide {MAP_TILE} or be a multiple of it (block masks)"
    yield Violation(key, f"{rule}; try {_nearest(rows, legal)}", both)


def _size_violations(spec: KernelSpec) -> Iterator[Violation]:
    threadgroup, live = least_threadgroup_bytes(spec), live_bytes(spec)
    if threadgroup > THREADGROUP_LIMIT:
        rule = (
            f"{spec.dtype} needs {threadgroup:,} B of threadgroup memory, "
            f"at most {THREADGROUP_LIMIT:,}"
        )
        yield Violation("", f"{rule}; {_remedy(spec)}", EVERYTHING)
    if live > LIVE_LIMIT:
        rule = (
            f"{spec.dtype} keeps {live} B live per lane, at most {LIVE_LIMIT} "
            "(registers would spill)"
        )
        yield Violation("", f"{rule}; {_remedy(spec)}", EVERYTHING)


def _fits(spec: KernelSpec) -> bool:
    return (
        not any(_shape_violations(spec))
        and least_threadgroup_bytes(spec) <= THREADGROUP_LIMIT
        and live_bytes(spec) <= LIVE_LIMIT
    )


def _with_tile(spec: KernelSpec, owner: int, step: int) -> KernelSpec:
    if spec.kind.owner is Owner.KEY:
        return replace(spec, BK=owner, BQ=step)
    return replace(spec, BQ=owner, BK=step)


def _remedy(spec: KernelSpec) -> str:
    """Return the nearest smaller tile that fits: a shorter step first, then fewer owner rows."""
    for owner in sorted({spec.OB, *(r for r in _owner_rows(spec.WM) if r < spec.OB)}, reverse=True):
        for step in reversed([s for s in STEPS if s <= spec.C]):
            smaller = _with_tile(spec, owner, step)
            if _fits(smaller):
                changes = [
                    f"{key}: {new}"
                    for key, old, new in (
                        ("BQ", spec.BQ, smaller.BQ),
                        ("BK", spec.BK, smaller.BK),
                    )
                    if old != new
                ]
                return "try " + ", ".join(changes)
    return "no smaller tile fits; try another split"
