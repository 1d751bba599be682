"""The CPU kernels on their own, driven through ctypes: any strides, any ISA, no mlx."""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "runtime" / "src" / "cpu"
Array = NDArray[Any]

DTYPES = {"float16": 0, "bfloat16": 1, "float32": 2}
STORAGE = {
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(np.uint16),
    "float32": np.dtype(np.float32),
}
I64, I32 = ctypes.c_int64, ctypes.c_int32


class Strides3(ctypes.Structure):
    _fields_ = [(axis, I64) for axis in "bhl"]


class Strides4(ctypes.Structure):
    _fields_ = [(axis, I64) for axis in "bhqk"]


OPERANDS = ("q", "k", "v", "o", "d_o", "d_q", "d_k", "d_v")
FLAGS = ("block_mask", "segments", "row_diagonals", "sinks", "alibi", "dlse")


class Problem(ctypes.Structure):
    """Mirror of flashrt::Problem; its size is checked when the library is loaded."""

    _fields_ = [
        ("dtype", I32),
        *((n, I64) for n in ("B", "H", "Hk", "qL", "kL", "D", "Dv", "q_off")),
        ("scale", ctypes.c_float),
        ("softcap", ctypes.c_float),
        ("causal", ctypes.c_bool),
        ("window_left", I64),
        ("window_right", I64),
        ("mask_kind", I32),
        *(("has_" + n, ctypes.c_bool) for n in FLAGS),
        *((n, Strides3) for n in OPERANDS),
        ("mask", Strides4),
        ("block_mask", Strides4),
        *((n, I64) for n in ("alibi_b", "alibi_h")),
        *((n, I64) for n in ("q_segments_b", "k_segments_b", "row_diagonals_b")),
    ]


POINTERS = (
    *("q", "k", "v", "mask", "sinks", "alibi", "block_mask"),
    *("q_segments", "k_segments", "row_diagonals", "o", "lse"),
    *("d_o", "d_lse", "d_q", "d_k", "d_v", "d_mask"),
)


class Tensors(ctypes.Structure):
    """Mirror of flashrt::cpu::Tensors."""

    _fields_ = [*((n, ctypes.c_void_p) for n in POINTERS), ("d_mask_strides", Strides4)]


def compile_flags() -> dict[str, list[str]]:
    """Read the flags of each per-ISA source from sources.cmake: what ships is what is tested."""
    text = (SOURCES / "sources.cmake").read_text()
    variables: dict[str, list[str]] = {}
    for name, value in re.findall(r"set\((_\w+) ([^)]*)\)", text):
        words: list[str] = []
        for word in value.split():
            reference = re.fullmatch(r"\$\{(\w+)\}", word)
            words += variables[reference[1]] if reference else [word]
        variables[name] = words
    found = re.findall(r"(isa_\w+\.cpp) PROPERTIES COMPILE_OPTIONS \"\$\{(\w+)\}\"", text)
    flags = {source: variables[variable] for source, variable in found}
    if platform.machine() not in ("x86_64", "AMD64"):
        flags = {name: options for name, options in flags.items() if name == "isa_baseline.cpp"}
    return flags


def compile_objects(directory: Path, compiler: str | None = None) -> list[Path]:
    """One object per source file, with the flags of the real build."""
    compiler = compiler or os.environ.get("CXX") or shutil.which("g++") or "c++"
    per_isa = compile_flags()
    jobs = [
        *((source, ["-O2", "-fvisibility=hidden"]) for source in sorted(SOURCES.glob("*.cpp"))),
        *((SOURCES / "isa" / name, flags) for name, flags in per_isa.items()),
        (Path(__file__).with_name("cpu_shim.cpp"), ["-O2"]),
    ]
    objects = []
    for source, flags in jobs:
        objects.append(directory / f"{source.stem}.o")
        include = [f"-I{ROOT / 'runtime' / 'src'}", f"-I{ROOT / 'runtime' / 'metal'}"]
        command = [compiler, "-std=c++20", "-fPIC", "-Wall", "-Wextra", "-Werror", *flags]
        subprocess.run([*command, *include, "-c", str(source), "-o", str(objects[-1])], check=True)
    return objects


