"""From offsets in a kernel library to lines of the source, through every inlined call."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.emulator import toolchain


@dataclass(frozen=True)
class Place:
    """A call chain in the source, innermost first; the shim's own frames are left out."""

    text: str  # "inner.h:12 < outer.h:34 < kernel.metal:56"
    exact: tuple[tuple[str, int, int], ...]  # file, line and column of each frame


NOWHERE = Place("?", ())


def is_own(path: Path) -> bool:
    """Whether a file is the emulator's own; kernels beside it, its fixtures, are not."""
    return {toolchain.OWN / "shim", toolchain.OWN / "runtime"} & set(path.parents) != set()


_known: dict[Path, dict[int, Place]] = {}  # a tool has to be run for what is not in it


def places(library: Path, offsets: Sequence[int]) -> Mapping[int, Place]:
    """Where in the source the code at these offsets comes from."""
    known = _known.setdefault(library, {})
    unique = sorted(set(offsets) - known.keys())
    if not unique:
        return known
    tool = shutil.which("llvm-symbolizer-19") or shutil.which("llvm-symbolizer")
    if tool is None:
        raise toolchain.ToolchainError("llvm-symbolizer is missing; it is part of llvm-19")
    command = [tool, f"--obj={library}", "--output-style=JSON", "--inlines", "--functions=none"]
    # One address gives an object a line, several give one list.
    text = toolchain.run([*command, *(hex(offset) for offset in unique)])
    answers = json.loads(text) if text.lstrip().startswith("[") else [json.loads(text)]
    found = zip(unique, answers, strict=True)
    known.update((offset, _place(offset, answer.get("Symbol", []))) for offset, answer in found)
    return known


def _place(offset: int, frames: Sequence[dict[str, Any]]) -> Place:
    exact = []
    names: list[str] = []
    for frame in frames:
        path, line = Path(frame["FileName"]), int(frame["Line"])
        if is_own(path) or not line:
            continue
        exact.append((str(path), line, int(frame.get("Column", 0))))
        name = f"{path.name}:{line}"
        if not names or names[-1] != name:
            names.append(name)
    return Place(" < ".join(names) or f"offset {offset:#x}", tuple(exact))
