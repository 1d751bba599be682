"""The environment variables that flashrt reads, all of them, strictly.

They are looked up at every call, so that setting one in a running session works. An argument
other than ``"auto"`` wins over them, and ``FLASHRT_*`` wins over an alias.
"""

from __future__ import annotations

import functools
import math
import os
from typing import TYPE_CHECKING, NamedTuple

from flashrt import _C

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

IMPLS = ("auto", "kernel", "mlx", "reference")
VJP_MODES = ("auto", "fused", "unfused")
_PREFIX = "FLASHRT_"


class Settings(NamedTuple):
    """What the environment asks for; None where it says nothing."""

    impl: str = "auto"
    vjp_mode: str = "auto"
    long_l_threshold: int | None = None
    attention_bytes_threshold: int | None = None
    max_buffer_ms: float | None = None
    metallib_dir: str | None = None
    verbose: bool = False


def _choice(values: Sequence[str]) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in values:
            raise ValueError("one of " + ", ".join(values))
        return text

    return parse


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise ValueError("an integer >= 0")
    return int(text)


def _milliseconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise ValueError("a number of milliseconds > 0")
    return value


def _directory(text: str) -> str:
    if not os.path.isdir(text):  # noqa: PTH112  (pathlib costs as much import time as flashrt)
        raise ValueError("an existing directory")
    return text


def _switch(text: str) -> bool:
    if text not in ("0", "1"):
        raise ValueError("0 or 1")
    return text == "1"


class _Variable(NamedTuple):  # not a dataclass: those cost more to import than all of flashrt
    field: str
    parse: Callable[[str], object]
    names: tuple[str, ...]  # an alias stands behind the name that wins over it


_VARIABLES = (
    _Variable("impl", _choice(IMPLS), ("FLASHRT_IMPL",)),
    _Variable("vjp_mode", _choice(VJP_MODES), ("FLASHRT_VJP_MODE", "MLX_SDPA_VJP_MODE")),
    _Variable(
        "long_l_threshold",
        _count,
        ("FLASHRT_LONG_L_THRESHOLD", "MLX_SDPA_VJP_LONG_L_THRESHOLD"),
    ),
    _Variable(
        "attention_bytes_threshold",
        _count,
        ("FLASHRT_ATTENTION_BYTES_THRESHOLD", "MLX_SDPA_VJP_ATTENTION_BYTES_THRESHOLD"),
    ),
    _Variable("max_buffer_ms", _milliseconds, ("FLASHRT_MAX_BUFFER_MS",)),
    _Variable("metallib_dir", _directory, ("FLASHRT_METALLIB_DIR",)),
    _Variable("verbose", _switch, ("FLASHRT_VERBOSE",)),
)

NAMES = [name for variable in _VARIABLES for name in variable.names]


def settings() -> Settings:
    """What the environment says now.

    Raises
    ------
    ValueError
        A variable has a value that it does not take, or a ``FLASHRT_`` name does not exist.
    """
    return _parse(tuple(_C.environment(NAMES, _PREFIX)))


@functools.lru_cache(maxsize=16)
def _parse(texts: tuple[str | None, ...]) -> Settings:
    *values_of_names, present = texts
    _refuse_unknown_names(present or "")
    given = dict(zip(NAMES, values_of_names, strict=True))
    values: dict[str, object] = {}
    for variable in _VARIABLES:
        for name in variable.names:
            text = given[name]
            if text is None:
                continue
            try:
                values[variable.field] = variable.parse(text)
            except ValueError as expected:
                raise ValueError(
                    f"environment variable {name}={text!r}: expected {expected}; "
                    "unset it for the default"
                ) from None
            break
    return Settings(**values)  # type: ignore[arg-type]  # each parser gives its field's type


def _refuse_unknown_names(present: str) -> None:
    unknown = sorted(set(present.split()) - set(NAMES))
    if unknown:
        known = ", ".join(n for n in NAMES if n.startswith(_PREFIX))
        raise ValueError(
            f"environment variable {unknown[0]} is not one that flashrt reads ({known}); unset it"
        )
