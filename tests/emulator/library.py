"""Compiled kernels, launched with numpy arrays."""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.emulator import native, sanitized
from tests.emulator.compile import build_kernels, build_runtime
from tests.emulator.native import FaultKind
from tests.emulator.symbols import NOWHERE, places
from tests.emulator.toolchain import MODES, Mode

_SPACES = {0: "none", 1: "device", 2: "constant", 3: "threadgroup"}


@dataclass(frozen=True)
class Fault:
    """One thing a launch did wrong; the message names file and line of the source."""

    kind: str
    message: str


class EmulatorError(Exception):
    """A launch that could not go on."""

    def __init__(self, message: str, faults: Sequence[Fault] = ()) -> None:
        super().__init__(message)
        self.faults = tuple(faults)


@dataclass(frozen=True)
class Buffer:
    """Part of an array, bound as Metal binds a buffer with an offset."""

    array: npt.NDArray[Any]
    offset_bytes: int = 0


@dataclass(frozen=True)
class Parameter:
    """A buffer argument of a kernel."""

    name: str
    slot: int
    space: str  # "device" or "constant"
    element_bytes: int
    writable: bool
    constant: str | None  # the function constant that makes it present


@dataclass(frozen=True)
class KernelSignature:
    """What a kernel's text says about its launches."""

    name: str
    parameters: tuple[Parameter, ...]
    max_threads: int | None
    constants: Mapping[int, str]  # the function constants it reads, by index


@dataclass(frozen=True)
class Report:
    """What a launch did.

    `counters` holds, over the whole grid: mma (8x8x8 products), shuffles and reductions (each once
    for a simdgroup), threadgroup_barriers and simdgroup_barriers (arrivals of simdgroups) and
    barriers, their sum, exp2 (each once for a lane), threadgroup_memory_bytes (of one threadgroup);
    and in trace mode {device,threadgroup}_{read,write}_bytes and constant_read_bytes, as lanes
    touch them. `faults` are trace mode's findings that a launch survives.
    """

    counters: Mapping[str, int]
    faults: tuple[Fault, ...]


@dataclass
class _Module:
    """One loaded kernel library."""

    path: Path
    handle: ctypes.CDLL
    info: native.Module
    kernels: list[KernelSignature]
    lock: threading.Lock = field(default_factory=threading.Lock)


@dataclass(frozen=True)
class _Host:
    """The program of asan mode, and its kernel libraries beside the fast ones."""

    program: Path
    libraries: Mapping[Path, Path]


class Library:
    """Kernels by name. Made by `build()`."""

    def __init__(self, mode: Mode, paths: Iterable[Path], host: _Host | None = None) -> None:
        self.mode = mode
        self._host = host
        self.kernels: dict[str, KernelSignature] = {}
        self._modules: dict[str, _Module] = {}
        for path in paths:
            module = _load_module(path)
            for kernel in module.kernels:
                if kernel.name in self.kernels:
                    raise EmulatorError(f"kernel {kernel.name} is in two sources")
                self.kernels[kernel.name] = kernel
                self._modules[kernel.name] = module

    def launch(
        self,
        name: str,
        *,
        grid: tuple[int, int, int],
        group: tuple[int, int, int],
        buffers: Mapping[int, npt.NDArray[Any] | bytes | Buffer],
        constants: Mapping[int, bool | int] | None = None,
        threads: int = 1,
        seed: int | None = None,
    ) -> Report:
        """Run a kernel over `grid` threadgroups of `group` threads; arrays are written in place.

        Parameters
        ----------
        buffers
            Argument slot -> array, bytes (a parameter struct) or `Buffer`. A kernel may touch
            the whole array that is handed in, and nothing outside it.
        constants
            Function constant index -> value. Every constant the kernel reads has to be there.
        threads
            OS threads over threadgroups.
        seed
            Shuffles the order of lanes, simdgroups and threadgroups; None keeps them ascending.
        """
        if name not in self._modules:
            raise EmulatorError(f"no kernel {name!r}; this library has {sorted(self.kernels)}")
        module = self._modules[name]
        launch, keep = _prepare(grid, group, buffers, constants or {}, threads, seed)
        if self._host is not None:
            path = self._host.libraries[module.path]
            try:
                failed = sanitized.run(self._host.program, path, name, launch, keep)
            except sanitized.SanitizerReport as report:
                raise EmulatorError(
                    f"{name}: {report}", [Fault("sanitizer", str(report))]
                ) from None
            return _report(name, self.mode, path, launch, failed)
        runtime = _load_runtime(build_runtime(self.mode))
        launch.module = ctypes.addressof(module.info)
        launch.kernel = runtime.emu_find_kernel(launch.module, name.encode())
        with module.lock:  # function constants are globals of the library
            failed = runtime.emu_run(ctypes.byref(launch)) != 0
        return _report(name, self.mode, module.path, launch, failed)


def build(
    sources: Sequence[Path],
    mode: Mode = "fast",
    include: Sequence[Path] = (),
    defines: Mapping[str, object] | None = None,
) -> Library:
    """Compile .metal sources for the emulator and load their kernels.

    Parameters
    ----------
    mode
        "fast"; "trace" (counters, races, uninitialised reads, bounds); "asan" (address and
        undefined behaviour sanitizers; every launch is a process of its own).
    include
        Folders that the sources include from.
    defines
        Macros. EMULATOR_ROW_MAJOR_FRAGMENTS gives simdgroup matrices a layout that no GPU has.
    """
    if mode not in MODES:
        raise ValueError(f"mode {mode!r}: one of {', '.join(MODES)}")
    arguments = ([Path(s) for s in sources], [Path(folder) for folder in include], defines or {})
    if mode != "asan":
        return Library(mode, build_kernels(mode, *arguments))
    # Sanitized libraries cannot be loaded here; what they export is read from the fast ones.
    paths, sanitized_paths = build_kernels("fast", *arguments), build_kernels(mode, *arguments)
    libraries = dict(zip(paths, sanitized_paths, strict=True))
    return Library(mode, paths, _Host(build_runtime(mode), libraries))