def _fingerprint() -> str:
    digest = hashlib.sha256(platform.machine().encode() + os.environ.get("CXX", "").encode())
    files = [p for p in SOURCES.rglob("*") if p.is_file()]
    files += [ROOT / "runtime/src/problem.h", ROOT / "runtime/metal/flashrt/abi.h"]
    files += [Path(__file__).with_name("cpu_shim.cpp"), Path(__file__)]
    for path in sorted(files):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:16]


@cache
def library() -> ctypes.CDLL:
    """Compile the kernels to a shared library, once per state of the sources."""
    built = ROOT / ".cache" / f"cpu-kernels-{_fingerprint()}.so"
    if not built.exists():
        built.parent.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=built.parent) as scratch:
            objects = compile_objects(Path(scratch))
            linked = Path(scratch) / "cpu.so"
            linker = os.environ.get("CXX") or shutil.which("g++") or "c++"
            command = [linker, "-shared", "-pthread", *map(str, objects), "-o", str(linked)]
            subprocess.run(command, check=True)
            linked.replace(built)  # whole or not at all, also with several processes at it
    lib = ctypes.CDLL(str(built))
    lib.cpu_best_isa.restype = ctypes.c_char_p
    for name in ("cpu_sizeof_problem", "cpu_sizeof_tensors", "cpu_scratch_bytes"):
        getattr(lib, name).restype = I64
    assert lib.cpu_sizeof_problem() == ctypes.sizeof(Problem)
    assert lib.cpu_sizeof_tensors() == ctypes.sizeof(Tensors)
    return lib


def best_isa() -> str:
    return str(library().cpu_best_isa().decode())


def isas() -> list[str]:
    """Instruction sets that are built for this machine's architecture, best first."""
    if "isa_avx2.cpp" not in compile_flags():
        return ["neon"]
    return ["avx512_bf16", "avx512", "avx2", "baseline"]


def runs(isa: str) -> bool:
    """Tell whether this CPU has it."""
    order = isas()
    return order.index(isa) >= order.index(best_isa())


