"""The build backend: setuptools, with the extension built by CMake.

`pip install .`, `pip install -e .` and `python -m build` come through here; pyproject.toml names
the extension and this module's command.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

from setuptools import Extension
from setuptools.build_meta import *  # noqa: F403  (the hooks of PEP 517 and PEP 660)
from setuptools.command.build_ext import build_ext
from setuptools.command.sdist import sdist

ROOT = Path(__file__).resolve().parent.parent
# What the build reads beyond the Python package.
SOURCES = ("runtime/build_backend.py", "runtime/src/**/*", "runtime/metal/**/*", "generated/*")


class SourceDistribution(sdist):
    """Packs what CMake reads, so that an sdist builds."""

    def make_distribution(self) -> None:
        found = [path for pattern in ("CMakeLists.txt", *SOURCES) for path in ROOT.glob(pattern)]
        self.filelist.extend(str(path.relative_to(ROOT)) for path in found if path.is_file())
        super().make_distribution()


class CMakeBuild(build_ext):
    """Configures and builds the CMake project, and puts its module where setuptools wants it."""

    def build_extension(self, ext: Extension) -> None:
        module = Path(self.get_ext_fullpath(ext.name)).resolve()
        build = Path(self.build_temp).resolve() / "cmake"
        module.parent.mkdir(parents=True, exist_ok=True)
        # Fresh: an earlier build's environment, whose tools the cache names, is gone.
        self._run(
            "cmake",
            *("--fresh", "-S", str(ROOT), "-B", str(build), "-G", "Ninja"),
            f"-DCMAKE_BUILD_TYPE={'Debug' if self.debug else 'Release'}",
            f"-DPython_EXECUTABLE={sys.executable}",
            f"-DCMAKE_LIBRARY_OUTPUT_DIRECTORY={module.parent}",
            *shlex.split(os.environ.get("CMAKE_ARGS", "")),
        )
        jobs = [f"-j{self.parallel}"] if self.parallel else []
        self._run("cmake", "--build", str(build), *jobs)
        if not module.is_file():
            raise RuntimeError(f"CMake succeeded and left no {module}")

    def copy_extensions_to_source(self) -> None:
        """Editable installs: the metallib goes where the module goes."""
        super().copy_extensions_to_source()
        build_py = self.get_finalized_command("build_py")
        for ext in self.extensions:
            package = ".".join(self.get_ext_fullname(ext.name).split(".")[:-1])
            built = Path(self.build_lib) / Path(*package.split("."))
            for metallib in built.glob("*.metallib"):
                self.copy_file(str(metallib), build_py.get_package_dir(package))

    def _run(self, *command: str) -> None:
        # Tools that the build environment brings are on PATH and nowhere else.
        self.announce(shlex.join(command), level=2)
        subprocess.run(command, check=True, cwd=ROOT)
