"""Who may import or include whom, and what no tracked file may say.

The direction of dependencies: specs -> codegen -> generated; abi.h -> tile library -> generated;
abi.h, registry -> plan, CPU kernels -> MLX primitives -> bindings -> flashrt (Python).
"""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SRC = ROOT / "runtime" / "src"
METAL = ROOT / "runtime" / "metal"

# Modules of codegen from the bottom up: each imports only what stands above it in this list.
CODEGEN_ORDER = (
    "model",
    "diagnostics",
    "resources",
    "rules",
    "yamltree",
    "fields",
    "specfile",
    "cost",
    "routing",
    "render",
    "emit",
    "explain",
    "__main__",
)
# Third-party packages and the one module that may import each.
CODEGEN_THIRD_PARTY = {"mako": "render", "yaml": "yamltree"}

# C++ files by name: the first pattern that matches gives the layer. A file includes only files of
# its own layer and of those it is built on.
CPP_LAYERS = (
    ("problem", r"problem\.h"),
    ("registry", r"(kernel_info|devices)\.(h|cpp)"),
    ("plan", r"plan\w*\.(h|cpp)"),
    ("cpu", r"cpu/.*"),
    ("encode", r"encode_metal\w*\.(h|cpp)"),
    ("bindings", r"bindings\w*\.(h|cpp)"),
    ("attention", r"attention\w*\.(h|cpp)"),
)
BUILT_ON = {
    "problem": set[str](),
    "registry": {"problem"},
    "plan": {"problem", "registry"},
    "cpu": {"problem"},
    "encode": {"problem", "registry", "plan"},
    "attention": {"problem", "registry", "plan", "cpu", "encode"},
    "bindings": {"problem", "registry", "plan", "cpu", "encode", "attention"},
}
# Libraries, and the files of runtime/src that may include them.
CPP_LIBRARIES = {
    r"mlx/": r"(attention\w*|bindings_mlx|encode_metal\w*)\.(h|cpp)",
    r"pybind11/": r"bindings\w*\.(h|cpp)",
    r"nanobind/": r"bindings_mlx\.(h|cpp)",
    r"(Metal|Foundation|QuartzCore)/": r"(attention_eval_metal|encode_metal)\.(h|cpp)",
}


