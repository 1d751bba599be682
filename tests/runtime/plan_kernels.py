"""What the generated kernels ask of their callers, read from their text."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from tests.kernel.abi import ROOT, abi


@dataclass(frozen=True)
class Parameter:
    """One buffer of a kernel."""

    slot: int
    written: bool
    only_if: str | None  # a function constant, or a sum of them

    def needed(self, constants: dict[int, bool]) -> bool:
        """Whether the kernel declares it with these constants."""
        return self.only_if is None or constants[abi().constants[self.only_if]]


@cache
def signature(name: str) -> tuple[Parameter, ...]:
    """Return a kernel's buffers, the parameters among them."""
    text = (ROOT / f"generated/{name}.metal").read_text()
    _, _, arguments = text.partition(f"void {name}(")
    pattern = (
        r"(device|constant)\s+(const\s+)?[\w:]+\s*[*&]\s*\w+\s*"
        r"\[\[buffer\((\w+)\)(?:,\s*function_constant\((\w+)\))?\]\]"
    )
    found = re.findall(pattern, arguments)
    assert len(found) == arguments.count("[[buffer("), f"{name}: cannot read its signature"
    return tuple(
        Parameter(abi().slots[slot], space == "device" and not const, only_if or None)
        for space, const, slot, only_if in found
    )
