"""The ABI, read from ``abi.h`` itself: parameter structs for ctypes, buffer slots, constants.

Nothing is written down twice; ``test_abi.py`` compares every size and offset with a compiler's.
"""

from __future__ import annotations

import ctypes
import functools
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
HEADER = ROOT / "runtime/metal/flashrt/abi.h"

SCALARS: dict[str, Any] = {
    "int32_t": ctypes.c_int32,
    "uint32_t": ctypes.c_uint32,
    "int64_t": ctypes.c_int64,
    "float": ctypes.c_float,
}


@dataclass(frozen=True, slots=True)
class Abi:
    """What the header declares."""

    structs: dict[str, type[ctypes.Structure]]
    slots: dict[str, int]  # kBufQ ...
    constants: dict[str, int]  # align_Q: 200 ...


@functools.cache
def abi() -> Abi:
    """Parse the header."""
    text = re.sub(r"//.*|/\*.*?\*/", "", HEADER.read_text())
    types = dict(SCALARS)
    structs: dict[str, type[ctypes.Structure]] = {}
    for name, body in re.findall(r"struct (\w+) \{(.*?)\};", text, re.DOTALL):
        fields = []
        for kind, member, count in re.findall(r"(\w+) (\w+)(?:\[(\d+)\])?;", body):
            fields.append((member, types[kind] * int(count) if count else types[kind]))
        structs[name] = type(name, (ctypes.Structure,), {"_fields_": fields})
        types[name] = structs[name]
    slots = {n: int(v) for n, v in re.findall(r"\b(kBuf\w+) = (\d+)", text)}
    constants = {n: int(v) for v, n in re.findall(r"X\((\d+), (\w+)\)", text)}
    return Abi(structs, slots, constants)


def slot(name: str) -> int:
    """Index of a buffer slot: ``slot("Q")`` is kBufQ."""
    return abi().slots["kBuf" + name]


@functools.cache
def constant(name: str) -> float:
    """Value of a float that all kernels share: ``constant("kFloor")``."""
    text = HEADER.with_name("constants.h").read_text()
    found = re.search(rf"constexpr float {name} = ([^;]+)f;", text)
    if found is None:
        raise LookupError(f"{name} is not in constants.h")
    return float(found[1])
