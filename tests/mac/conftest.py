"""A fresh encoder, and a file in the place of the metallib."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from tests.mac import fake


@pytest.fixture(scope="session")
def module(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fake.build(tmp_path_factory.mktemp("fake"))


@pytest.fixture
def metal(module: Path, tmp_path: Path) -> ModuleType:
    """Return an encoder that has loaded nothing yet."""
    return fake.load(module, tmp_path)


@pytest.fixture
def metallib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a file in the place of the metallib."""
    folder = tmp_path / "kernels"
    folder.mkdir()
    path = folder / "flashrt.metallib"
    path.touch()
    monkeypatch.setenv("FLASHRT_METALLIB_DIR", str(folder))
    return path
