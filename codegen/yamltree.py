"""A strict subset of YAML as a tree of texts with line numbers.

Scalars stay text: YAML's own guesses (`off` is False, `032` is 26, the last duplicate key wins) are
never applied. Anchors, aliases, merge keys, tags and several documents are refused, so a file means
what it says and cannot expand. The only module that knows PyYAML.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

import yaml

from codegen.diagnostics import Diagnostic
from codegen.model import Location

MAX_DEPTH = 8  # a spec nests four deep


@dataclass(frozen=True, slots=True)
class Scalar:
    """Text as written, without its quotes."""

    text: str
    quoted: bool
    line: int


@dataclass(frozen=True, slots=True)
class Sequence:
    """A list in file order."""

    items: tuple[Node, ...]
    line: int


@dataclass(frozen=True, slots=True)
class Mapping:
    """Keys in file order, each once."""

    items: tuple[tuple[Scalar, Node], ...]
    line: int


Node: TypeAlias = "Scalar | Sequence | Mapping"


class TreeError(Exception):
    """The text is not in the subset."""

    def __init__(self, diagnostics: list[Diagnostic]) -> None:
        super().__init__("\n".join(map(str, diagnostics)))
        self.diagnostics = diagnostics


def parse(data: bytes, path: str) -> Node | None:
    """Return the tree of a file's bytes, None for a file that says nothing.

    Raises
    ------
    TreeError
        With everything that is wrong at this level.
    """
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        message = f"byte 0x{data[error.start]:02x} is not UTF-8; save the file as UTF-8"
        raise TreeError([Diagnostic(Location(path, line), "", message)]) from None
    return _Parser(text, path).tree()


def _line(event: yaml.Event) -> int:
    assert event.start_mark is not None  # the parser marks every event
    return event.start_mark.line + 1


class _Parser:
    def __init__(self, text: str, path: str) -> None:
        self._text = text
        self._path = path
        self._diagnostics: list[Diagnostic] = []
        self._depth = self._documents = 0

    def tree(self) -> Node | None:
        events: list[yaml.Event] = []
        try:
            for event in yaml.parse(self._text, Loader=yaml.SafeLoader):
                events.append(event)
                self._refuse_features(event)
                if self._depth > MAX_DEPTH:
                    break  # scanning on takes time that grows with the square of the depth
        except yaml.reader.ReaderError as error:
            line = self._text.count("\n", 0, error.position) + 1
            self._report(line, f"character #x{error.character:04x} is not allowed in YAML")
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            problem = " ".join(part for part in (error.context, error.problem) if part)
            self._report(mark.line + 1 if mark else 1, f"not YAML: {problem}")
        self._stop_if_wrong()
        root = None
        stream = iter(events)
        for event in stream:
            if isinstance(event, yaml.DocumentStartEvent):
                root = self._node(next(stream), stream, "")
        self._stop_if_wrong()
        if isinstance(root, Scalar) and not root.text and not root.quoted:
            return None
        return root

    def _report(self, line: int, message: str, key: str = "") -> None:
        self._diagnostics.append(Diagnostic(Location(self._path, line), key, message))

    def _stop_if_wrong(self) -> None:
        if self._diagnostics:
            raise TreeError(self._diagnostics)

    def _refuse_features(self, event: yaml.Event) -> None:
        line = _line(event)
        if isinstance(event, yaml.DocumentStartEvent):
            self._documents += 1
            if self._documents == 2:
                self._report(line, "a second document; a spec file holds one")
        if isinstance(event, yaml.AliasEvent):
            self._report(line, "aliases are refused; write the value out", f"*{event.anchor}")
        elif isinstance(event, yaml.NodeEvent) and event.anchor is not None:
            self._report(line, "anchors are refused; write the value out", f"&{event.anchor}")
        tag = getattr(event, "tag", None)
        if tag is not None:
            self._report(line, "tags are not allowed; write the plain value", tag)
        if isinstance(event, yaml.CollectionStartEvent):
            self._depth += 1
            if self._depth > MAX_DEPTH:
                self._report(line, f"nested deeper than {MAX_DEPTH}; a spec nests four deep")
        elif isinstance(event, yaml.CollectionEndEvent):
            self._depth -= 1

    def _node(self, event: yaml.Event, stream: Iterator[yaml.Event], key: str) -> Node:
        line = _line(event)
        if isinstance(event, yaml.ScalarEvent):
            return Scalar(event.value, event.style is not None, line)
        if isinstance(event, yaml.SequenceStartEvent):
            items = []
            while not isinstance(item := next(stream), yaml.SequenceEndEvent):
                items.append(self._node(item, stream, key))
            return Sequence(tuple(items), line)
        return self._mapping(line, stream, key)

    def _mapping(self, line: int, stream: Iterator[yaml.Event], key: str) -> Mapping:
        items: list[tuple[Scalar, Node]] = []
        first_lines: dict[str, int] = {}
        while not isinstance(event := next(stream), yaml.MappingEndEvent):
            name = self._node(event, stream, key)
            label = name.text if isinstance(name, Scalar) else "?"
            path = f"{key}.{label}" if key else label
            value = self._node(next(stream), stream, path)
            if not isinstance(name, Scalar):
                self._report(name.line, "a key must be a plain name", path)
            elif name.text == "<<" and not name.quoted:
                self._report(name.line, "merge keys are not allowed; write the keys out", path)
            elif name.text in first_lines:
                first = first_lines[name.text]
                self._report(name.line, f"given twice, first on line {first}; keep one", path)
            else:
                first_lines[name.text] = name.line
                items.append((name, value))
        return Mapping(tuple(items), line)
