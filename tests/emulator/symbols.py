"""From offsets in a kernel library to lines of the source, through every inlined call."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

from tests.emulator import toolchain


def places(library: Path, offsets: Sequence[int]) -> dict[int, str]:
    """Offset -> "inner.h:12 < outer.h:34 < kernel.metal:56"; the shim's own frames are left out."""
    unique = sorted(set(offsets))
    if not unique:
        return {}
    tool = shutil.which("llvm-symbolizer-19") or shutil.which("llvm-symbolizer")
    if tool is None:
        raise toolchain.ToolchainError("llvm-symbolizer is missing; it is part of llvm-19")
    command = [tool, f"--obj={library}", "--output-style=JSON", "--inlines", "--functions=none"]
    # One address gives an object a line, several give one list.
    text = toolchain.run([*command, *(hex(offset) for offset in unique)])
    answers = json.loads(text) if text.lstrip().startswith("[") else [json.loads(text)]
    found: dict[int, str] = {}
    for offset, answer in zip(unique, answers, strict=True):
        frames: list[str] = []
        for frame in answer.get("Symbol", []):
            path = Path(frame["FileName"])
            if toolchain.SHIM_DIR in path.parents or not frame["Line"]:
                continue
            place = f"{path.name}:{frame['Line']}"
            if not frames or frames[-1] != place:
                frames.append(place)
        found[offset] = " < ".join(frames) or f"offset {offset:#x}"
    return found
