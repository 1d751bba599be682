"""Which problems each kernel runs: a covering design under a budget, the same in every process.

Every kernel meets every value of every factor; over the head dims of a kind and dtype every pair of
values meets at least once. A kernel gets at most 16 launches and 1.5 dense GFLOP.
"""

from __future__ import annotations

import functools
import itertools
import zlib
from typing import Any

import numpy as np

from tests.kernel.problems import Problem
from tests.kernel.registry import Kernel, by_kind

LENGTHS = (1, 8, 31, 32, 33, 64, 77, 128, 257)
OFFSETS = (0, 1, 15, 16, 17, 31, -1, -17, "decode", "cut")
HEADS = {"mha": (2, 2), "mqa": (3, 1), "gqa4": (8, 2), "gqa8": (16, 2)}

# Factor -> values; the first of each feature is "off" and likelier, so that launches stay readable.
FACTORS: dict[str, tuple[Any, ...]] = {
    "length": LENGTHS,
    "offset": OFFSETS,
    "anchor": ("q", "k"),  # which side has the length
    "heads": tuple(HEADS),
    "B": (1, 2),
    "layout": ("contiguous", "blhd", "cache", "padded"),
    "causal": (False, True),
    "mask": ("none", "bool", "dtype", "f32"),
    "mask_shape": ("full", "row", "column", "head", "sliced"),
    "dmask": ("none", "full", "b", "bh"),
    "block_mask": (False, True),
    "window": ("none", "both", "left", "right"),
    "softcap": (None, 2.0),
    "sinks": (False, True),
    "alibi": (False, True),
    "segments": (False, True),
    "row_diagonals": (False, True),
    "splits": (1, 2, 3),
    "scale": (None, -0.11),
}
FEATURES = {
    "causal": 0.5,
    "mask": 0.3,
    "dmask": 0.4,
    "block_mask": 0.25,
    "window": 0.25,
    "softcap": 0.25,
    "sinks": 0.25,
    "alibi": 0.25,
    "segments": 0.2,
    "row_diagonals": 0.2,
    "splits": 0.3,
    "scale": 0.15,
}
MAX_LAUNCHES = 16
MAX_FLOPS = 1_500_000_000
CANDIDATES = 60

Choice = dict[str, Any]
Pair = tuple[tuple[str, Any], tuple[str, Any]]


def pairs(choice: Choice) -> set[Pair]:
    """Pairs of values that meet in one launch, as far as they mean anything."""
    items = sorted(choice.items(), key=lambda item: item[0])
    if choice["mask"] == "none":  # then there is nothing to have a shape or a gradient
        items = [item for item in items if item[0] not in ("mask_shape", "dmask")]
    elif choice["mask"] == "bool":
        items = [item for item in items if item[0] != "dmask"]
    return set(itertools.combinations(items, 2))


def all_pairs() -> set[Pair]:
    """Every pair that a design has to cover."""
    wanted = set()
    for (a, a_values), (b, b_values) in itertools.combinations(sorted(FACTORS.items()), 2):
        for x, y in itertools.product(a_values, b_values):
            mask = x if a == "mask" else y if b == "mask" else None
            if mask == "none" and {a, b} & {"mask_shape", "dmask"}:
                continue
            if mask == "bool" and "dmask" in (a, b):
                continue
            wanted.add(((a, x), (b, y)))
    return wanted


