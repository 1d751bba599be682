"""Compiles kernels for the emulator: one shared library per source, kept by content hash."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.emulator import toolchain
from tests.emulator.rewrite import RewriteError, rewrite
from tests.emulator.toolchain import HERE, RUNTIME_DIR, SHIM_DIR, Mode, ToolchainError

FORGET_AFTER_S = 14 * 24 * 3600

_INCLUDE = re.compile(rb"^[ \t]*#[ \t]*include[ \t]*[<\"]([^>\"]+)[>\"]", re.MULTILINE)


def build_kernels(
    mode: Mode,
    sources: Sequence[Path],
    include: Sequence[Path],
    defines: Mapping[str, object],
) -> list[Path]:
    """Shared libraries of the sources, compiled where the cache has none."""
    runtime = build_runtime(mode)
    flags = [f"-D{name}={value}" for name, value in sorted(defines.items())]
    jobs = max(1, min(len(sources), os.cpu_count() or 1))
    with ThreadPoolExecutor(jobs) as pool:
        return list(
            pool.map(lambda source: _build_kernel(source, mode, include, flags, runtime), sources)
        )


def build_runtime(mode: Mode) -> Path:
    """Build what all kernels of a mode share: a library, or the program that asan mode runs."""
    flags = [*toolchain.COMMON_FLAGS, *toolchain.MODE_RUNTIME_FLAGS[mode]]
    sources = [RUNTIME_DIR / f"{name}.cpp" for name in toolchain.RUNTIME_SOURCES[mode]]
    key = _digest(
        toolchain.compiler().version,
        *flags,
        *(s.name for s in sources),
        _folder(RUNTIME_DIR),
        _builder(),
    )

    def compile_to(out: Path, scratch: Path) -> None:
        objects = [scratch / f"{source.stem}.o" for source in sources]
        with ThreadPoolExecutor(max(1, os.cpu_count() or 1)) as pool:
            list(
                pool.map(
                    lambda pair: _clang(
                        *flags, toolchain.OWN_MAP, "-c", str(pair[0]), "-o", str(pair[1])
                    ),
                    zip(sources, objects, strict=True),
                )
            )
        link = ["-fuse-ld=lld", "-pthread", *map(str, objects), "-ldl", "-lm", "-o", str(out)]
        if mode == "asan":
            _clang(*toolchain.ASAN_LINK_FLAGS, *link)
        else:
            _clang("-shared", f"-Wl,-soname,{out.name}", *link)

    name = f"emulator_host_{key[:16]}" if mode == "asan" else f"libemulator_{mode}_{key[:16]}.so"
    return _cached(toolchain.cache_dir() / "emulator" / name, compile_to)


def _build_kernel(
    source: Path, mode: Mode, include: Sequence[Path], defines: list[str], runtime: Path
) -> Path:
    source = source.resolve()
    folders = [SHIM_DIR / "include", *(folder.resolve() for folder in include)]
    flags = [*toolchain.KERNEL_FLAGS, *toolchain.MODE_KERNEL_FLAGS[mode], *defines]
    key = _digest(
        runtime.name,
        *flags,
        source.name,
        *_closure(source, tuple(folders)),
        _folder(SHIM_DIR),
        _builder(),
    )

    def compile_to(out: Path, scratch: Path) -> None:
        search = [f"-I{folder}" for folder in folders]
        command = [toolchain.compiler().path, *toolchain.PREPROCESS_FLAGS, *search, *defines]
        text = toolchain.run([*command, str(source)])
        try:
            text = rewrite(text)
        except RewriteError as error:
            raise ToolchainError(f"{source}: {error}") from None
        cpp = scratch / f"{source.stem}.cpp"
        cpp.write_text(text)
        link = ["-shared", "-fuse-ld=lld"]
        if mode != "asan":  # there the program brings the runtime
            link += [str(runtime), f"-Wl,-rpath,{runtime.parent}"]
        shim = ["-include", str(SHIM_DIR / "msl.h")]
        _clang(*flags, toolchain.OWN_MAP, *shim, str(cpp), *link, "-o", str(out))

    name = f"{source.stem}_{mode}_{key[:16]}.so"
    return _cached(toolchain.cache_dir() / "emulator" / name, compile_to)


def _clang(*arguments: str) -> None:
    toolchain.run([toolchain.compiler().path, *arguments])


def _cached(path: Path, make: Callable[[Path, Path], None]) -> Path:
    """`path`, made at most once however many processes ask for it."""
    if path.exists():
        os.utime(path)
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    with _locked(path.with_suffix(".lock")):
        if not path.exists():
            _forget(path.parent)
            scratch = Path(tempfile.mkdtemp(prefix="build-", dir=path.parent))
            try:
                out = scratch / path.name
                make(out, scratch)
                out.replace(path)
            finally:
                shutil.rmtree(scratch)
    return path


def _forget(folder: Path) -> None:
    """Remove what nobody has used for weeks: sources change, and their libraries pile up."""
    oldest = time.time() - FORGET_AFTER_S
    for path in folder.glob("*_*.*"):
        with contextlib.suppress(FileNotFoundError):  # another process may do the same
            if path.is_file() and path.stat().st_mtime < oldest:
                path.unlink()


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _digest(*parts: str | bytes) -> str:
    total = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        total.update(len(data).to_bytes(8, "little") + data)
    return total.hexdigest()


@functools.cache
def _builder() -> str:
    """Digest of what decides how sources are compiled."""
    return _digest(
        *(HERE.joinpath(n).read_bytes() for n in ("compile.py", "rewrite.py", "toolchain.py"))
    )


@functools.cache
def _folder(folder: Path) -> str:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return _digest(*(part for f in files for part in (str(f.relative_to(folder)), f.read_bytes())))


def _closure(source: Path, folders: tuple[Path, ...]) -> list[bytes]:
    """Contents of a source and of all it may include, whatever its conditions say."""
    seen: dict[Path, bytes] = {}
    pending = [source]
    while pending:
        path = pending.pop()
        if path in seen:
            continue
        seen[path] = path.read_bytes()
        for match in _INCLUDE.finditer(seen[path]):
            name = match.group(1).decode()
            for folder in (path.parent, *folders):
                found = folder / name
                if found.is_file():
                    pending.append(found.resolve())
                    break
    # Names, not places: checkouts share what is the same in them.
    files = sorted((path.name.encode(), content) for path, content in seen.items())
    return [part for file in files for part in file]
