"""Spec files from text, for the tests of what they mean and of their mistakes."""

from __future__ import annotations

from pathlib import Path

import pytest

from codegen.diagnostics import SpecErrors
from codegen.specfile import SpecFile, load_specs

ROW = "{dtypes: [float16], BQ: 32, BK: 32, WM: 4, WN: 1, split: none}"


def with_row(row: str, kind: str = "fwd", head: str = "D: 96") -> str:
    return f"{head}\n{kind}:\n  - {row}\n"


def load(folder: Path, *texts: str | bytes) -> tuple[SpecFile, ...]:
    """Load texts as spec files a.yaml, b.yaml, ..."""
    paths = []
    for letter, text in zip("abc", texts, strict=False):
        path = folder / f"{letter}.yaml"
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        paths.append(path)
    return load_specs(paths)


def errors(folder: Path, *texts: str | bytes) -> list[str]:
    """Return the messages of `load` without the folder."""
    with pytest.raises(SpecErrors) as caught:
        load(folder, *texts)
    prefix = f"{folder.as_posix()}/"
    return [str(diagnostic).removeprefix(prefix) for diagnostic in caught.value.diagnostics]
