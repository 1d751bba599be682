"""The Metal kernel headers of MLX's macOS wheel, unpacked into the cache, never kept here.

They serve as a second opinion: kernels written for the hardware's lane layout, a list of what
Apple's compiler is known to accept, and the host API of the encoder.
"""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from tests.emulator.toolchain import cache_dir

VERSION = "0.32.4"
PLATFORM = "macosx_14_0_arm64"

PARTS = ("include", "lib/mlx.metallib", "lib/libmlx.dylib", "share/cmake")

# Takes the place of three headers that overload on address spaces or use compiler builtins.
OVERLAY_DIR = Path(__file__).parent / "overlay"


class MlxHeadersError(RuntimeError):
    """The wheel could not be fetched."""


def include_dir() -> Path:
    """Folder to include "mlx/backend/metal/kernels/..." from."""
    return _package_dir() / "include"


def kernels_dir() -> Path:
    """Folder of the kernel headers alone."""
    return include_dir() / "mlx" / "backend" / "metal" / "kernels"


def metallib() -> Path:
    """What Apple's compiler made of those headers."""
    return _package_dir() / "lib" / "mlx.metallib"


def library() -> Path:
    """MLX itself, as an extension on a Mac links with it."""
    return _package_dir() / "lib" / "libmlx.dylib"


def cmake_dir() -> Path:
    """What CMake knows of MLX on a Mac."""
    return _package_dir() / "share" / "cmake" / "MLX"


def _package_dir() -> Path:
    target = cache_dir() / f"mlx-metal-{VERSION}"
    package = target / "mlx"
    parts = [package / part for part in PARTS]
    if all(part.exists() for part in parts):
        return package
    with target.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not all(part.exists() for part in parts):
            scratch = Path(tempfile.mkdtemp(prefix="mlx-metal-", dir=cache_dir()))
            try:
                _fetch(scratch)
                shutil.rmtree(target, ignore_errors=True)
                (scratch / "unpacked").replace(target)
            finally:
                shutil.rmtree(scratch)
    return package


def _fetch(scratch: Path) -> None:
    command = [sys.executable, "-m", "pip", "download", f"mlx-metal=={VERSION}", "--no-deps"]
    command += ["--platform", PLATFORM, "--only-binary", ":all:", "--dest", str(scratch)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(scratch.glob("*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        raise MlxHeadersError(
            f"could not download mlx-metal {VERSION} for {PLATFORM} (its headers are needed by "
            f"this test; a folder unpacked by hand may stand at {cache_dir()}/mlx-metal-{VERSION}"
            f"):\n{done.stderr[-2000:]}"
        )
    with zipfile.ZipFile(wheels[0]) as wheel:
        kept = tuple(f"mlx/{part}" for part in PARTS)
        names = [n for n in wheel.namelist() if n.startswith(kept)]
        wheel.extractall(scratch / "unpacked", names)
