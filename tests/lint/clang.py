"""MSL through clang's C++ for OpenCL, the nearest public relative of Metal's dialect.

One run per file gives diagnostics and the AST; astdump.py finds there what clang accepts and Metal
does not.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.lint.finding import Finding

STUB = Path(__file__).parent / "stub"

_EXTENSIONS_OFF = (
    "cl_khr_fp64",
    "__opencl_c_fp64",
    "__opencl_c_program_scope_global_variables",
    "__opencl_c_pipes",
    "__opencl_c_device_enqueue",
    "__cl_clang_function_pointers",
    "__cl_clang_variadic_functions",
)
_FLAGS = (
    "-x",
    "cl",
    "-cl-std=clc++2021",
    "-cl-no-stdinc",
    "-target",
    "x86_64-linux-gnu",  # the only target of clang 19 whose __bf16 has arithmetic in this mode
    "-Xclang",
    "-cl-ext=+all",
    "-Xclang",
    "-cl-ext=" + ",".join("-" + name for name in _EXTENSIONS_OFF),
    "-ferror-limit=0",
    "-fno-color-diagnostics",
    "-fno-caret-diagnostics",
    "-Wall",
    "-Wextra",
    "-Wpre-c++17-compat",  # MSL 3.1 is C++14
    # Attributes are checked against the allow-list.
    "-Wno-unknown-attributes",
    "-Wno-unused-parameter",
    "-Wno-unused-function",
    "-Wno-undefined-inline",  # the stub library defines nothing
)
_MACROS = ("-D__METAL__", "-D__METAL_VERSION__=310")
_DIAGNOSTIC = re.compile(
    r"^(?P<path>[^\s:][^:]*):(?P<line>\d+):\d+: "
    r"(?P<level>fatal error|error|warning|note): (?P<text>.*)$"
)
_IGNORED = (
    "double precision constant requires",
)  # unsuffixed literals: the float-literal rule says it better
_FUNCTION_CONSTANT = re.compile(
    r"\bconstant\s+(\w+)\s+(\w+)\s*\[\[\s*function_constant\s*\(\s*\d+\s*\)\s*\]\]\s*;"
)
_KERNEL = re.compile(r"(\[\[\s*kernel\b(?:[^\[\]]|\[(?!\[))*?\]\])")
_VECTOR = re.compile(r"\b((?:metal::)?vec<[^<>]*>|(?:float|int|short|uint)[24]|uint3)\s*\((?=[^)])")
_SPACES = {
    "device": "__global",
    "threadgroup": "__local",
    "constant": "__constant",
    "thread": "__private",
}
_ADDRESS_SPACE = re.compile(rf"^(#[^\n]*)|\b({'|'.join(_SPACES)})\b", re.MULTILINE)


class ToolError(Exception):
    """A tool of the lint is missing or does not work: not a finding about the sources."""


@dataclass(frozen=True)
class Unit:
    """What clang says about one file."""

    findings: tuple[Finding, ...]
    ast: str


def find_clang() -> str:
    """Return clang 19: the release whose dialect and AST format this package knows."""
    for name in ("clang-19", "clang"):
        path = shutil.which(name)
        if (
            path
            and " version 19."
            in subprocess.run(
                [path, "--version"], capture_output=True, text=True, check=True
            ).stdout
        ):
            return path
    raise ToolError(
        "the lint needs clang 19: `apt-get install clang-19` (Debian) or `brew install llvm@19`"
    )


def rewrite(text: str) -> str:
    """Make preprocessed MSL acceptable to clang, line by line.

    A function constant has no initialiser in MSL; an extern one has none in OpenCL either and is
    not folded. OpenCL has no constructors of vectors; a function of the stub stands in for them.
    """
    text = _FUNCTION_CONSTANT.sub(r"extern constant \1 \2;", text)
    text = _KERNEL.sub(r"\1 __kernel", text)
    text = _VECTOR.sub(r"::metal::stub_make<\1>(", text)
    return _ADDRESS_SPACE.sub(lambda match: match[1] or _SPACES[match[2]], text)


def preprocess_text(binary: str, source: str) -> str:
    """Preprocess a snippet that includes only the stub library, and rewrite it."""
    return rewrite(run(binary, [*_MACROS, f"-I{STUB}", "-E", "-"], source))


def run(binary: str, arguments: Sequence[str], source: str) -> str:
    """Run clang on text that must compile: the stub library itself."""
    result = subprocess.run(
        [binary, *_FLAGS, *arguments], input=source, capture_output=True, text=True
    )
    if result.returncode:
        raise ToolError(f"clang rejects the stub library:\n{result.stderr[-4000:]}")
    return result.stdout


def compile_file(source: Path, include: Sequence[Path], binary: str) -> Unit:
    """Check one .metal file and return its diagnostics and AST."""
    includes = [f"-I{path}" for path in (STUB, *include)]
    preprocessed = subprocess.run(
        [binary, *_FLAGS, *_MACROS, *includes, "-E", str(source)], capture_output=True, text=True
    )
    findings = _diagnostics(preprocessed.stderr)
    if preprocessed.returncode:
        return Unit(
            tuple(findings or [Finding(str(source), 1, "clang", preprocessed.stderr.strip())]), ""
        )
    compiled = subprocess.run(
        [binary, *_FLAGS, "-fsyntax-only", "-Xclang", "-ast-dump", "-"],
        input=rewrite(preprocessed.stdout),
        capture_output=True,
        text=True,
    )
    findings += _diagnostics(compiled.stderr)
    if compiled.returncode and not findings:
        raise ToolError(
            f"clang failed on {source} without a diagnostic:\n{compiled.stderr[-2000:]}"
        )
    return Unit(tuple(dict.fromkeys(findings)), compiled.stdout)


def _diagnostics(stderr: str) -> list[Finding]:
    found: list[Finding] = []
    inside: Finding | None = None  # reported in the stub: waits for the note that says who asked
    for line in stderr.splitlines():
        match = _DIAGNOSTIC.match(line)
        if match is None:
            continue
        place = Finding(match["path"], int(match["line"]), "clang", match["text"])
        in_stub = place.path.startswith(str(STUB))
        if match["level"] != "note":
            if inside is not None:
                found.append(inside)
            inside = None
            if place.message.startswith(_IGNORED):
                continue
            if in_stub:
                inside = place
            else:
                found.append(place)
        elif inside is not None and not in_stub and "requested here" in place.message:
            found.append(Finding(place.path, place.line, "clang", inside.message))
            inside = None
    return found if inside is None else [*found, inside]
