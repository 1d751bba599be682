"""All checks over a set of Metal sources."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from tests.lint import allowlist, astdump, clang, divergence, syntax
from tests.lint.finding import Finding
from tests.lint.tokens import tokenize


@dataclass(frozen=True)
class Sources:
    """What is checked: `kernels` are compiled, `headers` are what they include from `include`."""

    kernels: tuple[Path, ...]
    headers: tuple[Path, ...] = ()
    include: tuple[Path, ...] = ()


def project_sources(root: Path) -> Sources:
    """Return the library and every generated kernel of a checkout."""
    metal = root / "runtime" / "metal"
    return Sources(
        kernels=tuple(sorted((root / "generated").glob("*.metal"))),
        headers=tuple(sorted(metal.rglob("*.h"))),
        include=(metal,),
    )


def check(sources: Sources, mlx: allowlist.Known, root: Path, jobs: int = 2) -> list[Finding]:
    """Return every finding, once, with paths relative to `root` where they lie below it."""
    binary = clang.find_clang()
    files = {
        str(path): tokenize(path.read_text(encoding="utf-8"))
        for path in (*sources.headers, *sources.kernels)
    }
    indices = syntax.enumerators(files)
    constants = syntax.function_constants(files)
    found: list[Finding] = [*allowlist.check(files, binary, mlx), *divergence.check(files)]
    for path, tokens in files.items():
        found += syntax.check(path, tokens, indices, constants)
    with ThreadPoolExecutor(jobs) as pool:  # the work is clang's: threads that wait for it suffice
        for findings in pool.map(
            lambda kernel: _compile(kernel, sources.include, binary), sources.kernels
        ):
            found += findings
    return sorted({_relative(finding, root) for finding in found})


def _compile(kernel: Path, include: Sequence[Path], binary: str) -> list[Finding]:
    unit = clang.compile_file(kernel, include, binary)
    return [*unit.findings, *astdump.check(unit.ast, str(clang.STUB))]


def _relative(finding: Finding, root: Path) -> Finding:
    path = Path(finding.path).resolve()
    return (
        replace(finding, path=str(path.relative_to(root))) if path.is_relative_to(root) else finding
    )
