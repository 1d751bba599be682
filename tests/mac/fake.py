"""encode_metal.cpp, built with a fake of Metal that writes down its calls, as a Python module."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import shutil
import subprocess
import sysconfig
from pathlib import Path
from types import ModuleType

import mlx.core
import pybind11

from tests.mac.compile import ROOT, command
from tests.runtime.plan_module import SOURCES

NAME = "fake_metal"


def build(folder: Path) -> Path:
    """Compile the module into a folder."""
    output = folder / f"{NAME}{sysconfig.get_config_var('EXT_SUFFIX')}"
    lib = Path(mlx.core.__file__).parent / "lib"
    names = [name for name in SOURCES if name != "bindings_plan"]  # the fake includes it
    sources = [ROOT / f"runtime/src/{name}.cpp" for name in ("encode_metal", *names)]
    includes = [sysconfig.get_path("include"), pybind11.get_include(), str(ROOT / "generated")]
    line = [*command(), *(f"-I{include}" for include in includes), "-fPIC", "-shared"]
    line += [str(Path(__file__).parent / "fake_metal.cpp"), *map(str, sources)]
    line += [f"-L{lib}", "-lmlx", f"-Wl,-rpath,{lib}", "-o", str(output)]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return output


def load(module: Path, folder: Path) -> ModuleType:
    """Load a copy of the module that has loaded no metallib yet."""
    path = folder / module.name
    shutil.copy(module, path)
    name = f"{folder.name}.{NAME}"  # pybind11 makes one module of each name
    loader = importlib.machinery.ExtensionFileLoader(name, str(path))
    spec = importlib.util.spec_from_loader(name, loader)
    assert spec is not None
    loaded = importlib.util.module_from_spec(spec)
    loader.exec_module(loaded)
    return loaded