def strides_of(x: Array, kind: type[Strides3] | type[Strides4]) -> Any:
    """Strides in elements, 0 for axes of one element (which may carry any stride)."""
    assert kind is Strides4 or x.shape[-1] <= 1 or x.size == 0 or x.strides[-1] == x.itemsize
    pairs = list(zip(x.strides, x.shape, strict=True))[: len(kind._fields_)]
    return kind(*(s // x.itemsize if n > 1 else 0 for s, n in pairs))


def zeros(shape: tuple[int, ...], dtype: str) -> Array:
    return np.zeros(shape, STORAGE[dtype])


@dataclass
class Call:
    """One problem with its arrays; outputs are made here unless given, filled with garbage."""

    q: Array
    k: Array
    v: Array
    dtype: str
    options: dict[str, Any] = field(default_factory=dict)
    isa: str | None = None
    threads: int = 0
    o: Array | None = None
    lse: Array | None = None

    def __post_init__(self) -> None:
        (B, H, qL, _), Dv = self.q.shape, self.v.shape[3]
        self.o = self._garbage((B, H, qL, Dv)) if self.o is None else self.o
        self.lse = np.full((B, H, qL), np.nan, np.float32)

    def _garbage(self, shape: tuple[int, ...]) -> Array:
        return np.full(shape, 0x7FC1 if self.dtype == "bfloat16" else np.nan, STORAGE[self.dtype])

    def _problem(self) -> tuple[Problem, Tensors, list[Array]]:
        (B, H, qL, D), (Hk, kL) = self.q.shape, self.k.shape[1:3]
        o = self.options
        p = Problem(B=B, H=H, Hk=Hk, qL=qL, kL=kL, D=D, Dv=self.v.shape[3])
        p.dtype = DTYPES[self.dtype]
        q_off, scale = o.get("q_off"), o.get("scale")
        p.q_off = kL - qL if q_off is None else q_off
        p.scale = D**-0.5 if scale is None else scale
        p.softcap = o.get("softcap") or 0.0
        p.causal = o.get("causal", False)
        p.window_left, p.window_right = o.get("window") or (-1, -1)
        t, keep = Tensors(), []

        def use(name: str, x: Array) -> Array:
            keep.append(x)
            setattr(t, name, x.ctypes.data)
            return x

        for name in ("q", "k", "v", "o"):
            setattr(p, name, strides_of(use(name, getattr(self, name)), Strides3))
        use("lse", self.lse)  # type: ignore[arg-type]
        if o.get("mask") is not None:
            mask = o["mask"]
            p.mask_kind = 1 if mask.dtype == np.bool_ else 3
            if p.mask_kind == 3 and mask.dtype == STORAGE[self.dtype]:
                p.mask_kind = 2
            wide = np.broadcast_to(mask, (B, H, qL, kL))
            keep.append(mask)
            t.mask = mask.ctypes.data
            p.mask = Strides4(*(s // mask.itemsize for s in wide.strides))
        if o.get("block_mask") is not None:
            blocks = o["block_mask"].astype(np.uint8)
            use("block_mask", blocks)
            wide = np.broadcast_to(blocks, (B, H, *blocks.shape[-2:]))
            p.has_block_mask, p.block_mask = True, Strides4(*wide.strides)
        if o.get("sinks") is not None:
            use("sinks", o["sinks"].astype(np.float32))
            p.has_sinks = True
        if o.get("alibi") is not None:
            slopes = o["alibi"].astype(np.float32)
            use("alibi", slopes)
            wide = np.broadcast_to(slopes, (B, H))
            p.has_alibi, p.alibi_b, p.alibi_h = True, wide.strides[0] // 4, wide.strides[1] // 4
        if o.get("segments") is not None:
            p.has_segments = True
            for side, ids, length in zip("qk", o["segments"], (qL, kL), strict=True):
                ids = use(f"{side}_segments", np.ascontiguousarray(ids, np.int32))
                wide = np.broadcast_to(ids, (B, length))
                setattr(p, f"{side}_segments_b", wide.strides[0] // 4)
        if o.get("row_diagonals") is not None:
            rows = use("row_diagonals", np.ascontiguousarray(o["row_diagonals"], np.int32))
            p.has_row_diagonals = True
            p.row_diagonals_b = np.broadcast_to(rows, (B, qL)).strides[0] // 4
        return p, t, keep

    def _run(self, entry: Any, p: Problem, t: Tensors) -> None:
        message = ctypes.create_string_buffer(512)
        isa = None if self.isa is None else self.isa.encode()
        failed = entry(ctypes.byref(p), ctypes.byref(t), isa, self.threads, message, 512)
        if failed:
            raise ValueError(message.value.decode())

    def forward(self) -> Call:
        p, t, _keep = self._problem()
        self._run(library().cpu_forward, p, t)
        return self

    def backward(
        self,
        d_o: Array,
        d_lse2: Array | None = None,
        wanted: str = "qkv",
        d_mask: Array | None = None,
        into: dict[str, Array] | None = None,
    ) -> dict[str, Array]:
        """Gradients as ``d_q``, ``d_k``, ``d_v``; ``d_mask`` is written in place."""
        p, t, keep = self._problem()
        p.d_o, t.d_o = strides_of(d_o, Strides3), d_o.ctypes.data
        if d_lse2 is not None:
            p.has_dlse, t.d_lse = True, d_lse2.ctypes.data
        out = {}
        for name in wanted:
            given = (into or {}).get(f"d_{name}")
            grad = self._garbage(getattr(self, name).shape) if given is None else given
            setattr(p, f"d_{name}", strides_of(grad, Strides3))
            setattr(t, f"d_{name}", grad.ctypes.data)
            out[f"d_{name}"] = grad
        if d_mask is not None:
            wide = d_mask.reshape((1,) * (4 - d_mask.ndim) + d_mask.shape)
            t.d_mask, t.d_mask_strides = d_mask.ctypes.data, strides_of(wide, Strides4)
        self._run(library().cpu_backward, p, t)
        del keep
        return out

    def scratch_bytes(self, backward: bool, threads: int) -> int:
        p, _, _keep = self._problem()
        isa = None if self.isa is None else self.isa.encode()
        return int(library().cpu_scratch_bytes(ctypes.byref(p), int(backward), threads, isa))
