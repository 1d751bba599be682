"""`python -m tests.lint` as a command."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def lint(folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the command over a checkout."""
    command = [sys.executable, "-m", "tests.lint", str(folder)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_findings_have_file_and_line(tmp_path: Path) -> None:
    """Findings go to stdout, in a header as in a kernel; the exit status says so."""
    (tmp_path / "generated").mkdir()
    (tmp_path / "runtime" / "metal" / "flashrt").mkdir(parents=True)
    (tmp_path / "runtime" / "metal" / "flashrt" / "twice.h").write_text(
        "#pragma once\n#include <metal_stdlib>\n\n"
        "inline float twice(float* x) { return 2.0f * *x; }\n"
    )
    (tmp_path / "generated" / "k.metal").write_text(
        '#include "flashrt/twice.h"\n'
        "[[kernel]] void k(device float* out [[buffer(0)]]) {\n"
        "  float x = out[0];\n"
        "  out[0] = twice(&x) + 0.5;\n"
        "}\n"
    )
    done = lint(tmp_path)
    assert done.returncode == 1, done.stderr
    assert [line.split(": ")[:2] for line in done.stdout.splitlines()] == [
        ["generated/k.metal:4", "float-literal"],
        ["runtime/metal/flashrt/twice.h:4", "address-space"],
        ["1 kernels, 1 headers", "2 findings"],
    ]


def test_nothing_to_lint_is_an_error(tmp_path: Path) -> None:
    """An empty set of kernels does not pass."""
    done = lint(tmp_path)
    assert done.returncode == 2
    assert "holds no .metal file" in done.stderr
