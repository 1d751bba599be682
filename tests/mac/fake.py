"""The GPU route, built with a fake of Metal that writes down its calls, as a Python module."""

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

from tests.emulator.toolchain import compiler
from tests.mac.compile import ROOT, TAG, compiled, sources
from tests.runtime.plan_module import SOURCES
from tests.runtime.plan_problems import kernels

NAME = "fake_metal"
OWN = ("fake_metal", "fake_module")
ELSEWHERE = ("attention_eval_cpu", "bindings_plan")  # not on the route; included by fake_module


def functions() -> list[str]:
    """Return the functions of a metallib that fits the module."""
    return [*kernels(), f"flashrt_kernels_{TAG}"]


def build(folder: Path) -> Path:
    """Compile the module into a folder."""
    python = [sysconfig.get_path("include"), pybind11.get_include(), str(ROOT / "generated")]
    options = [f"-I{include}" for include in python]
    objects = [compiled(Path(__file__).parent / f"{name}.cpp", *options) for name in OWN]
    route = [*sources(), *(ROOT / f"runtime/src/{name}.cpp" for name in SOURCES)]
    objects += [compiled(path, *options) for path in route if path.stem not in ELSEWHERE]
    output = folder / f"{NAME}{sysconfig.get_config_var('EXT_SUFFIX')}"
    lib = Path(mlx.core.__file__).parent / "lib"
    line = [compiler().path, "-shared", *map(str, objects), f"-L{lib}", "-lmlx"]
    line += [f"-Wl,-rpath,{lib}", "-o", str(output)]
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
