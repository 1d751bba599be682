"""The runtime's structures (runtime/launch.h, runtime/interface.h), mirrored for ctypes."""

from __future__ import annotations

import ctypes as c
from enum import IntEnum
from typing import Any

MAX_BUFFERS = 31
MAX_CONSTANTS = 64
MAX_FAULTS = 64
FAULT_TEXT = 480


class FaultKind(IntEnum):
    SETUP = 0
    CONSTANT = 1
    UNBOUND = 2
    DIVERGENCE = 3
    MISSING_LANES = 4
    THREADGROUP_LIMIT = 5
    OUT_OF_BOUNDS = 6
    UNINITIALISED = 7
    RACE = 8
    MISALIGNED = 9
    SAME_STATEMENT = 10
    CRASH = 11


class Fault(c.Structure):
    _fields_ = (
        ("kind", c.c_uint32),
        ("fatal", c.c_uint32),
        ("pc", c.c_uint64 * 2),
        ("text", c.c_char * FAULT_TEXT),
    )


class Buffer(c.Structure):
    _fields_ = (
        ("base", c.c_void_p),
        ("bytes", c.c_uint64),
        ("offset", c.c_uint64),
        ("bound", c.c_uint32),
        ("writable", c.c_uint32),
    )


COUNTERS = (
    "mma",
    "device_read_bytes",
    "device_write_bytes",
    "constant_read_bytes",
    "threadgroup_read_bytes",
    "threadgroup_write_bytes",
    "threadgroup_barriers",
    "simdgroup_barriers",
    "shuffles",
    "reductions",
    "exp2",
    "threadgroup_memory_bytes",
)

TRACED = frozenset(name for name in COUNTERS if name.endswith(("_read_bytes", "_write_bytes")))


class Counters(c.Structure):
    _fields_ = tuple((name, c.c_uint64) for name in COUNTERS)


class Launch(c.Structure):
    _fields_ = (
        ("module", c.c_void_p),
        ("kernel", c.c_void_p),
        ("grid", c.c_uint32 * 3),
        ("group", c.c_uint32 * 3),
        ("buffers", Buffer * MAX_BUFFERS),
        ("n_constants", c.c_uint32),
        ("constant_index", c.c_int32 * MAX_CONSTANTS),
        ("constant_value", c.c_int64 * MAX_CONSTANTS),
        ("threads", c.c_uint32),
        ("shuffled", c.c_uint32),
        ("seed", c.c_uint64),
        ("counters", Counters),
        ("n_faults", c.c_uint32),
        ("faults_dropped", c.c_uint32),
        ("faults", Fault * MAX_FAULTS),
        ("arguments", c.c_void_p * MAX_BUFFERS),
        ("next_threadgroup", c.c_uint64),
        ("stop", c.c_uint32),
        ("image_base", c.c_uint64),
        ("trace", c.c_void_p),
    )


class Param(c.Structure):
    _fields_ = (
        ("name", c.c_char_p),
        ("source", c.c_uint32),
        ("index", c.c_int),
        ("space", c.c_uint32),
        ("gate", c.c_void_p),
        ("gate_text", c.c_char_p),
    )


class ParamType(c.Structure):
    _fields_ = (("is_pointer", c.c_bool), ("is_const", c.c_bool), ("size", c.c_uint32))


class Kernel(c.Structure):
    _fields_ = (
        ("name", c.c_char_p),
        ("params", c.POINTER(Param)),
        ("types", c.POINTER(ParamType)),
        ("n_params", c.c_uint32),
        ("max_threads", c.c_uint32),
        ("invoke", c.c_void_p),
    )


class Constant(c.Structure):
    _fields_ = (
        ("name", c.c_char_p),
        ("index", c.c_int),
        ("size", c.c_uint32),
        ("value", c.c_void_p),
        ("is_set", c.c_bool),
    )


class Module(c.Structure):
    _fields_ = (
        ("kernels", c.POINTER(c.POINTER(Kernel))),
        ("kernels_end", c.c_void_p),
        ("constants", c.POINTER(c.POINTER(Constant))),
        ("constants_end", c.c_void_p),
    )

    def list_kernels(self) -> list[Kernel]:
        return [self.kernels[i].contents for i in range(_length(self.kernels, self.kernels_end))]

    def list_constants(self) -> list[Constant]:
        n = _length(self.constants, self.constants_end)
        return [self.constants[i].contents for i in range(n)]


def _length(begin: Any, end: int | None) -> int:
    """Length of an array of pointers; both ends are null when the linker found none."""
    if not begin or end is None:
        return 0
    return (end - c.addressof(begin.contents)) // c.sizeof(c.c_void_p)
