"""Typed access to a file's tree; what is not as wanted is reported with its place and remedy."""

from __future__ import annotations

import re
from collections.abc import Mapping as MappingType
from typing import TypeVar

from codegen import yamltree
from codegen.diagnostics import Diagnostic
from codegen.model import Location

T = TypeVar("T")
Values = MappingType[str, yamltree.Node]

_YAML_BOOLEANS = {"y", "n", "yes", "no", "on", "off", "true", "false"}
_YAML_NULLS = {"", "~", "null"}


class Fields:
    """Reads values of one file and collects what is wrong with them.

    Getters return None (or nothing) after a report, so that a caller can go on with the rest.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self.diagnostics: list[Diagnostic] = []

    def location(self, line: int) -> Location:
        return Location(self._path, line)

    def report(self, line: int, key: str, message: str) -> None:
        self.diagnostics.append(Diagnostic(self.location(line), key, message))

    def keys(
        self,
        node: yamltree.Mapping,
        prefix: str,
        required: tuple[str, ...],
        optional: tuple[str, ...] = (),
    ) -> dict[str, yamltree.Node]:
        """Return the values of known keys; report unknown and missing ones."""
        dot = prefix + "." if prefix else ""
        known = (*required, *optional)
        values: dict[str, yamltree.Node] = {}
        for name, value in node.items:
            if name.text in known:
                values[name.text] = value
            else:
                message = f"unknown key; known are {', '.join(known)}"
                self.report(name.line, dot + name.text, message)
        for key in required:
            if key not in values:
                self.report(node.line, dot + key, "is missing")
        return values

    def mapping(self, node: yamltree.Node, key: str, wanted: str) -> yamltree.Mapping | None:
        if isinstance(node, yamltree.Mapping):
            return node
        self._wrong_type(node, key, wanted)
        return None

    def items(self, node: yamltree.Node, key: str, wanted: str) -> tuple[yamltree.Node, ...]:
        """Return the items of a list that is not empty."""
        if not isinstance(node, yamltree.Sequence):
            self._wrong_type(node, key, wanted)
            return ()
        if not node.items:
            self.report(node.line, key, f"is an empty list; must be {wanted}")
        return node.items

    def integer(self, values: Values, key: str, full_key: str, least: int = 1) -> int | None:
        """Return a whole number of plain decimal digits; a missing key is reported elsewhere."""
        node = values.get(key)
        if node is None:
            return None
        if not isinstance(node, yamltree.Scalar):
            self._wrong_type(node, full_key, "a whole number")
            return None
        if node.quoted:
            message = "is quoted text, must be a whole number; remove the quotes"
        elif re.fullmatch(r"-?(0|[1-9][0-9]{0,8})", node.text, re.ASCII):
            if int(node.text) >= least:
                return int(node.text)
            message = f"must be at least {least}"
        elif re.fullmatch(r"-?0[0-9]+", node.text):
            message = "has a leading zero, which YAML reads as octal; write it without"
        elif re.fullmatch(r"-?[0-9]+\.0*", node.text):
            message = f"must be a whole number; write {node.text.split('.')[0]}"
        else:
            message = _described(node, "must be a whole number in plain decimal digits")
        self.report(node.line, f"{full_key}={node.text}", message)
        return None

    def token(self, node: yamltree.Node, key: str, choices: MappingType[str, T]) -> T | None:
        """Return what the node's name stands for."""
        wanted = f"one of {', '.join(choices)}"
        if not isinstance(node, yamltree.Scalar):
            self._wrong_type(node, key, wanted)
        elif node.text not in choices:
            self.report(node.line, f"{key}={node.text}", _described(node, f"must be {wanted}"))
        else:
            return choices[node.text]
        return None

    def tokens(
        self, values: Values, key: str, prefix: str, choices: MappingType[str, T]
    ) -> tuple[T, ...]:
        """Return a list's names, each once."""
        node, full_key = values.get(key), f"{prefix}.{key}"
        if node is None:
            return ()
        found: list[T] = []
        for item in self.items(node, full_key, f"a list of some of {', '.join(choices)}"):
            value = self.token(item, full_key, choices)
            if value in found:
                self.report(item.line, full_key, f"{value} is listed twice; keep one")
            elif value is not None:
                found.append(value)
        return tuple(found)

    def _wrong_type(self, node: yamltree.Node, key: str, wanted: str) -> None:
        rule = f"must be {wanted}"
        if isinstance(node, yamltree.Scalar):
            self.report(node.line, f"{key}={node.text}", _described(node, rule))
        else:
            found = "a list" if isinstance(node, yamltree.Sequence) else "a mapping"
            self.report(node.line, key, f"is {found}, {rule}")


def _described(node: yamltree.Scalar, rule: str) -> str:
    """Return `rule`, with what YAML would have made of an unquoted text."""
    if not node.quoted and node.text.lower() in _YAML_NULLS:
        return f"has no value (null); {rule}"
    if not node.quoted and node.text.lower() in _YAML_BOOLEANS:
        return f"is a boolean to YAML; {rule}"
    return rule
