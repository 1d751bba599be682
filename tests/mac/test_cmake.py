"""The build that a Mac would make, configured here with a stand-in for Apple's Metal compiler."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.emulator import mlx_headers
from tests.emulator.toolchain import compiler
from tests.mac.compile import ROOT

pytestmark = pytest.mark.skipif(sys.platform == "darwin", reason="a Mac has the real one")

# The Metal compiler answers which language it speaks; no kernel is compiled.
XCRUN = """#!/bin/sh
cat > /dev/null
echo 310
"""
# The Python that builds, with a Mac's mlx.
PYTHON = """#!/bin/sh
if [ "$*" = "-m mlx --cmake-dir" ]; then echo "{cmake}"; else exec "{python}" "$@"; fi
"""
DARWIN = {
    "CMAKE_SYSTEM_NAME": "Darwin",
    "CMAKE_SYSTEM_PROCESSOR": "arm64",
    "CMAKE_OSX_SYSROOT": "/",
    "CMAKE_CXX_COMPILER_WORKS": "1",
    "CMAKE_TRY_COMPILE_TARGET_TYPE": "STATIC_LIBRARY",  # nothing can be linked
    "CMAKE_HAVE_LIBC_PTHREAD": "1",
}


@pytest.fixture(scope="module")
def ninja(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the build that is generated for a Mac."""
    folder = tmp_path_factory.mktemp("darwin")
    tools = {"xcrun": XCRUN}
    tools["python"] = PYTHON.format(cmake=mlx_headers.cmake_dir(), python=sys.executable)
    for name, text in tools.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    values = DARWIN | {
        "CMAKE_CXX_COMPILER": compiler().path,
        "Python_EXECUTABLE": str(folder / "python"),
        "CMAKE_LIBRARY_OUTPUT_DIRECTORY": str(folder / "flashrt"),
    }
    command = ["cmake", "-S", str(ROOT), "-B", str(folder / "build"), "-G", "Ninja"]
    command += [f"-D{name}={value}" for name, value in values.items()]
    scripts = str(Path(sys.executable).parent)  # where pip puts cmake and ninja
    path = os.pathsep.join([str(folder), scripts, os.environ["PATH"]])
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=os.environ | {"PATH": path}
    )
    assert done.returncode == 0, done.stderr
    return (folder / "build" / "build.ninja").read_text()


def compiled(ninja: str) -> set[str]:
    """Return the sources of the module."""
    return set(re.findall(r"_C\.dir/runtime/src/(\S+)\.cpp\.o: CXX", ninja))


def test_the_module_is_the_gpu_route(ninja: str) -> None:
    sources = compiled(ninja)
    assert {"attention_eval_metal", "encode_metal"} <= sources
    assert "attention_eval_no_gpu" not in sources
    here = {path.stem for path in (ROOT / "runtime/src").glob("*.cpp")}
    assert here - {"attention_eval_no_gpu"} == {s for s in sources if "/" not in s}


def metal_commands(ninja: str) -> dict[str, str]:
    """Return how each Metal source is compiled."""
    # CMake quotes what has spaces.
    found = re.findall(r'xcrun -sdk macosx metal ([^&]*? -c (\S+\.metal|"[^"]+\.metal") )', ninja)
    return {source.strip('"'): command.replace('"', "") for command, source in found}


def test_every_kernel_and_the_stamp_are_compiled(ninja: str) -> None:
    commands = metal_commands(ninja)
    kernels = {str(path) for path in (ROOT / "generated").glob("*.metal")}
    assert set(commands) == kernels | {str(ROOT / "runtime/metal/stamp.metal")}
    for command in commands.values():
        assert "-mmacosx-version-min=14.0" in command
        assert "-std=metal3.1" in command
        assert "-fno-fast-math" in command
        assert f"-I{ROOT}/runtime/metal" in command


def test_host_and_kernels_get_one_tag(ninja: str) -> None:
    tags = re.findall(r"FLASHRT_KERNELS_TAG=(\w*)", ninja)
    assert len(set(tags)) == 1
    assert re.fullmatch("[0-9a-f]{16}", tags[0])
    assert len(tags) > len(compiled(ninja))  # the kernels' as well


def test_the_metallib_stands_beside_the_module(ninja: str) -> None:
    module = re.search(r"^build (\S+)/_C\.\S+: CXX_MODULE", ninja, re.MULTILINE)
    metallib = re.search(r"^build (\S+)/flashrt\.metallib\b", ninja, re.MULTILINE)
    assert module is not None
    assert metallib is not None
    assert Path(module[1]).name == Path(metallib[1]).name == "flashrt"
    assert "-Wl,-rpath,@loader_path/../mlx/lib" in ninja