def imports(path: Path) -> set[str]:
    """Return the dotted names that a Python file imports, at any depth of its code."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide the direction of dependencies"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def packages(path: Path) -> set[str]:
    """Return the top-level packages that a Python file imports."""
    return {name.partition(".")[0] for name in imports(path)}


def includes(path: Path) -> list[str]:
    """Return what a C++ or MSL file includes."""
    return re.findall(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', path.read_text(), re.MULTILINE)


def python_files(*folders: str) -> list[Path]:
    """Return the Python files below folders of the checkout; an empty folder is an error."""
    found = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    assert found
    return found


def cpp_files() -> list[Path]:
    """Return the hand-written C++ of the runtime."""
    return sorted(path for path in SRC.rglob("*") if path.suffix in (".h", ".cpp"))


def layer(name: str) -> str:
    """Return the layer of a file of runtime/src, by its path there."""
    for title, pattern in CPP_LAYERS:
        if re.fullmatch(pattern, name):
            return title
    raise AssertionError(f"runtime/src/{name} belongs to no layer: add it to CPP_LAYERS")


def test_codegen_imports_downwards() -> None:
    """Modules import from those below them, never the other way round."""
    names = {path.stem for path in python_files("codegen")} - {"__init__"}
    assert names <= set(CODEGEN_ORDER), "a new module of codegen takes its place in CODEGEN_ORDER"
    for upper in names:
        used = {
            name.split(".")[1]
            for name in imports(ROOT / "codegen" / f"{upper}.py")
            if name.startswith("codegen.")
        }
        below = set(CODEGEN_ORDER[: CODEGEN_ORDER.index(upper)])
        assert used <= below, f"codegen/{upper}.py imports {sorted(used - below)}"


def test_codegen_needs_neither_runtime_nor_tests() -> None:
    """Generating kernels needs no mlx and no compiler; mako and yaml have one importer each."""
    for path in python_files("codegen"):
        used = packages(path)
        assert not used & {"flashrt", "mlx", "numpy", "tests"}, path
        for package, importer in CODEGEN_THIRD_PARTY.items():
            assert (package in used) <= (path.stem == importer), f"{path.name} imports {package}"


def test_runtime_needs_no_generator() -> None:
    """An installed flashrt reads no YAML and renders nothing."""
    for path in python_files("runtime/flashrt"):
        assert not packages(path) & {"codegen", "mako", "yaml", "tests"}, path


def test_emulator_needs_no_mlx() -> None:
    """The emulator runs kernels where mlx does not install."""
    for path in python_files("tests/emulator", "tests/lint"):
        assert not packages(path) & {"flashrt", "mlx"}, path


def test_library_is_self_contained() -> None:
    """MSL includes Metal's headers and the library's own, in no circle."""
    graph = {path.name: [*headers(path)] for path in sorted((METAL / "flashrt").glob("*.h"))}
    assert "abi.h" in graph
    done: set[str] = set()
    while ready := {name for name, used in graph.items() if name not in done and done >= set(used)}:
        done |= ready
    assert done == set(graph), f"headers include each other in a circle: {set(graph) - done}"


def headers(path: Path) -> Iterator[str]:
    """Yield the library headers that an MSL file includes; anything but Metal's own is an error."""
    for name in includes(path):
        if name.startswith("flashrt/"):
            assert (METAL / name).is_file(), f"{path.name} includes {name}"
            yield name.removeprefix("flashrt/")
        else:
            host = path.name == "abi.h" and name in ("cstddef", "cstdint")
            assert host or re.fullmatch(r"metal_\w+", name), f"{path.name} includes {name}"


def test_generated_kernels_include_the_library_alone() -> None:
    """A kernel gets everything through the library."""
    kernels = sorted((ROOT / "generated").glob("*.metal"))
    assert kernels
    for path in kernels:
        assert [name for name in includes(path) if not name.startswith("flashrt/")] == [], path.name
        assert list(headers(path)), path.name


@pytest.mark.parametrize("path", cpp_files(), ids=lambda path: str(path.relative_to(SRC)))
def test_cpp_includes_downwards(path: Path) -> None:
    """Plan and CPU kernels know nothing of MLX; only bindings know Python."""
    name = str(path.relative_to(SRC))
    mine = layer(name)
    for used in includes(path):
        target = next((p for p in (path.parent / used, SRC / used) if p.is_file()), None)
        if target is not None:
            theirs = layer(str(target.resolve().relative_to(SRC)))
            assert theirs == mine or theirs in BUILT_ON[mine], f"{name} ({mine}) includes {used}"
        for library, users in CPP_LIBRARIES.items():
            if re.match(library, used):
                assert re.fullmatch(users, name), f"{name} includes {used}"


@cache
def tracked() -> tuple[Path, ...]:
    """Return the files of the repository that are text."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return tuple(path for name in listed.split("\0") if name and (path := ROOT / name).is_file())


def test_no_path_of_one_machine() -> None:
    """Nothing tracked names a folder that another machine does not have."""
    pattern = re.compile(r"(?<![\w.$}~])/(?:work|root|home|tmp|Users)/\w[^\s\"'`)]*")
    found = [
        f"{path.relative_to(ROOT)}:{number}: {match[0]}"
        for path in tracked()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if (match := pattern.search(line))
    ]
    assert found == []


def test_text_files_are_tidy() -> None:
    """No trailing blanks, no tabs where they are not meant, one newline at the end."""
    untidy = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in tracked()
        for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), 1)
        if line != line.rstrip() or "\t" in line
    ]
    untidy += [
        f"{path.relative_to(ROOT)}: end"
        for path in tracked()
        if path.stat().st_size and not path.read_bytes().endswith(b"\n")
    ]
    assert untidy == []
