"""Compiles Apple-only C++ anywhere: clang, mlx's headers for macOS, stand-ins for the SDK's."""

from __future__ import annotations

import functools
import shutil
import subprocess
from pathlib import Path

from tests.emulator import mlx_headers
from tests.emulator.toolchain import compiler

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


def compile_source(path: Path, output: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Type-check a file, or compile it to an object file of this machine."""
    how = ["-fsyntax-only"] if output is None else ["-fPIC", "-c", "-o", str(output)]
    return subprocess.run([*command(), *how, str(path)], capture_output=True, text=True)


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
