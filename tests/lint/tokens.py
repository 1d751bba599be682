"""A tokenizer for the MSL subset: enough to tell code from comments and to match brackets."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_SCANNER = re.compile(
    r"""
    (?P<space>\s+ | \\\n)
  | (?P<comment>//[^\n]* | /\*.*?\*/)
  | (?P<include>^[ \t]*\#[ \t]*(?:include|error|warning)[^\n]*)
  | (?P<string>"(?:\\.|[^"\\\n])*" | '(?:\\.|[^'\\\n])*')
  | (?P<number>\.?\d(?:[eEpP][+-]|[\w.])*)
  | (?P<name>[A-Za-z_]\w*)
  | (?P<punct>::|->|\+\+|--|&&|\|\||[-+*/%&|^<>=!]=|<<=?|\#\#|.)
    """,
    re.VERBOSE | re.DOTALL | re.MULTILINE,
)

OPENERS = {"(": ")", "[": "]", "{": "}"}


@dataclass(frozen=True)
class Token:
    """`kind` is name, number, string or punct; comments, space and includes never become tokens."""

    kind: str
    text: str
    line: int


def tokenize(text: str) -> list[Token]:
    """Return the code tokens of `text`, preprocessor directives other than includes among them."""
    tokens: list[Token] = []
    line = 1
    for match in _SCANNER.finditer(text):
        kind = match.lastgroup
        assert kind is not None
        if kind not in ("space", "comment", "include"):
            tokens.append(Token(kind, match.group(), line))
        line += match.group().count("\n")
    return tokens


def closing(tokens: Sequence[Token], opener: int) -> int:
    """Return the index of the bracket that closes `tokens[opener]`, or the last index."""
    stack: list[str] = []
    for i in range(opener, len(tokens)):
        text = tokens[i].text
        if text in OPENERS and tokens[i].kind == "punct":
            stack.append(OPENERS[text])
        elif stack and text == stack[-1]:
            stack.pop()
            if not stack:
                return i
    return len(tokens) - 1


def split_commas(tokens: Sequence[Token]) -> list[list[Token]]:
    """Split at commas outside brackets, angle brackets included: parameter lists do not compare."""
    parts: list[list[Token]] = [[]]
    depth = 0
    for token in tokens:
        if token.text in OPENERS or token.text == "<":
            depth += 1
        elif token.text in OPENERS.values() or token.text == ">":
            depth -= 1
        if token.text == "," and depth == 0:
            parts.append([])
        else:
            parts[-1].append(token)
    return [part for part in parts if part]


@dataclass(frozen=True)
class Attribute:
    """One attribute of a `[[...]]` list, with the tokens of its argument."""

    name: str
    argument: tuple[Token, ...]
    line: int


def _attribute(part: Sequence[Token]) -> Attribute:
    stop = next((i for i, t in enumerate(part) if t.text == "("), len(part))
    name = "".join(t.text for t in part[:stop])
    return Attribute(name, tuple(part[stop + 1 : -1]), part[0].line)


def attribute_lists(tokens: Sequence[Token]) -> Iterator[tuple[int, int, list[Attribute]]]:
    """Yield first index, last index and contents of every `[[...]]`."""
    i = 0
    while i + 1 < len(tokens):
        if tokens[i].text == "[" and tokens[i + 1].text == "[":
            end = closing(tokens, i)
            yield i, end, [_attribute(part) for part in split_commas(tokens[i + 2 : end - 1])]
            i = end
        i += 1


@dataclass(frozen=True)
class Kernel:
    """Where one `[[kernel]]` function stands in a token list."""

    name: str
    line: int
    parameters: tuple[tuple[Token, ...], ...]
    body: tuple[int, int]


def kernels(tokens: Sequence[Token]) -> list[Kernel]:
    """Find every `[[kernel, ...]] void name(...) {...}`."""
    found: list[Kernel] = []
    for _, end, attributes in attribute_lists(tokens):
        if not any(a.name == "kernel" for a in attributes):
            continue
        opener = next(i for i in range(end, len(tokens)) if tokens[i].text == "(")
        close = closing(tokens, opener)
        brace = next(
            (i for i in range(close, len(tokens)) if tokens[i].text == "{"), len(tokens) - 1
        )
        name = tokens[opener - 1]
        parameters = tuple(tuple(p) for p in split_commas(tokens[opener + 1 : close]))
        found.append(Kernel(name.text, name.line, parameters, (brace, closing(tokens, brace))))
    return found