def problem_of(choice: Choice, dtype: str, d: int, dv: int) -> Problem:
    """Turn one row of the design into a problem for a head dim."""
    length, offset = choice["length"], choice["offset"]
    q_off = None
    if offset == "decode":  # one side far longer than the other
        other = 257 if length <= 77 else 8
        offset = other - length if choice["anchor"] == "q" else length - other
    elif offset == "cut":  # rows cut out of a longer call: the diagonal does not end in the corner
        q_off = (9 if choice["anchor"] == "q" else -5) if length < 100 else 40
        offset = 3
    if choice["anchor"] == "q":
        qL, kL = length, max(1, length + offset)
    else:
        qL, kL = max(1, length - offset), length
    H, Hk = HEADS[choice["heads"]]
    widths = {"none": None, "both": (max(kL // 3, 4), max(kL // 4, 3)), "left": (40, -1)}
    return Problem(
        dtype=dtype,
        d=d,
        dv=dv,
        B=choice["B"],
        H=H,
        Hk=Hk,
        qL=qL,
        kL=kL,
        q_off=q_off,
        scale=choice["scale"],
        causal=choice["causal"],
        window=widths.get(choice["window"], (-1, 20)),
        mask=choice["mask"],
        mask_shape=choice["mask_shape"] if choice["mask"] != "none" else "full",
        dmask=choice["dmask"] if choice["mask"] in ("dtype", "f32") else "none",
        block_mask=choice["block_mask"],
        softcap=choice["softcap"],
        sinks=choice["sinks"],
        alibi=choice["alibi"],
        segments=choice["segments"],
        row_diagonals=choice["row_diagonals"],
        splits=choice["splits"],
        layout=choice["layout"],
        spread=1.0 if length % 2 else 1.5,
        poison=3e4 if choice["B"] == 2 else np.nan,
    )


def _random_choice(rng: np.random.Generator) -> Choice:
    choice = {}
    for name, values in FACTORS.items():
        likely = FEATURES.get(name)
        if likely is None:
            choice[name] = values[rng.integers(len(values))]
        else:
            on = rng.random() < likely
            choice[name] = values[1 + rng.integers(len(values) - 1)] if on else values[0]
    return choice


def _next_choice(
    rng: np.random.Generator,
    kernel: Kernel,
    unmet: dict[str, list[Any]],
    uncovered: set[Pair],
    launches_left: int,
    flops_left: int,
) -> Choice | None:
    """Pick the candidate that meets most, of those that leave something for the other launches."""
    best, best_gain = None, -1.0
    due = [n for n, values in unmet.items() if len(values) >= launches_left]
    seeds = sorted(uncovered, key=repr) if uncovered else []
    for _ in range(CANDIDATES):
        choice = _random_choice(rng)
        if seeds and (len(seeds) < 100 or rng.random() < 0.7):
            choice.update(dict(seeds[rng.integers(len(seeds))]))
        for name, values in unmet.items():
            if values and (name in due or rng.random() < 0.5):
                choice[name] = values[rng.integers(len(values))]
        p = problem_of(choice, kernel.dtype, kernel.d, kernel.dv)
        cost = p.flops(kernel.kind)
        if cost > flops_left * max(0.4, 1 / launches_left):
            continue
        new_values = sum(choice[name] in values for name, values in unmet.items())
        gain = len(pairs(choice) & uncovered) + 10 * new_values - cost / MAX_FLOPS
        if gain > best_gain:
            best, best_gain = choice, gain
    return best


@functools.cache
def design(kind: str, dtype: str) -> dict[str, tuple[Choice, ...]]:
    """Choose the launches of every kernel of a kind and dtype, by name."""
    uncovered = all_pairs()
    launches: dict[str, tuple[Choice, ...]] = {}
    for kernel in by_kind(kind, dtype):
        rng = np.random.default_rng(zlib.crc32(kernel.name.encode()))
        unmet = {name: list(values) for name, values in FACTORS.items()}
        chosen: list[Choice] = []
        flops_left = MAX_FLOPS
        while len(chosen) < MAX_LAUNCHES:
            left = MAX_LAUNCHES - len(chosen)
            choice = _next_choice(rng, kernel, unmet, uncovered, left, flops_left)
            if choice is None:
                break
            chosen.append(choice)
            uncovered -= pairs(choice)
            for name, values in unmet.items():
                if choice[name] in values:
                    values.remove(choice[name])
            flops_left -= problem_of(choice, dtype, kernel.d, kernel.dv).flops(kind)
        launches[kernel.name] = tuple(chosen)
    return launches


def problems_of(kernel: Kernel) -> tuple[Problem, ...]:
    """List the problems of one kernel."""
    choices = design(kernel.kind, kernel.dtype)[kernel.name]
    return tuple(problem_of(c, kernel.dtype, kernel.d, kernel.dv) for c in choices)


def product_of(kernel: Kernel) -> tuple[Problem, ...]:
    """List every length, offset, causality and grouping; the other factors vary at random."""
    rng = np.random.default_rng(zlib.crc32(kernel.name.encode()) + 1)
    axes = {name: FACTORS[name] for name in ("length", "offset", "anchor", "causal", "heads")}
    out = []
    for values in itertools.product(*axes.values()):
        choice = {**_random_choice(rng), **dict(zip(axes, values, strict=True)), "B": 1}
        out.append(problem_of(choice, kernel.dtype, kernel.d, kernel.dv))
    return tuple(out)
