"""What only a Mac builds has the right types and finds its symbols, as far as Linux can tell."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.emulator.toolchain import compiler
from tests.mac.compile import (
    ROOT,
    TAG,
    check,
    compiled,
    defined_symbols,
    exported_symbols,
    sources,
    undefined_symbols,
)

HEADER = """
#include "mlx/allocator.h"
#include "mlx/backend/metal/device.h"
namespace mx = mlx::core;
"""

# Uses of interfaces that mlx or metal-cpp do not have, and what has to be said about them.
WRONG = {
    "the encoder of a device": """
auto& f(mx::Stream s) { return mx::metal::device(s.device).get_command_encoder(s.index); }
// no member named 'get_command_encoder'
""",
    "an encoder by device": """
auto& f(mx::Stream s) { return mx::metal::get_command_encoder(s.device, s); }
// too many arguments
""",
    "a kernel by library name": """
auto* f(mx::metal::Device& d) { return d.get_kernel("k", "flashrt", "k", {}); }
// no matching member function
""",
    "an owning buffer": """
mx::allocator::Buffer f() { return mx::allocator::malloc(1); }
// no viable conversion
""",
    "a constant of no type": """
void f(const bool* b, mx::metal::MTLFCList& l) { l.emplace_back(b, MTL::DataTypeBoolean, 200); }
// no member named 'DataTypeBoolean'
""",
    "a grid of four": """
auto s = MTL::Size(1, 2, 3, 4);
// no matching con
""",
}

# Declared by mlx's headers, but not exported by its library.
HIDDEN = """
bool f() { return mx::metal::is_nax_available(); }
auto g() { return mx::metal::new_scoped_memory_pool(); }
"""


@pytest.mark.parametrize("path", sources(), ids=lambda path: path.stem)
def test_the_source_compiles(path: Path) -> None:
    assert compiled(path).exists()


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_call_is_noticed(name: str, tmp_path: Path) -> None:
    path = tmp_path / "wrong.cpp"
    path.write_text(HEADER + WRONG[name])
    done = check(path)
    message = WRONG[name].rstrip().rpartition("// ")[2]
    assert done.returncode != 0
    assert f"error: {message}" in done.stderr


def test_right_calls_pass(tmp_path: Path) -> None:
    """The wrong ones fail for what they do, not for what stands around them."""
    path = tmp_path / "right.cpp"
    path.write_text(HEADER + "auto& f(mx::Stream s) { return mx::metal::get_command_encoder(s); }")
    done = check(path)
    assert done.returncode == 0, done.stderr


def missing(objects: list[Path]) -> set[str]:
    """Return what objects need of mlx and metal-cpp and neither have nor find in libmlx."""
    needed: set[str] = set().union(*(undefined_symbols(path) for path in objects))
    needed = {name for name in needed if name.startswith(("mlx::", "MTL::", "NS::"))}
    assert needed, "no symbol of mlx is used: the check would check nothing"
    return needed.difference(exported_symbols(), *(defined_symbols(path) for path in objects))


def test_libmlx_exports_what_the_sources_need() -> None:
    assert missing([compiled(path) for path in sources()]) == set()


def test_a_hidden_symbol_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "hidden.cpp"
    path.write_text(HEADER + HIDDEN)
    assert missing([compiled(path)]) == {
        "mlx::core::metal::is_nax_available()",
        "mlx::core::metal::new_scoped_memory_pool()",
    }


def test_host_and_metallib_spell_the_stamp_alike() -> None:
    """The host looks for the function that the metallib gets from stamp.metal."""
    command = [compiler().path, "-E", "-x", "c++", f"-DFLASHRT_KERNELS_TAG={TAG}"]
    command.append(str(ROOT / "runtime/metal/stamp.metal"))
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    name = re.findall(r"void (\w+)\(\)", text)[0]
    assert name == f"flashrt_kernels_{TAG}"
    assert name.encode() + b"\0" in compiled(sources()[0]).read_bytes()
