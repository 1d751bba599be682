"""The project's own MSL has no findings."""

from __future__ import annotations

from pathlib import Path

from tests.lint import run
from tests.lint.allowlist import Known

ROOT = Path(__file__).resolve().parents[2]


def test_project_is_clean(mlx: Known) -> None:
    """Library and every generated kernel; `python -m tests.lint` prints the same."""
    sources = run.project_sources(ROOT)
    assert sources.kernels
    assert sources.headers
    assert "\n".join(map(str, run.check(sources, mlx, ROOT))) == ""
