"""Fixtures of the lint's tests."""

from __future__ import annotations

import pytest

from tests.emulator import mlx_headers
from tests.lint.allowlist import Known, known


@pytest.fixture(scope="session")
def mlx() -> Known:
    """Return what MLX's kernel headers use."""
    return known(mlx_headers.kernels_dir().rglob("*.h"))
