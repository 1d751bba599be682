"""Spec files to kernels: the schema, and every mistake with its file, line, key and way out."""

from __future__ import annotations

import re
from collections.abc import Iterable
from collections.abc import Mapping as MappingType
from dataclasses import dataclass
from pathlib import Path

from codegen import yamltree
from codegen.diagnostics import Diagnostic, SpecErrors
from codegen.model import (
    FRAGMENT,
    TENSOR_DTYPES,
    TILED_KINDS,
    Dtype,
    KernelKind,
    KernelSpec,
    Location,
    Split,
)
from codegen.rules import violations

MAX_HEAD_DIM = 256
_TILE_KEYS = ("BQ", "BK", "WM", "WN")
_ROW_KEYS = ("dtypes", *_TILE_KEYS, "split")
_YAML_BOOLEANS = {"y", "n", "yes", "no", "on", "off", "true", "false"}
_YAML_NULLS = {"", "~", "null"}


@dataclass(frozen=True, slots=True)
class SpecFile:
    """The kernels of one head dim, in file order."""

    path: str  # as in KernelSpec.spec_path
    location: Location
    D: int
    Dv: int
    kernels: tuple[KernelSpec, ...]


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
        diagnostics += reader.diagnostics
    whole = tuple(file for file in files if file is not None)
    diagnostics += _clashes(whole)
    if diagnostics:
        raise SpecErrors(diagnostics)
    return whole


def _clashes(files: tuple[SpecFile, ...]) -> Iterable[Diagnostic]:
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


