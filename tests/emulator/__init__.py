"""Metal kernels on the CPU, lane by lane.

`build()` compiles unmodified .metal sources as C++; `Library.launch()` runs a kernel on numpy
arrays. Lanes are fibers that meet at simdgroup operations and barriers; simdgroup matrices have
Apple's fragment layout.

Every mode ends a launch with an error where lanes do not meet (another collective, another barrier
statement, lanes or simdgroups that have ended), where more than 32 KB of threadgroup memory are
declared, where a function constant or a buffer is missing, and where a lane crashes. Trace mode
also reports races in threadgroup and device memory, uninitialised reads and accesses out of bounds,
and counts the bytes that move. Asan mode adds what the address and undefined behaviour sanitizers
know of private memory and arithmetic. Messages name lines of the source, innermost first.

What a pass does not show: that Apple's compiler takes the source (address spaces mean nothing
here); the hardware's own rounding (matrix products are f32 with fused steps, k ascending, and math
functions are the host's, so is flushing of denormals); weak memory order (lanes run one at a time,
races show as reports, seldom as wrong values); anything about time. Simdgroup operations under
divergence, which Metal lets the active lanes do alone, are errors here.
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
from tests.emulator.toolchain import ToolchainError, unsupported

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
    "unsupported",
]
