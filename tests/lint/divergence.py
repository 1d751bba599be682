"""Barriers and collectives under a condition that differs between the threads that must all arrive.

Token level, by name: what a kernel receives as its lane or simdgroup index is divergent wherever
that name occurs, and so is a local variable computed from it. Calls are followed by name: a
function that contains a barrier is one. Values are not known, so that a condition that mentions a
lane but never differs is reported too: hoist it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tests.lint.finding import Finding
from tests.lint.tokens import Token, closing, kernels

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
_NOT_A_CALL = frozenset({"if", "for", "while", "switch", "return", "sizeof", "alignas"})


def check(files: Mapping[str, Sequence[Token]]) -> list[Finding]:
    """Return the divergent barriers and collectives of headers and kernels together."""
    lanes, simdgroups = _divergent_names(files)
    bodies = [
        (path, name, body) for path, tokens in files.items() for name, body in functions(tokens)
    ]
    simdgroup_wide = _containing(bodies, _SIMDGROUP_WIDE)
    threadgroup_wide = _containing(bodies, _THREADGROUP_WIDE)
    found: list[Finding] = []
    for path, _, body in bodies:
        for call in _calls_under(body, lanes, simdgroup_wide | threadgroup_wide):
            found.append(
                Finding(
                    path,
                    call.line,
                    "divergence",
                    f"`{call.text}` under a condition that differs between lanes",
                )
            )
        for call in _calls_under(body, simdgroups, threadgroup_wide):
            found.append(
                Finding(
                    path,
                    call.line,
                    "divergence",
                    f"`{call.text}` under a condition that differs between simdgroups",
                )
            )
    return found


def functions(tokens: Sequence[Token]) -> Iterator[tuple[str, list[Token]]]:
    """Yield name and body of every function: the braces after `)` outside any other function."""
    i = 0
    while i < len(tokens):
        if (
            tokens[i].text == "("
            and i
            and tokens[i - 1].kind == "name"
            and tokens[i - 1].text not in _NOT_A_CALL
        ):
            name = tokens[i - 1].text
            i = closing(tokens, i) + 1
            # Qualifiers and a constructor's initialisers may stand between `)` and `{`.
            j = i
            while j < len(tokens) and tokens[j].text not in ("{", ";", "}", "=", "#"):
                j = closing(tokens, j) + 1 if tokens[j].text in ("(", "[") else j + 1
            if j < len(tokens) and tokens[j].text == "{":
                end = closing(tokens, j)
                yield name, list(tokens[j : end + 1])
                i = end + 1
        else:
            i += 1


def _divergent_names(files: Mapping[str, Sequence[Token]]) -> tuple[frozenset[str], frozenset[str]]:
    lanes: set[str] = set()
    simdgroups: set[str] = set()
    for tokens in files.values():
        for kernel in kernels(tokens):
            for parameter in kernel.parameters:
                texts = [t.text for t in parameter]
                if "[" in texts:
                    name = texts[texts.index("[") - 1]
                    if _LANE_ATTRIBUTES & set(texts):
                        lanes.add(name)
                    if _SIMDGROUP_ATTRIBUTES & set(texts):
                        simdgroups.add(name)
    return frozenset(lanes), frozenset(simdgroups)


def _containing(
    bodies: Sequence[tuple[str, str, Sequence[Token]]], seeds: frozenset[str]
) -> frozenset[str]:
    """Return `seeds` and the names of all functions that call one of them, directly or not."""
    found = set(seeds)
    size = 0
    while size != len(found):
        size = len(found)
        for _, name, body in bodies:
            if any(t.text in found for t in body if t.kind == "name"):
                found.add(name)
    return frozenset(found)


def _mentions(tokens: Sequence[Token], names: frozenset[str] | set[str]) -> bool:
    i = 0
    while i < len(tokens):
        if tokens[i].text in _UNIFORM_RESULTS and i + 1 < len(tokens) and tokens[i + 1].text == "(":
            i = closing(tokens, i + 1)
        elif tokens[i].text in names:
            return True
        i += 1
    return False


def _assigned_from(body: Sequence[Token], seeds: frozenset[str]) -> set[str]:
    """Return `seeds` and every name that is assigned from one of them."""
    names = set(seeds)
    size = -1
    while size != len(names):
        size = len(names)
        for i, token in enumerate(body):
            if (
                token.text in ("=", "+=", "-=", "|=", "&=", "^=", "*=")
                and body[i - 1].kind == "name"
            ):
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


def _calls_under(
    body: Sequence[Token], seeds: frozenset[str], calls: frozenset[str]
) -> Iterator[Token]:
    names = _assigned_from(body, seeds)
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