class _Reader:
    """Reads one file; goes on after a mistake as far as the rest still has a meaning."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._shown = _shown(path)
        self._label = f"{path.resolve().parent.name}/{path.name}"
        self.diagnostics: list[Diagnostic] = []

    def _report(self, line: int, key: str, message: str) -> None:
        self.diagnostics.append(Diagnostic(Location(self._shown, line), key, message))

    def read(self) -> SpecFile | None:
        """Return the file's content, None when nothing can be said about it."""
        try:
            root = yamltree.parse(self._path.read_bytes(), self._shown)
        except OSError as error:
            self._report(1, "", f"cannot be read: {error.strerror}")
            return None
        except yamltree.TreeError as error:
            self.diagnostics += error.diagnostics
            return None
        if not isinstance(root, yamltree.Mapping):
            found = {
                yamltree.Sequence: "is a list",
                yamltree.Scalar: "is a single value",
            }.get(type(root), "is empty")
            self._report(1, "", f"{found}; must be a mapping with D and {_kind_names()}")
            return None
        return self._file(root)

    def _file(self, root: yamltree.Mapping) -> SpecFile | None:
        kinds = {str(kind): kind for kind in TILED_KINDS}
        values = self._keys(root, "", required=("D",), optional=("Dv", *kinds))
        D = self._head_dim(values, "D")
        Dv = self._head_dim(values, "Dv") if "Dv" in values else D
        rows = [
            row
            for name, kind in kinds.items()
            if name in values
            for row in self._rows(values[name], kind)
        ]
        if D is None or Dv is None:
            return None
        if not any(name in values for name in kinds):
            self._report(root.line, "", f"has no kernels; give some of {_kind_names()}")
        ranks: dict[tuple[KernelKind, Dtype], int] = {}
        kernels = [kernel for row in rows for kernel in self._kernels(row, D, Dv, ranks)]
        location = Location(self._shown, root.line)
        return SpecFile(self._label, location, D, Dv, tuple(kernels))

    def _kernels(
        self, row: _Row, D: int, Dv: int, ranks: dict[tuple[KernelKind, Dtype], int]
    ) -> Iterable[KernelSpec]:
        for dtype in row.dtypes:
            rank = ranks.get((row.kind, dtype), 0)
            ranks[row.kind, dtype] = rank + 1
            kernel = KernelSpec(
                kind=row.kind,
                dtype=dtype,
                D=D,
                Dv=Dv,
                **row.tile,
                split=row.split,
                rank=rank,
                spec_path=self._label,
                location=Location(self._shown, row.line),
            )
            broken = violations(kernel)
            for violation in broken:
                key = str(row.kind)
                if violation.key:
                    key += f".{violation.key}={getattr(kernel, violation.key)}"
                line = row.lines.get(violation.key, row.line)
                self._report(line, key, violation.message)
            if not broken:
                yield kernel

    def _rows(self, node: yamltree.Node, kind: KernelKind) -> Iterable[_Row]:
        if not isinstance(node, yamltree.Sequence):
            self._wrong_type(node, str(kind), "a list of tiles")
            return
        if not node.items:
            self._report(node.line, str(kind), "is an empty list; give a tile or remove the key")
        for item in node.items:
            row = self._row(item, kind)
            if row is not None:
                yield row

    def _row(self, node: yamltree.Node, kind: KernelKind) -> _Row | None:
        if not isinstance(node, yamltree.Mapping):
            self._wrong_type(node, str(kind), f"a mapping with {', '.join(_ROW_KEYS)}")
            return None
        values = self._keys(node, str(kind), required=_ROW_KEYS)
        dtypes = self._dtypes(values, kind)
        tile = {key: self._positive(values, kind, key) for key in _TILE_KEYS}
        splits = {split.token: split for split in Split}
        split = None
        if "split" in values:
            token = self._token(values["split"], f"{kind}.split", splits)
            split = splits[token] if token else None
        known = {key: value for key, value in tile.items() if value is not None}
        if split is None or not dtypes or len(known) < len(_TILE_KEYS):
            return None
        lines = {key: value.line for key, value in values.items()}
        return _Row(kind, dtypes, known, split, node.line, lines)

    def _dtypes(
        self, values: MappingType[str, yamltree.Node], kind: KernelKind
    ) -> tuple[Dtype, ...]:
        node, key = values.get("dtypes"), f"{kind}.dtypes"
        if node is None:
            return ()
        if not isinstance(node, yamltree.Sequence):
            self._wrong_type(node, key, "a list such as [float16, bfloat16]")
            return ()
        if not node.items:
            self._report(node.line, key, "is an empty list; name a dtype")
        choices = {dtype.mlx: dtype for dtype in TENSOR_DTYPES}
        found: list[Dtype] = []
        for item in node.items:
            token = self._token(item, key, choices)
            if token and choices[token] in found:
                self._report(item.line, key, f"{token} is listed twice; keep one")
            elif token:
                found.append(choices[token])
        return tuple(found)

    def _head_dim(self, values: MappingType[str, yamltree.Node], key: str) -> int | None:
        value = self._integer(values, key, key)
        if value is not None and (value % FRAGMENT or not 0 < value <= MAX_HEAD_DIM):
            nearest = min(max(FRAGMENT, round(value / FRAGMENT) * FRAGMENT), MAX_HEAD_DIM)
            rule = f"must be a multiple of {FRAGMENT} up to {MAX_HEAD_DIM}; try {nearest}"
            self._report(values[key].line, f"{key}={value}", rule)
            return None
        return value

    def _positive(
        self, values: MappingType[str, yamltree.Node], kind: KernelKind, key: str
    ) -> int | None:
        value = self._integer(values, key, f"{kind}.{key}")
        if value is not None and value <= 0:
            self._report(values[key].line, f"{kind}.{key}={value}", "must be at least 1")
            return None
        return value

    def _integer(
        self, values: MappingType[str, yamltree.Node], key: str, full_key: str
    ) -> int | None:
        node = values.get(key)
        if node is None:
            return None  # reported as missing
        if not isinstance(node, yamltree.Scalar):
            self._wrong_type(node, full_key, "a whole number")
            return None
        if node.quoted:
            message = "is quoted text, must be a whole number; remove the quotes"
        elif re.fullmatch(r"-?(0|[1-9][0-9]{0,8})", node.text):
            return int(node.text)
        elif re.fullmatch(r"-?0[0-9]+", node.text):
            message = "has a leading zero, which YAML reads as octal; write it without"
        elif re.fullmatch(r"-?[0-9]+\.0*", node.text):
            message = f"must be a whole number; write {node.text.split('.')[0]}"
        else:
            message = _described(node.text, "must be a whole number in plain decimal digits")
        self._report(node.line, f"{full_key}={node.text}", message)
        return None

    def _token(
        self, node: yamltree.Node, key: str, choices: MappingType[str, object]
    ) -> str | None:
        options = ", ".join(choices)
        if not isinstance(node, yamltree.Scalar):
            self._wrong_type(node, key, f"one of {options}")
            return None
        if node.text in choices:
            return node.text
        message = f"must be one of {options}"
        if not node.quoted:
            message = _described(node.text, message)
        self._report(node.line, f"{key}={node.text}", message)
        return None

    def _keys(
        self,
        node: yamltree.Mapping,
        prefix: str,
        required: tuple[str, ...],
        optional: tuple[str, ...] = (),
    ) -> dict[str, yamltree.Node]:
        dot = prefix + "." if prefix else ""
        known = (*required, *optional)
        values: dict[str, yamltree.Node] = {}
        for name, value in node.items:
            if name.text in known:
                values[name.text] = value
            else:
                message = f"unknown key; known are {', '.join(known)}"
                self._report(name.line, dot + name.text, message)
        for key in required:
            if key not in values:
                self._report(node.line, dot + key, "is missing")
        return values

    def _wrong_type(self, node: yamltree.Node, key: str, wanted: str) -> None:
        if isinstance(node, yamltree.Scalar):
            shown = f"{key}={node.text}"
            message = f"must be {wanted}"
            message = message if node.quoted else _described(node.text, message)
            self._report(node.line, shown, message)
        else:
            found = "a list" if isinstance(node, yamltree.Sequence) else "a mapping"
            self._report(node.line, key, f"is {found}, must be {wanted}")


@dataclass(frozen=True, slots=True)
class _Row:
    """One tile as written, for each of its dtypes."""

    kind: KernelKind
    dtypes: tuple[Dtype, ...]
    tile: dict[str, int]
    split: Split
    line: int
    lines: dict[str, int]


def _described(text: str, rule: str) -> str:
    """Return `rule`, with what YAML would have made of an unquoted `text`."""
    if text.lower() in _YAML_NULLS:
        return f"has no value (null); {rule}"
    if text.lower() in _YAML_BOOLEANS:
        return f"is a boolean to YAML; {rule}"
    return rule


def _kind_names() -> str:
    return ", ".join(map(str, TILED_KINDS))


def _shown(path: Path) -> str:
    """Return `path` as a user in the current folder would type it, with forward slashes."""
    try:
        return path.resolve().relative_to(Path.cwd()).as_posix()
    except ValueError:
        return path.as_posix()
