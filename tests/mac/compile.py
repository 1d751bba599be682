"""Compiles Apple-only C++ anywhere: clang, mlx's headers for macOS, stand-ins for the SDK's."""

from __future__ import annotations

import functools
import hashlib
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.emulator import mlx_headers
from tests.emulator.toolchain import cache_dir, compiler

ROOT = Path(__file__).resolve().parents[2]
TAG = "0a1b2c"  # of the kernels; starts with a digit as a digest may
STUBS = Path(__file__).parent / "stubs"


def sources() -> list[Path]:
    """Return the files of a Mac's build that use mlx, but for the bindings."""
    folder = ROOT / "runtime/src"
    primitives = set(folder.glob("attention*.cpp")) - {folder / "attention_eval_no_gpu.cpp"}
    return [folder / "encode_metal.cpp", *sorted(primitives)]


def command() -> list[str]:
    """Return the compiler and what it takes to see a Mac's headers."""
    include = mlx_headers.include_dir()
    line = [compiler().path, "-std=c++20", "-fblocks", "-Wall", "-Wextra", "-Werror"]
    line += ["-Wno-deprecated-declarations"]  # inside this standard library's std::bind
    line += ["-D_METAL_", "-DACCELERATE_NEW_LAPACK", f"-DFLASHRT_KERNELS_TAG={TAG}"]
    for folder in (STUBS, include, include / "metal_cpp"):
        line += ["-isystem", str(folder)]
    return [*line, f"-I{ROOT / 'runtime/src'}", f"-I{ROOT / 'runtime/metal'}"]


def check(path: Path) -> subprocess.CompletedProcess[str]:
    """Type-check a file."""
    return subprocess.run(
        [*command(), "-fsyntax-only", str(path)], capture_output=True, text=True, check=False
    )


@functools.cache
def compiled(path: Path, *options: str) -> Path:
    """Compile a file without a warning to an object file of this machine, once per content."""
    line = [*command(), *options, "-fPIC", "-c", str(path)]
    digest = hashlib.sha256("\0".join(line).encode())
    for file in (path, *_included()):
        digest.update(file.read_bytes())
    output = cache_dir() / "mac" / f"{path.stem}-{digest.hexdigest()[:16]}.o"
    if not output.exists():
        output.parent.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=output.parent) as scratch:
            made = Path(scratch) / output.name
            done = subprocess.run(
                [*line, "-o", str(made)], capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, done.stderr
            made.replace(output)
    return output


def _included() -> list[Path]:
    folders = ("runtime/src", "runtime/src/cpu", "runtime/metal/flashrt", "tests/mac")
    headers = [header for folder in folders for header in (ROOT / folder).glob("*.h")]
    more = [ROOT / "generated/registry.inc", ROOT / "runtime/src/bindings_plan.cpp"]
    return sorted([*headers, *more, *STUBS.rglob("*.h")])


def undefined_symbols(path: Path) -> set[str]:
    """Return what an object file needs of others, demangled."""
    return _names(path, "--undefined-only")


def defined_symbols(path: Path) -> set[str]:
    """Return what an object file offers to others, demangled."""
    return _names(path, "--defined-only", "--extern-only")


@functools.cache
def exported_symbols() -> set[str]:
    """Return what mlx's library for macOS offers, demangled."""
    return _names(mlx_headers.library(), "--defined-only", "--extern-only")


def _names(path: Path, *options: str) -> set[str]:
    tool = shutil.which("llvm-nm-19") or shutil.which("llvm-nm")
    assert tool is not None, "llvm-nm reads Mach-O: apt-get install llvm-19"
    command = [tool, "--demangle", "--format=just-symbols", *options, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return {_portable(line) for line in done.stdout.splitlines()}


def _portable(name: str) -> str:
    """Spell a symbol as both platforms do: their standard libraries and int64_t differ in name."""
    for ours, theirs in (
        ("std::__cxx11::", "std::"),
        ("std::__1::", "std::"),
        ("long long", "long"),
    ):
        name = name.replace(ours, theirs)
    return name
