"""Lint the MSL of a checkout; exit 1 with findings, 2 when a tool is missing."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.emulator import mlx_headers
from tests.lint import allowlist, run
from tests.lint.clang import ToolError, find_clang

_ROOT = Path(__file__).resolve().parents[2]


def main() -> int:
    """Print findings with file and line, and how much was looked at."""
    parser = argparse.ArgumentParser(prog="python -m tests.lint", description=__doc__)
    parser.add_argument("root", nargs="?", type=Path, default=_ROOT, help="checkout to lint")
    parser.add_argument("--jobs", type=int, default=2, help="clang processes at a time")
    options = parser.parse_args()
    root = options.root.resolve()
    sources = run.project_sources(root)
    if not sources.kernels:
        print(f"{root}/generated holds no .metal file", file=sys.stderr)
        return 2
    try:
        mlx = allowlist.known(mlx_headers.kernels_dir().rglob("*.h"))
        findings = [
            *allowlist.check_stub(find_clang(), mlx),
            *run.check(sources, mlx, root, options.jobs),
        ]
    except (ToolError, RuntimeError) as error:
        print(error, file=sys.stderr)
        return 2
    for finding in findings:
        print(finding)
    print(
        f"{len(sources.kernels)} kernels, {len(sources.headers)} headers: {len(findings)} findings"
    )
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
