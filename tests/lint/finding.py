"""What every check of this package returns."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class Finding:
    """One mistake at one place; `rule` is the name that the tests and a reader look for."""

    path: str
    line: int
    rule: str
    message: str

    def __str__(self) -> str:
        """Compiler style, so that editors can jump to it."""
        return f"{self.path}:{self.line}: {self.rule}: {self.message}"
