"""Where the compiler is, and the flags of each mode."""

from __future__ import annotations

import functools
import os
import platform
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Mode = Literal["fast", "trace", "asan"]
MODES: tuple[Mode, ...] = ("fast", "trace", "asan")

HERE = Path(__file__).parent
RUNTIME_DIR = HERE / "runtime"
SHIM_DIR = HERE / "shim"

# The emulator's own files in debug information: libraries are shared between checkouts, and frames
# of these are left out of reports.
OWN = Path("/flashrt-emulator")
OWN_MAP = f"-ffile-prefix-map={HERE}={OWN}"

# What the preprocessor plays: an MSL 3.1 compiler, whose headers are the shim's.
PREPROCESS_FLAGS = ("-E", "-x", "c++", "-std=c++17", "-D__METAL__", "-D__METAL_VERSION__=310")

COMMON_FLAGS = (
    "-std=c++17",
    "-fPIC",
    "-march=x86-64-v3",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-strict-aliasing",
    "-fno-exceptions",
    "-fvisibility=hidden",
    "-fvisibility-inlines-hidden",
    "-gline-tables-only",
)

KERNEL_FLAGS = (
    *COMMON_FLAGS,
    "-fno-rtti",
    "-fno-threadsafe-statics",
    "-ftrivial-auto-var-init=pattern",  # private memory that nobody wrote: NaN, wild pointers
    "-w",
    *("-Xclang", "-ffloat16-excess-precision=none"),
    *("-Xclang", "-cl-single-precision-constant"),
)

# Trace mode borrows the thread sanitizer's instrumentation and brings its own runtime. Every
# access of the source has to stay one of at most 16 bytes, and a read before a write counts too.
_TRACE = (
    "-O1",
    "-fsanitize=thread",
    "-fno-vectorize",
    "-fno-slp-vectorize",
    *("-mllvm", "-tsan-instrument-read-before-write=1"),
    *("-mllvm", "-tsan-instrument-func-entry-exit=0"),
    *("-mllvm", "-tsan-handle-cxx-exceptions=0"),
)

_SANITIZE = (
    "-fsanitize=address,alignment,bool,bounds,enum,integer-divide-by-zero,null,return,shift,"
    "signed-integer-overflow,unreachable"
)
_ASAN = ("-O1", _SANITIZE, "-fno-sanitize-recover=all", "-fno-omit-frame-pointer")

MODE_KERNEL_FLAGS: dict[Mode, tuple[str, ...]] = {"fast": ("-O2",), "trace": _TRACE, "asan": _ASAN}
# The runtime itself is never instrumented.
MODE_RUNTIME_FLAGS: dict[Mode, tuple[str, ...]] = {
    "fast": ("-O2",),
    "trace": ("-O2",),
    "asan": ("-O2", "-DEMU_ASAN"),
}

_RUNTIME = ("fiber", "schedule", "collectives", "launch", "memory")
RUNTIME_SOURCES: dict[Mode, tuple[str, ...]] = {
    "fast": (*_RUNTIME, "crash", "untraced"),
    "trace": (*_RUNTIME, "crash", "extents", "trace"),
    "asan": (*_RUNTIME, "untraced", "host"),
}
# AddressSanitizer has to be in a process from its start: there the runtime is a program.
ASAN_LINK_FLAGS = ("-pie", "-rdynamic", _SANITIZE)


class ToolchainError(RuntimeError):
    """The compiler is missing or refused a source."""


@dataclass(frozen=True)
class Compiler:
    path: str
    version: str


def unsupported() -> str | None:
    """Why no kernel can run here at all; None where a compiler is all it takes."""
    machine = f"{platform.system()} on {platform.machine()}"
    if machine not in ("Linux on x86_64", "Linux on AMD64"):
        return f"the emulator runs on Linux on x86-64 only, this is {machine}"
    return None


@functools.cache
def compiler() -> Compiler:
    """Find clang++ 19."""
    reason = unsupported()
    if reason is not None:
        raise ToolchainError(reason)
    for name in ("clang++-19", "clang++"):
        path = shutil.which(name)
        if path is None:
            continue
        version = run([path, "--version"]).splitlines()[0]
        if "version 19." in version:
            return Compiler(path, version)
    raise ToolchainError(
        "the emulator needs clang 19 (clang++-19, or clang++ of that version, on PATH); "
        "on Debian and Ubuntu: apt-get install clang-19 lld-19 llvm-19"
    )


@functools.cache
def cache_dir() -> Path:
    """Where compiled kernels and headers are kept, in the user's cache."""
    # No variable of our own: the package refuses names with FLASHRT_ that it does not read.
    root = os.environ.get("XDG_CACHE_HOME")
    path = (Path(root) if root else Path.home() / ".cache") / "flashrt"
    path.mkdir(parents=True, exist_ok=True)
    return path


def run(command: list[str], text: str | None = None) -> str:
    """Run a tool and return what it prints; its errors become ToolchainError."""
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ToolchainError(f"{Path(command[0]).name} failed:\n{done.stderr[:8000]}")
    return done.stdout
