"""Launches in a process of their own, under AddressSanitizer and UndefinedBehaviorSanitizer."""

from __future__ import annotations

import ctypes
import itertools
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy.typing as npt

from tests.emulator import native, toolchain
from tests.emulator.symbols import is_own

_SUMMARY = re.compile(r"(?:ERROR: AddressSanitizer: |runtime error: )(.*)")
_FRAME = re.compile(r"^\s*#\d+ 0x[0-9a-f]+ in [^/\n]*(/[^\n]*?):(\d+)(?::\d+)?$", re.MULTILINE)
_ERROR_PLACE = re.compile(r"^(/[^\n]*?):(\d+):\d+: runtime error:", re.MULTILINE)


class SanitizerReport(Exception):
    """What a sanitizer said before it ended the process."""


def run(
    host: Path,
    library: Path,
    kernel: str,
    launch: native.Launch,
    arrays: Sequence[npt.NDArray[Any]],
) -> bool:
    """Run a launch; arrays (bound buffers by slot) and `launch` are filled in. True: it failed."""
    _refuse_partial_overlap(arrays)
    launch.threads = 1
    with tempfile.TemporaryDirectory(prefix="flashrt-emulator-") as folder:
        request, reply = Path(folder) / "request", Path(folder) / "reply"
        contents = [ctypes.string_at(array.ctypes.data, array.nbytes) for array in arrays]
        request.write_bytes(bytes(launch) + b"".join(contents))
        environment = {
            **os.environ,
            "ASAN_OPTIONS": "detect_leaks=0:detect_stack_use_after_return=0:symbolize=1",
            "UBSAN_OPTIONS": "print_stacktrace=1:symbolize=1",
        }
        symbolizer = shutil.which("llvm-symbolizer-19") or shutil.which("llvm-symbolizer")
        if symbolizer is not None:
            environment["ASAN_SYMBOLIZER_PATH"] = symbolizer
            environment["UBSAN_SYMBOLIZER_PATH"] = symbolizer
        done = subprocess.run(
            [str(host), str(library), kernel, str(request), str(reply)],
            capture_output=True,
            text=True,
            errors="replace",
            env=environment,
            check=False,
        )
        summary = _SUMMARY.search(done.stderr)
        if summary is not None:
            raise SanitizerReport(f"{summary.group(1).strip()} at {_place(done.stderr)}")
        if done.returncode not in (0, 1) or not reply.exists():
            raise toolchain.ToolchainError(
                f"{host.name} ended with {done.returncode}:\n{done.stderr[-4000:]}"
            )
        data = reply.read_bytes()
    size = ctypes.sizeof(native.Launch)
    ctypes.memmove(ctypes.addressof(launch), data, size)
    for array in arrays:
        if array.flags.writeable:
            ctypes.memmove(array.ctypes.data, data[size : size + array.nbytes], array.nbytes)
        size += array.nbytes
    return done.returncode == 1


def _refuse_partial_overlap(arrays: Sequence[npt.NDArray[Any]]) -> None:
    ranges = {(a.ctypes.data, a.ctypes.data + a.nbytes) for a in arrays if a.nbytes}
    for (_, end), (begin, _) in itertools.pairwise(sorted(ranges)):
        if begin < end:
            raise ValueError("asan mode: two buffers share a part; bind one base array to both")


def _place(text: str) -> str:
    """The source lines of the faulty access, innermost first, as everywhere else."""
    places: list[str] = []
    found = [*_ERROR_PLACE.finditer(text), *_FRAME.finditer(text.split("\n\n")[0])]
    for match in found:
        path = Path(match.group(1))
        place = f"{path.name}:{match.group(2)}"
        mine = is_own(path) or "compiler-rt" in path.parts
        if not mine and place not in places:
            places.append(place)
    return " < ".join(places) or "?"