@functools.cache
def _load_runtime(path: Path) -> ctypes.CDLL:
    runtime = ctypes.CDLL(str(path))
    runtime.emu_launch_bytes.restype = ctypes.c_uint64
    runtime.emu_find_kernel.restype = ctypes.c_void_p
    runtime.emu_find_kernel.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
    if runtime.emu_launch_bytes() != ctypes.sizeof(native.Launch):
        raise AssertionError("native.Launch does not mirror runtime/launch.h")
    return runtime


@functools.cache
def _load_module(path: Path) -> _Module:
    handle = ctypes.CDLL(str(path))
    info = native.Module.in_dll(handle, "emu_module_info")
    constants = {c.index: c.name.decode() for c in info.list_constants()}
    kernels = [_signature(kernel, constants) for kernel in info.list_kernels()]
    return _Module(path, handle, info, kernels)


def _signature(kernel: native.Kernel, constants: Mapping[int, str]) -> KernelSignature:
    parameters = []
    for i in range(kernel.n_params):
        param, kind = kernel.params[i], kernel.types[i]
        if param.source != 0:
            continue
        parameters.append(
            Parameter(
                name=param.name.decode(),
                slot=param.index,
                space=_SPACES[param.space],
                element_bytes=kind.size,
                writable=not kind.is_const,
                constant=param.gate_text.decode() if param.gate_text else None,
            )
        )
    return KernelSignature(
        name=kernel.name.decode(),
        parameters=tuple(parameters),
        max_threads=kernel.max_threads or None,
        constants=dict(constants),
    )


def _prepare(
    grid: tuple[int, int, int],
    group: tuple[int, int, int],
    buffers: Mapping[int, npt.NDArray[Any] | bytes | Buffer],
    constants: Mapping[int, bool | int],
    threads: int,
    seed: int | None,
) -> tuple[native.Launch, list[npt.NDArray[Any]]]:
    """Lay the launch out for the runtime; also return what has to stay alive with it."""
    launch = native.Launch()
    launch.grid[:] = grid
    launch.group[:] = group
    launch.threads = threads
    launch.shuffled = seed is not None
    launch.seed = seed or 0
    if len(constants) > native.MAX_CONSTANTS:
        raise EmulatorError(f"{len(constants)} function constants: at most {native.MAX_CONSTANTS}")
    launch.n_constants = len(constants)
    for i, (index, value) in enumerate(constants.items()):
        launch.constant_index[i] = index
        launch.constant_value[i] = int(value)
    keep: list[npt.NDArray[Any]] = []
    for slot, bound_to in sorted(buffers.items()):
        if not 0 <= slot < native.MAX_BUFFERS:
            raise EmulatorError(f"buffer {slot}: slots are 0 to {native.MAX_BUFFERS - 1}")
        offset = bound_to.offset_bytes if isinstance(bound_to, Buffer) else 0
        if isinstance(bound_to, bytes):
            array: npt.NDArray[Any] = np.frombuffer(bound_to, dtype=np.uint8)
        else:
            array = bound_to.array if isinstance(bound_to, Buffer) else bound_to
        if not (array.flags.c_contiguous or array.flags.f_contiguous):
            raise EmulatorError(f"buffer {slot}: bind the whole base array, not a strided view")
        if not 0 <= offset <= array.nbytes:
            raise EmulatorError(f"buffer {slot}: offset {offset} of {array.nbytes} bytes")
        keep.append(array)
        bound = launch.buffers[slot]
        bound.base = array.ctypes.data
        bound.bytes = array.nbytes
        bound.offset = offset
        bound.bound = 1
    return launch, keep


def _report(name: str, mode: Mode, path: Path, launch: native.Launch, failed: bool) -> Report:
    raw = [launch.faults[i] for i in range(launch.n_faults)]
    where = places(path, [pc for fault in raw for pc in fault.pc if pc])
    faults, fatal = [], []
    for fault in raw:
        at = [where.get(pc, NOWHERE) for pc in fault.pc]
        kind = FaultKind(fault.kind)
        if kind is FaultKind.SAME_STATEMENT:
            if at[0].exact == at[1].exact:  # one statement that the compiler copied
                continue
            kind = FaultKind.DIVERGENCE
        text = fault.text.decode(errors="replace")
        text = text.replace("$0", at[0].text).replace("$1", at[1].text)
        faults.append(Fault(kind.name.lower(), text))
        if fault.fatal or kind is FaultKind.DIVERGENCE:
            fatal.append(text)
    if launch.faults_dropped:
        faults.append(Fault("dropped", f"{launch.faults_dropped} further reports"))
    if failed or fatal:
        raise EmulatorError(f"{name}: " + "; ".join(fatal or ["stopped"]), faults)
    counters = {name: getattr(launch.counters, name) for name in native.COUNTERS}
    if mode != "trace":  # what is not watched is not zero
        counters = {name: n for name, n in counters.items() if name not in native.TRACED}
    counters["barriers"] = counters["threadgroup_barriers"] + counters["simdgroup_barriers"]
    return Report(counters, tuple(faults))
