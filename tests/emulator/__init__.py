"""Metal kernels on the CPU, lane by lane.

`build()` compiles unmodified .metal sources as C++; `Library.launch()` runs a kernel on numpy
arrays. Lanes are fibers that meet at simdgroup operations and barriers; simdgroup matrices have
Apple's fragment layout. Trace mode reports races, uninitialised reads and accesses out of bounds,
and counts what a kernel moves and multiplies.
"""

from tests.emulator.library import (
    Buffer,
    EmulatorError,
    Fault,
    KernelSignature,
    Library,
    Parameter,
    Report,
    build,
)
from tests.emulator.toolchain import ToolchainError

__all__ = [
    "Buffer",
    "EmulatorError",
    "Fault",
    "KernelSignature",
    "Library",
    "Parameter",
    "Report",
    "ToolchainError",
    "build",
]
