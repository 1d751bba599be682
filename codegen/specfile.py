"""Spec files to kernels and routes: the schema, and every mistake with its place and way out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from codegen import yamltree
from codegen.diagnostics import Diagnostic, SpecErrors
from codegen.fields import Fields, Values
from codegen.model import (
    FRAGMENT,
    TENSOR_DTYPES,
    TILED_KINDS,
    UNBOUNDED,
    Dtype,
    Gpu,
    KernelKind,
    KernelSpec,
    Location,
    MaskClass,
    Route,
    Split,
)
from codegen.rules import violations

MAX_HEAD_DIM = 256
_KINDS = {str(kind): kind for kind in TILED_KINDS}
_KIND_NAMES = ", ".join(_KINDS)
_DTYPES = {str(dtype): dtype for dtype in TENSOR_DTYPES}
_TILE_KEYS = ("BQ", "BK", "WM", "WN")
_ROW_KEYS = ("dtypes", *_TILE_KEYS, "split")
_ROUTE_KEYS = ("gpus", "dtypes", "masks")
_ROUTE_BOUNDS = ("min_L", "max_L", "score_bytes")


@dataclass(frozen=True, slots=True)
class SpecFile:
    """The kernels of one head dim, in file order, and where they are used."""

    location: Location
    D: int
    Dv: int
    kernels: tuple[KernelSpec, ...]
    routes: tuple[Route, ...]


def load_folder(folder: Path) -> tuple[SpecFile, ...]:
    """Read all spec files of a folder; a raise is as of `load_specs`."""
    misnamed = sorted(folder.glob("*.yml"))
    if misnamed:
        message = "spec files end in .yaml; rename it"
        raise SpecErrors(Diagnostic(Location(_shown(p), 1), "", message) for p in misnamed)
    paths = sorted(folder.glob("*.yaml"))
    if not paths:
        raise SpecErrors([Diagnostic(Location(_shown(folder), 1), "", "holds no *.yaml")])
    return load_specs(paths)


def load_specs(paths: Iterable[Path]) -> tuple[SpecFile, ...]:
    """Read spec files; they are legal, alone and together, when this returns.

    Raises
    ------
    SpecErrors
        With all mistakes of all files.
    """
    diagnostics: list[Diagnostic] = []
    files = []
    for path in paths:
        reader = _Reader(path)
        files.append(reader.read())
        diagnostics += reader.fields.diagnostics
    whole = tuple(file for file in files if file is not None)
    diagnostics += _clashes(whole)
    if diagnostics:
        raise SpecErrors(diagnostics)
    return whole


def _clashes(files: tuple[SpecFile, ...]) -> Iterator[Diagnostic]:
    owners: dict[tuple[int, int], SpecFile] = {}
    kernels: dict[str, KernelSpec] = {}
    for file in files:
        first = owners.setdefault((file.D, file.Dv), file)
        if first is not file:
            yield Diagnostic(
                file.location,
                f"D={file.D}",
                f"{first.location} has D={first.D}, Dv={first.Dv} too; keep one file for both",
            )
        for kernel in file.kernels:
            known = kernels.setdefault(kernel.name, kernel)
            if known is not kernel:
                yield Diagnostic(
                    kernel.location,
                    str(kernel.kind),
                    f"makes {kernel.name}, as {known.location} does; remove one",
                )


@dataclass(frozen=True, slots=True)
class _Row:
    """One tile as written, for each of its dtypes.

    A value that could not be read stands as a guess, so that rules about the others still apply.
    """

    kind: KernelKind
    dtypes: tuple[Dtype, ...]
    tile: dict[str, int]
    split: Split
    guessed: frozenset[str]
    line: int
    lines: dict[str, int]  # of its values


class _Reader:
    """Reads one file; goes on after a mistake as far as the rest still has a meaning."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._shown = _shown(path)
        self._label = f"{path.resolve().parent.name}/{path.name}"
        self.fields = Fields(self._shown)

    def read(self) -> SpecFile | None:
        """Return the file's content, None when nothing can be said about it."""
        try:
            root = yamltree.parse(self._path.read_bytes(), self._shown)
        except OSError as error:
            self.fields.report(1, "", f"cannot be read: {error.strerror}")
            return None
        except yamltree.TreeError as error:
            self.fields.diagnostics += error.diagnostics
            return None
        if not isinstance(root, yamltree.Mapping):
            found = {
                yamltree.Sequence: "is a list",
                yamltree.Scalar: "is a single value",
            }.get(type(root), "is empty")
            self.fields.report(1, "", f"{found}; must be a mapping with D and {_KIND_NAMES}")
            return None
        return self._file(root)

    def _file(self, root: yamltree.Mapping) -> SpecFile | None:
        values = self.fields.keys(root, "", required=("D",), optional=("Dv", *_KINDS, "routing"))
        D = self._head_dim(values, "D")
        Dv = self._head_dim(values, "Dv") if "Dv" in values else D
        guessed = frozenset(key for key, value in (("D", D), ("Dv", Dv)) if value is None)
        ranks: dict[tuple[KernelKind, Dtype], int] = {}
        kernels = [
            kernel
            for name, kind in _KINDS.items()
            if name in values
            for row in self._rows(values[name], kind, guessed)
            for kernel in self._kernels(row, D or FRAGMENT, Dv or FRAGMENT, ranks)
        ]
        if not any(name in values for name in _KINDS):
            self.fields.report(root.line, "", f"has no kernels; give some of {_KIND_NAMES}")
        bounds = self._routing(values["routing"]) if "routing" in values else _OWN_EVERYWHERE
        if D is None or Dv is None:
            return None
        routes = [Route(gpu, D, Dv, dtype, mask, *b) for (gpu, dtype, mask), b in bounds.items()]
        return SpecFile(self.fields.location(root.line), D, Dv, tuple(kernels), tuple(routes))

    def _head_dim(self, values: Values, key: str) -> int | None:
        value = self.fields.integer(values, key, key)
        if value is not None and (value % FRAGMENT or value > MAX_HEAD_DIM):
            nearest = min(max(FRAGMENT, round(value / FRAGMENT) * FRAGMENT), MAX_HEAD_DIM)
            rule = f"must be a multiple of {FRAGMENT} up to {MAX_HEAD_DIM}; try {nearest}"
            self.fields.report(values[key].line, f"{key}={value}", rule)
            return None
        return value

    def _rows(
        self, node: yamltree.Node, kind: KernelKind, guessed: frozenset[str]
    ) -> Iterator[_Row]:
        wanted = f"a mapping with {', '.join(_ROW_KEYS)}"
        for item in self.fields.items(node, str(kind), "a list of tiles"):
            row = self.fields.mapping(item, str(kind), wanted)
            if row is not None:
                yield self._row(row, kind, guessed)

    def _row(self, node: yamltree.Mapping, kind: KernelKind, guessed: frozenset[str]) -> _Row:
        values = self.fields.keys(node, str(kind), required=_ROW_KEYS)
        dtypes = self.fields.tokens(values, "dtypes", str(kind), _DTYPES)
        tile = {key: self.fields.integer(values, key, f"{kind}.{key}") for key in _TILE_KEYS}
        split = None
        if "split" in values:
            splits = {str(split): split for split in Split}
            split = self.fields.token(values["split"], f"{kind}.split", splits)
        unread = {key for key, value in tile.items() if value is None}
        unread |= {key for key, value in (("dtypes", dtypes), ("split", split)) if not value}
        return _Row(
            kind,
            dtypes or (Dtype.FLOAT16,),
            {key: 1 if value is None else value for key, value in tile.items()},
            split or Split.NONE,
            guessed | unread,
            node.line,
            {key: value.line for key, value in values.items()},
        )

    def _kernels(
        self, row: _Row, D: int, Dv: int, ranks: dict[tuple[KernelKind, Dtype], int]
    ) -> Iterator[KernelSpec]:
        for dtype in row.dtypes:
            rank = ranks.get((row.kind, dtype), 0)
            ranks[row.kind, dtype] = rank + 1
            kernel = KernelSpec(
                kind=row.kind,
                dtype=dtype,
                D=D,
                Dv=Dv,
                BQ=row.tile["BQ"],
                BK=row.tile["BK"],
                WM=row.tile["WM"],
                WN=row.tile["WN"],
                split=row.split,
                rank=rank,
                spec_path=self._label,
                location=self.fields.location(row.line),
            )
            broken = violations(kernel)
            for violation in broken:
                if violation.depends_on & row.guessed:
                    continue
                key = str(row.kind)
                if violation.key:
                    key += f".{violation.key}={getattr(kernel, violation.key)}"
                line = row.lines.get(violation.key, row.line)
                self.fields.report(line, key, violation.message)
            if not broken and not row.guessed:
                yield kernel

    def _routing(self, node: yamltree.Node) -> dict[_Call, _Bounds]:
        """Return the bounds of every kind of call, each from exactly one row."""
        found: dict[_Call, _Bounds] = {}
        lines: dict[_Call, int] = {}
        for item in self.fields.items(node, "routing", "a list of routes"):
            row = self.fields.mapping(item, "routing", f"a mapping with {', '.join(_ROUTE_KEYS)}")
            if row is None:
                continue
            values = self.fields.keys(row, "routing", _ROUTE_KEYS, _ROUTE_BOUNDS)
            bounds = self._bounds(values, row.line)
            gpus = self.fields.tokens(values, "gpus", "routing", {str(gpu): gpu for gpu in Gpu})
            dtypes = self.fields.tokens(values, "dtypes", "routing", _DTYPES)
            masks = {str(mask): mask for mask in MaskClass}
            for mask in self.fields.tokens(values, "masks", "routing", masks):
                for call in ((gpu, dtype, mask) for gpu in gpus for dtype in dtypes):
                    if call in lines:
                        message = f"{_named(call)} is routed on line {lines[call]} too; keep one"
                        self.fields.report(row.line, "routing", message)
                    else:
                        lines[call] = row.line
                        found[call] = bounds
        for call in _OWN_EVERYWHERE:
            if call not in lines:
                self.fields.report(node.line, "routing", f"has no row for {_named(call)}")
        return {call: found[call] for call in _OWN_EVERYWHERE if call in found}

    def _bounds(self, values: Values, line: int) -> _Bounds:
        limits = [key for key in ("min_L", "max_L") if key in values]
        if ("score_bytes" in values) != bool(limits):
            message = "goes with min_L or max_L: from how many bytes of scores on they do not count"
            self.fields.report(line, "routing.score_bytes", message)
        min_L = self.fields.integer(values, "min_L", "routing.min_L")
        max_L = self.fields.integer(values, "max_L", "routing.max_L", least=0)
        score_bytes = self.fields.integer(values, "score_bytes", "routing.score_bytes")
        if min_L is not None and max_L is not None and min_L >= max_L:
            key = f"routing.min_L={min_L}"
            self.fields.report(values["min_L"].line, key, f"must be below max_L = {max_L}")
        return min_L or 0, UNBOUNDED if max_L is None else max_L, score_bytes or 0


_Call = tuple[Gpu, Dtype, MaskClass]
_Bounds = tuple[int, int, int]  # as in Route
_OWN_EVERYWHERE: dict[_Call, _Bounds] = {
    (gpu, dtype, mask): (0, UNBOUNDED, 0)
    for gpu in Gpu
    for dtype in TENSOR_DTYPES
    for mask in MaskClass
}


def _named(call: _Call) -> str:
    return ", ".join(map(str, call))


def _shown(path: Path) -> str:
    """Return `path` as a user in the current folder would type it, with forward slashes."""
    try:
        return path.resolve().relative_to(Path.cwd()).as_posix()
    except ValueError:
        return path.as_posix()
