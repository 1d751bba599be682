"""Mistakes in spec files, as values: all of them are collected before any is shown."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from codegen.model import Location


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One mistake: where, which key with which value, the rule and the way out."""

    location: Location
    key: str  # "bwd_dq.BQ=24"; empty where the whole file is meant
    message: str

    def __str__(self) -> str:
        text = ": ".join(part for part in (str(self.location), self.key, self.message) if part)
        # A quoted value may hold line breaks; a message stays one line.
        return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


class SpecErrors(Exception):
    """Spec files that cannot be used, with everything that is wrong with them."""

    def __init__(self, diagnostics: Iterable[Diagnostic]) -> None:
        # In reading order; equal lines (the same rule met twice) are said once.
        self.diagnostics = tuple(
            sorted(
                dict.fromkeys(diagnostics),
                key=lambda d: (d.location.path, d.location.line, d.key, d.message),
            )
        )
        super().__init__("\n".join(map(str, self.diagnostics)))
