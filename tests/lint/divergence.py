"""Barriers and collectives under a condition that differs between the threads that must all arrive.

Token level, by name: what a kernel receives as its lane or simdgroup index is divergent wherever
that name occurs, and so is a variable computed from it and a parameter that it is passed to. Calls
are followed by name: a function that contains a barrier is one. Values are not known, so that a
condition that mentions a lane but never differs is reported too: hoist it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

from tests.lint.finding import Finding
from tests.lint.tokens import OPENERS, Token, closing, kernels, split_commas

_LANE_ATTRIBUTES = frozenset(
    {
        "thread_index_in_simdgroup",
        "thread_index_in_threadgroup",
        "thread_position_in_grid",
        "thread_position_in_threadgroup",
    }
)
_SIMDGROUP_ATTRIBUTES = frozenset({"simdgroup_index_in_threadgroup"})
# The results of these are the same in every lane of a simdgroup, whatever goes in.
_UNIFORM_RESULTS = frozenset(
    {"simd_all", "simd_any", "simd_broadcast", "simd_max", "simd_min", "simd_sum"}
)
_SIMDGROUP_WIDE = _UNIFORM_RESULTS | {
    "simd_shuffle",
    "simd_shuffle_down",
    "simd_shuffle_up",
    "simd_shuffle_xor",
    "simdgroup_barrier",
    "simdgroup_multiply_accumulate",
}
_THREADGROUP_WIDE = frozenset({"threadgroup_barrier"})
_ASSIGNMENTS = frozenset({"=", "+=", "-=", "*=", "|=", "&=", "^="})
_NOT_A_CALL = frozenset({"if", "for", "while", "switch", "return", "sizeof", "alignas"})


@dataclass(frozen=True)
class _Function:
    path: str
    name: str
    parameters: tuple[str, ...]
    body: tuple[Token, ...]


def check(files: Mapping[str, Sequence[Token]]) -> list[Finding]:
    """Return the divergent barriers and collectives of headers and kernels together."""
    functions = [
        function for path, tokens in files.items() for function in _functions(path, tokens)
    ]
    simdgroup_wide = _containing(functions, _SIMDGROUP_WIDE)
    threadgroup_wide = _containing(functions, _THREADGROUP_WIDE)
    found: list[Finding] = []
    for attributes, calls, between in (
        (_LANE_ATTRIBUTES, simdgroup_wide | threadgroup_wide, "lanes"),
        (_SIMDGROUP_ATTRIBUTES, threadgroup_wide, "simdgroups"),
    ):
        for function, names in _divergent_names(files, functions, attributes):
            for call in _calls_under(function.body, names, calls):
                message = f"`{call.text}` under a condition that differs between {between}"
                found.append(Finding(function.path, call.line, "divergence", message))
    return found


def _functions(path: str, tokens: Sequence[Token]) -> Iterator[_Function]:
    """Yield every function: the braces after `name(...)` outside any other function."""
    i = 0
    while i < len(tokens):
        if not _names_call(tokens, i):
            i += 1
            continue
        close = closing(tokens, i + 1)
        # Qualifiers and a constructor's initialisers may stand between `)` and `{`.
        j = close + 1
        while j < len(tokens) and tokens[j].text not in ("{", ";", "}", "=", "#"):
            j = closing(tokens, j) + 1 if tokens[j].text in ("(", "[") else j + 1
        if j < len(tokens) and tokens[j].text == "{":
            end = closing(tokens, j)
            parameters = tuple(_declared(part) for part in split_commas(tokens[i + 2 : close]))
            yield _Function(path, tokens[i].text, parameters, tuple(tokens[j : end + 1]))
            i = end + 1
        else:
            i = close + 1


def _names_call(tokens: Sequence[Token], i: int) -> bool:
    return (
        tokens[i].kind == "name"
        and tokens[i].text not in _NOT_A_CALL
        and i + 1 < len(tokens)
        and tokens[i + 1].text == "("
    )


def _declared(parameter: Sequence[Token]) -> str:
    """Return the name that a parameter declares: the last one before its attributes or default."""
    names = [t.text for t in itertools.takewhile(lambda t: t.text not in ("[", "="), parameter)]
    return names[-1] if names else ""


def _divergent_names(
    files: Mapping[str, Sequence[Token]],
    functions: Sequence[_Function],
    attributes: frozenset[str],
) -> list[tuple[_Function, frozenset[str]]]:
    """Return for every function the names in it that differ between lanes (or simdgroups)."""
    seeds = {
        _declared(parameter)
        for tokens in files.values()
        for kernel in kernels(tokens)
        for parameter in kernel.parameters
        if attributes & {t.text for t in parameter}
    }
    by_name: dict[tuple[str, int], list[_Function]] = {}
    for function in functions:
        by_name.setdefault((function.name, len(function.parameters)), []).append(function)
    names = {id(function): set(seeds) for function in functions}
    todo = list(functions)
    while todo:
        caller = todo.pop()
        names[id(caller)] = _assigned_from(caller.body, names[id(caller)])
        for name, arguments in _calls(caller.body):
            for callee in by_name.get((name, len(arguments)), ()):
                passed = {
                    parameter
                    for parameter, argument in zip(callee.parameters, arguments, strict=True)
                    if _mentions(argument, names[id(caller)])
                }
                if not passed <= names[id(callee)]:
                    names[id(callee)] |= passed
                    todo.append(callee)
    return [(function, frozenset(names[id(function)])) for function in functions]


def _calls(body: Sequence[Token]) -> Iterator[tuple[str, list[list[Token]]]]:
    """Yield name and arguments of every call, `name(...)` and `name<...>(...)`."""
    for i, token in enumerate(body):
        if token.text != "(" or not i:
            continue
        start = i - 1
        if body[start].text == ">":
            while start and body[start].text != "<":
                start -= 1
            start -= 1
        if body[start].kind == "name" and body[start].text not in _NOT_A_CALL:
            yield body[start].text, _arguments(body[i + 1 : closing(body, i)])


def _arguments(tokens: Sequence[Token]) -> list[list[Token]]:
    # Comparisons would upset the count of angle brackets, template arguments would not.
    parts: list[list[Token]] = [[]]
    depth = 0
    for token in tokens:
        depth += (token.text in OPENERS) - (token.text in OPENERS.values())
        if token.text == "," and not depth:
            parts.append([])
        else:
            parts[-1].append(token)
    return [part for part in parts if part]


def _containing(functions: Sequence[_Function], seeds: frozenset[str]) -> frozenset[str]:
    """Return `seeds` and the names of all functions that call one of them, directly or not."""
    found = set(seeds)
    size = 0
    while size != len(found):
        size = len(found)
        found |= {f.name for f in functions if any(t.text in found for t in f.body)}
    return frozenset(found)


def _mentions(tokens: Sequence[Token], names: Set[str]) -> bool:
    i = 0
    while i < len(tokens):
        if tokens[i].text in _UNIFORM_RESULTS and i + 1 < len(tokens) and tokens[i + 1].text == "(":
            i = closing(tokens, i + 1)
        elif tokens[i].text in names:
            return True
        i += 1
    return False


def _assigned_from(body: Sequence[Token], seeds: Set[str]) -> set[str]:
    """Return `seeds` and every name that is assigned from one of them."""
    names = set(seeds)
    size = -1
    while size != len(names):
        size = len(names)
        for i, token in enumerate(body):
            if token.text in _ASSIGNMENTS and body[i - 1].kind == "name":
                end = next(
                    (j for j in range(i, len(body)) if body[j].text in (";", "{")), len(body)
                )
                if _mentions(body[i + 1 : end], names):
                    names.add(body[i - 1].text)
    return names


def _statement_end(body: Sequence[Token], start: int) -> int:
    """Return the last index of the statement at `start`, with its `else`."""
    if start >= len(body):
        return len(body) - 1
    if body[start].text == "{":
        return closing(body, start)
    if body[start].text in ("if", "for", "while", "switch"):
        end = _statement_end(body, closing(body, start + 1) + 1)
        if end + 1 < len(body) and body[end + 1].text == "else":
            end = _statement_end(body, end + 2)
        return end
    i = start
    while i < len(body) and body[i].text != ";":
        i = closing(body, i) if body[i].text in ("(", "[", "{") else i
        i += 1
    return i


def _calls_under(body: Sequence[Token], names: Set[str], calls: Set[str]) -> Iterator[Token]:
    divergent: set[int] = set()
    for i, token in enumerate(body):
        if token.text not in ("if", "for", "while", "switch"):
            continue
        close = closing(body, i + 1)
        if not _mentions(body[i + 1 : close + 1], names):
            continue
        end = _statement_end(body, i)
        if any(t.text in ("return", "break", "continue") for t in body[close:end]):
            end = len(body) - 1  # the lanes that left miss everything that follows
        divergent.update(range(close, end + 1))
    for i in sorted(divergent):
        if body[i].text in calls and i + 1 < len(body) and body[i + 1].text in ("(", "<"):
            yield body[i]
