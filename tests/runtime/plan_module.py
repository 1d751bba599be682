"""The planner as a Python module of its own, built in seconds: it needs no mlx."""

from __future__ import annotations

import hashlib
import importlib.machinery
import importlib.util
import os
import subprocess
import sysconfig
import tempfile
from functools import cache
from pathlib import Path
from types import ModuleType

import pybind11

from tests.emulator.toolchain import cache_dir

ROOT = Path(__file__).resolve().parents[2]
NAME = "flashrt_plan"
SOURCES = (
    "bindings_plan",
    "devices",
    "encode_metal_sequence",
    "kernel_info",
    "plan",
    "plan_backward",
    "plan_builder",
    "plan_forward",
)
MODULE = f"""
#include "bindings_plan.h"
PYBIND11_MODULE({NAME}, module) {{ flashrt::bind_plan(module); }}
"""
INCLUDES = ("runtime/src", "runtime/metal", "generated")


@cache
def load() -> ModuleType:
    """Return the module, built again whenever a file that it is made of has changed."""
    home = cache_dir()
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    path = home / f"plan-{_digest()}" / f"{NAME}{suffix}"
    if not path.exists():
        with tempfile.TemporaryDirectory(dir=home) as scratch:
            built = _build(Path(scratch), path.name)
            path.parent.mkdir(exist_ok=True)
            built.replace(path)
    loader = importlib.machinery.ExtensionFileLoader(NAME, str(path))
    spec = importlib.util.spec_from_loader(NAME, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def _digest() -> str:
    digest = hashlib.sha256(MODULE.encode())
    files = [ROOT / "generated/registry.inc", ROOT / "runtime/metal/flashrt/abi.h"]
    files += [ROOT / f"runtime/src/{name}.cpp" for name in SOURCES]
    files += (ROOT / "runtime/src").glob("*.h")
    for file in sorted(files):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def _build(scratch: Path, name: str) -> Path:
    main = scratch / "module.cpp"
    main.write_text(MODULE)
    includes = [sysconfig.get_path("include"), pybind11.get_include()]
    includes += [str(ROOT / folder) for folder in INCLUDES]
    command = [os.environ.get("CXX", "c++"), "-std=c++20", "-O0", "-fPIC", "-shared"]
    command += ["-fvisibility=hidden", "-Wall", "-Wextra", "-Werror"]
    command += [f"-I{folder}" for folder in includes]
    command += [str(main), *(str(ROOT / f"runtime/src/{source}.cpp") for source in SOURCES)]
    command += ["-undefined", "dynamic_lookup"] if os.uname().sysname == "Darwin" else []
    command += ["-o", str(scratch / name)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"the planner does not build:\n{done.stderr}"
    return scratch / name
