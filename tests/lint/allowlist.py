"""Every Metal name, attribute and pragma that the kernels use must be known to exist.

Known means: it occurs in the kernel headers that MLX ships in its macOS wheel, which Apple's
compiler accepts, or it stands in legal.py with the public place where it was read.

Why this is complete: a name in our sources that clang resolves is declared in our sources, in the
stub library or by clang itself. The stub's names are checked one by one, and clang's own are looked
for in our tokens.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.lint import clang
from tests.lint.finding import Finding
from tests.lint.legal import LEGAL
from tests.lint.tokens import Token, attribute_lists, tokenize

_DECLARATION = re.compile(
    r"^[| `-]*(?:Function|CXXMethod|Typedef|TypeAlias|TypeAliasTemplate|FunctionTemplate|"
    r"ClassTemplate|VarTemplate|CXXRecord|Enum|EnumConstant|Field|Var|Namespace)Decl "
    r"0x[0-9a-f]+ (?P<rest>.*)$"
)
_LOCATED = re.compile(r"<(?:<[^<>]*>|[^<>])*>(?: \S*:\d+(?::\d+)?)?(?P<words>[^']*)")
_FILLERS = frozenset(
    "used referenced implicit struct class union definition prev inline constexpr".split()
)
_PRAGMA_STRING = re.compile(r'^"(.*)"$')
# The implementation's own words that are MSL's as well.
_SHARED = frozenset({"__METAL_VERSION__", "__METAL__", "size_t"})


@dataclass(frozen=True)
class Known:
    """What MLX's kernel headers use: identifiers, attributes and pragmas."""

    names: frozenset[str]
    attributes: frozenset[str]
    pragmas: frozenset[str]


def known(headers: Iterable[Path]) -> Known:
    """Collect what occurs in the code (not the comments) of `headers`."""
    names: set[str] = set()
    attributes: set[str] = set()
    found_pragmas: set[str] = set()
    for header in headers:
        tokens = tokenize(header.read_text(encoding="utf-8"))
        names.update(t.text for t in tokens if t.kind == "name")
        attributes.update(a.name for _, _, listed in attribute_lists(tokens) for a in listed)
        found_pragmas.update(text for _, text in pragmas(tokens))
    return Known(frozenset(names), frozenset(attributes), frozenset(found_pragmas))


def pragmas(tokens: Sequence[Token]) -> Iterator[tuple[int, str]]:
    """Yield line and words, without arguments, of every `#pragma` and `_Pragma("...")`."""
    for i, token in enumerate(tokens):
        if token.text == "pragma" and i and tokens[i - 1].text == "#":
            words = [t.text for t in tokens[i + 1 :] if t.line == token.line]
        elif token.text == "_Pragma" and i + 2 < len(tokens):
            match = _PRAGMA_STRING.match(tokens[i + 2].text)
            words = [t.text for t in tokenize(match[1])] if match else [tokens[i + 2].text]
        else:
            continue
        yield token.line, " ".join(words[: words.index("(")] if "(" in words else words)


@cache
def stub_names(binary: str) -> tuple[frozenset[str], frozenset[str]]:
    """Return the names that the stub library declares, and those that clang declares by itself."""
    source = "#include <metal_stdlib>\n"
    ast = clang.run(
        binary,
        ["-fsyntax-only", "-Xclang", "-ast-dump", "-"],
        clang.preprocess_text(binary, source),
    )
    ours: set[str] = set()
    builtin: set[str] = set()
    for line in ast.splitlines():
        match = _DECLARATION.match(line)
        if match is None:
            continue
        located = _LOCATED.match(match["rest"].removeprefix("prev ").lstrip("0123456789abcdefx "))
        words = [w for w in (located["words"].split() if located else []) if w not in _FILLERS]
        name = next((w for w in words if re.fullmatch(r"[A-Za-z_]\w*", w)), None)
        if name:
            (builtin if "<<invalid sloc>>" in line else ours).add(name)
    ours.update(_macros(binary, source) - _macros(binary, ""))
    return frozenset(n for n in ours if not n.lower().startswith("stub_")), frozenset(builtin)


def _macros(binary: str, source: str) -> set[str]:
    listing = clang.run(binary, [f"-I{clang.STUB}", "-E", "-dM", "-"], source)
    return {m[1] for m in re.finditer(r"^#define (\w+)", listing, re.MULTILINE)}


def check_stub(binary: str, mlx: Known) -> list[Finding]:
    """Return the names of the stub library that nobody vouches for."""
    stub = clang.STUB / "metal_stdlib"
    lines = {t.text: t.line for t in reversed(tokenize(stub.read_text(encoding="utf-8")))}
    return [
        Finding(
            str(stub),
            lines.get(name, 1),
            "allow-list",
            f"`{name}` is neither in MLX's kernel headers nor in legal.py",
        )
        for name in sorted(stub_names(binary)[0])
        if name not in mlx.names and name not in LEGAL
    ]


def check(files: Mapping[str, Sequence[Token]], binary: str, mlx: Known) -> list[Finding]:
    """Return attributes, pragmas, clang's own and `metal::` names that nobody vouches for."""
    stub, builtin = stub_names(binary)
    found: list[Finding] = []

    def unknown(path: str, line: int, what: str) -> None:
        found.append(
            Finding(
                path,
                line,
                "allow-list",
                f"{what} is neither in MLX's kernel headers nor in legal.py",
            )
        )

    for path, tokens in files.items():
        for _, _, attributes in attribute_lists(tokens):
            for a in attributes:
                if a.name not in mlx.attributes and f"[[{a.name}]]" not in LEGAL:
                    unknown(path, a.line, f"attribute `{a.name}`")
        for line, words in pragmas(tokens):
            if words not in mlx.pragmas and f"#pragma {words}" not in LEGAL:
                unknown(path, line, f"`#pragma {words}`")
        for i, token in enumerate(tokens):
            if token.kind != "name":
                continue
            reserved = token.text.startswith("__") and token.text not in _SHARED
            if (
                (reserved or token.text in builtin)
                and token.text not in stub
                and token.text not in LEGAL
            ):
                unknown(path, token.line, f"`{token.text}`, which only clang knows,")
            elif (
                i > 1
                and (tokens[i - 2].text, tokens[i - 1].text) == ("metal", "::")
                and token.text not in mlx.names
                and token.text not in LEGAL
            ):
                unknown(path, token.line, f"`metal::{token.text}`")
    return found
