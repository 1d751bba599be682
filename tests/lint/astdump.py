"""What clang accepts and Metal does not, read off the text of `-ast-dump`.

One pass over the lines: every line is a node, its depth is the column of its first letter, and
locations name file and line only where they differ from the line before.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.lint.finding import Finding

_NODE = re.compile(r"^(?P<indent>[| `-]*)(?P<kind>[A-Z]\w+) (?P<address>0x[0-9a-f]+)(?P<rest>.*)$")
_LOCATION = re.compile(
    r"line:(?P<line>\d+):\d+|col:\d+|(?P<file>[^\s:,][^:,]*):(?P<fileline>\d+):\d+"
)
_RANGE = re.compile(r"<((?:<[^<>]*>|[^<>])*)>(?: ((?:line:|col:|[^\s'<>]+:\d+:)\S+))?")
_TYPE = re.compile(r"'([^']*)'")
_PREVIOUS = re.compile(r"\bprev (0x[0-9a-f]+)")
_CALLEE = re.compile(
    r"\b(?:Function|CXXMethod|CXXConstructor|CXXConversion) (0x[0-9a-f]+)"
    r"|(?:->|\.)\S* (0x[0-9a-f]+)$"
)
_SPACES = ("__global", "__local", "__constant", "__private")
_NESTED = re.compile(r"<[^<>]*>|\[[^\[\]]*\]")  # template arguments and array bounds
_FUNCTIONS = frozenset(
    {
        "FunctionDecl",
        "CXXMethodDecl",
        "CXXConstructorDecl",
        "CXXConversionDecl",
        "CXXDestructorDecl",
    }
)
_VARIABLES = frozenset({"VarDecl", "ParmVarDecl", "FieldDecl"})
_CASTS = frozenset(
    {"CStyleCastExpr", "CXXReinterpretCastExpr", "CXXStaticCastExpr", "CXXConstCastExpr"}
)
_BFLOAT = re.compile(r"\b(?:__bf16|bfloat\d?)\b")
_HALF = re.compile(r"\b(?:half\d?|__fp16|_Float16)\b")


@dataclass
class _Walk:
    parents: list[tuple[int, bool]] = field(default_factory=list)  # depth, copies a whole struct
    file: str = ""
    line: int = 0
    # Enclosing functions: depth, address, implicit.
    functions: list[tuple[int, str, bool]] = field(default_factory=list)
    conversion: tuple[int, str] | None = None  # of a cast to __generic: depth, target
    names: dict[str, tuple[str, str, int]] = field(
        default_factory=dict
    )  # address -> name, file, line
    calls: dict[str, set[str]] = field(default_factory=dict)
    canonical: dict[str, str] = field(default_factory=dict)


def check(ast: str, skip: str) -> list[Finding]:
    """Return the findings outside files whose path contains `skip` (the stub library)."""
    walk = _Walk()
    found: list[Finding] = []
    seen: set[tuple[tuple[str, int], str]] = set()
    for text in ast.splitlines():
        node = _NODE.match(text)
        if node is None:
            continue
        depth = len(node["indent"])
        while walk.functions and walk.functions[-1][0] >= depth:
            walk.functions.pop()
        while walk.parents and walk.parents[-1][0] >= depth:
            walk.parents.pop()
        where = _advance(walk, node["rest"])
        ours = skip not in where[0] and not where[0].startswith("<built-in>")
        for rule, message in _node(walk, depth, node, where):
            if ours and (where, rule) not in seen:  # templates repeat it for every instance
                seen.add((where, rule))
                found.append(Finding(*where, rule, message))
        walk.parents.append((depth, _copies_struct(node["kind"], node["rest"])))
    found += [f for f in _recursion(walk) if skip not in f.path]
    return found


def _advance(walk: _Walk, rest: str) -> tuple[str, int]:
    """Follow the locations of a node; return the place of its name, or else where it starts."""
    match = _RANGE.search(rest)
    if match is None:
        return walk.file, walk.line
    places: list[tuple[str, int]] = []
    for part in (match[1], match[2] or ""):
        for location in _LOCATION.finditer(part):
            if location["file"]:
                walk.file = location["file"]
            if location["line"] or location["fileline"]:
                walk.line = int(location["line"] or location["fileline"])
            places.append((walk.file, walk.line))
    if not places:
        return walk.file, walk.line
    return places[-1] if match[2] else places[0]


def _node(
    walk: _Walk, depth: int, node: re.Match[str], where: tuple[str, int]
) -> Iterator[tuple[str, str]]:
    kind, rest = node["kind"], node["rest"]
    types = _TYPE.findall(rest)
    if walk.conversion is not None:
        opener, target = walk.conversion
        walk.conversion = None
        if (
            depth > opener
            and types
            and any(space in types[0] for space in ("__global", "__local", "__constant"))
        ):
            yield (
                "address-space",
                f"`{_msl(types[0])}` is used as `{_msl(target)}`, whose space is not named",
            )
    if kind in _FUNCTIONS:
        _enter_function(walk, depth, node, where)
        if types and not walk.functions[-1][2]:
            returned = types[0].split("(")[0]
            if _unplaced(returned):
                yield "address-space", f"return type `{_msl(returned)}` names no address space"
    elif kind in _VARIABLES:
        implicit = " implicit" in rest or any(function[2] for function in walk.functions)
        if types and not implicit and _unplaced(types[0]):
            yield (
                "address-space",
                f"`{_declared(rest)}` of type `{_msl(types[0])}` names no address space",
            )
    elif kind in _CASTS and types and _unplaced(types[0]):
        yield "address-space", f"cast to `{_msl(types[0])}` names no address space"
    elif kind == "ImplicitCastExpr" and types:
        if "<AddressSpaceConversion>" in rest and "__generic" in types[0]:
            if walk.parents and walk.parents[-1][1]:
                return  # the implicit copy works between any two spaces, in MSL as here
            walk.conversion = (depth, types[0])
        elif "part_of_explicit_cast" not in rest:
            to_bfloat, to_half = _BFLOAT.search(types[-1]), _HALF.search(types[-1])
            if ("<FloatingCast>" in rest and (to_bfloat or to_half)) or (
                "<IntegralToFloating>" in rest and to_bfloat
            ):
                yield "narrowing", f"implicit conversion to `{_msl(types[0])}`: write the cast"
    elif kind == "CompoundAssignOperator" and len(types) >= 2 and "ComputeResultTy='float" in rest:
        if _BFLOAT.search(types[0]) or _HALF.search(types[0]):
            yield (
                "narrowing",
                f"`{types[-3]}` rounds a float to `{_msl(types[0])}` unseen: write the cast",
            )
    elif kind == "LambdaExpr":
        yield "lambda", "MSL 3.1 has no lambda expressions"
    if walk.functions and kind in ("DeclRefExpr", "MemberExpr", "CXXConstructExpr"):
        for match in _CALLEE.finditer(rest):
            walk.calls.setdefault(walk.functions[0][1], set()).add(match[1] or match[2])


def _copies_struct(kind: str, rest: str) -> bool:
    return kind == "CXXConstructExpr" or (kind == "CXXOperatorCallExpr" and rest.endswith("'='"))


def _unplaced(type_name: str) -> bool:
    """Whether a pointer or reference type leaves the space of what it points at to the compiler."""
    while (shorter := _NESTED.sub("", type_name)) != type_name:
        type_name = shorter
    pointees = re.split(r"\*|&&?", type_name)[:-1]
    return not all(any(space in pointee for space in _SPACES) for pointee in pointees)


def _msl(type_name: str) -> str:
    for opencl, msl in (
        ("__global", "device"),
        ("__local", "threadgroup"),
        ("__constant", "constant"),
    ):
        type_name = type_name.replace(opencl, msl)
    return re.sub(r" ?__private\b|__generic ", "", type_name).replace("__bf16", "bfloat").strip()


def _declared(rest: str) -> str:
    words = rest.split("'")[0].split()
    return words[-1] if words else ""


def _enter_function(walk: _Walk, depth: int, node: re.Match[str], where: tuple[str, int]) -> None:
    address = node["address"]
    previous = _PREVIOUS.search(node["rest"])
    canonical = walk.canonical.get(previous[1], previous[1]) if previous else address
    walk.canonical[address] = canonical
    walk.names.setdefault(canonical, (_declared(node["rest"]), *where))
    walk.functions.append((depth, canonical, " implicit " in node["rest"]))


def _recursion(walk: _Walk) -> Iterator[Finding]:
    edges = {
        caller: {walk.canonical.get(callee, callee) for callee in callees}
        for caller, callees in walk.calls.items()
    }
    for start in edges:
        seen: set[str] = set()
        todo = list(edges[start])
        while todo:
            callee = todo.pop()
            if callee == start:
                name, file, line = walk.names[start]
                yield Finding(
                    file, line, "recursion", f"`{name}` calls itself, directly or through others"
                )
                break
            if callee not in seen:
                seen.add(callee)
                todo.extend(edges.get(callee, ()))
