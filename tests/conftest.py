"""Options of the suite and the summary of measured errors.

Without an option the suite is quick: kernels by their kinds, a few launches each. ``--ci`` runs the
covering list of every kernel, ``--full`` the whole product as well.
"""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import hypothesis
import pytest

DEPTHS = ("quick", "ci", "full")
EXAMPLES = {"quick": 150, "ci": 400, "full": 10000}  # of every property
NEEDED = {"slow": "ci", "exhaustive": "full"}  # marker -> depth at which a test runs
depth_key = pytest.StashKey[str]()
lost_key = pytest.StashKey[list[str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --ci and --full."""
    group = parser.getgroup("flashrt")
    group.addoption("--ci", action="store_true", help="the covering list of every kernel")
    group.addoption("--full", action="store_true", help="the whole product of shapes (hours)")


def pytest_configure(config: pytest.Config) -> None:
    """Decide how deep to go."""
    config.addinivalue_line("markers", "exhaustive: hours; runs with --full only")
    full, ci = config.getoption("--full"), config.getoption("--ci")
    config.stash[lost_key] = []
    config.stash[depth_key] = depth = "full" if full else "ci" if ci else "quick"
    hypothesis.settings.register_profile(
        "flashrt",
        max_examples=EXAMPLES[depth],
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=[hypothesis.HealthCheck.too_slow],
    )
    hypothesis.settings.load_profile("flashrt")
    if worker := os.environ.get("PYTEST_XDIST_WORKER"):
        _keep_apart(worker)


def _keep_apart(worker: str) -> None:
    """Give a worker its own place for what mx.compile builds.

    On CPUs MLX compiles fused operations into one folder for all processes, and a process loads a
    library that another one has just begun to write.
    """
    tempfile.gettempdir()  # Python's own choice is made once, and stays
    folder = Path(__file__).parents[1] / ".cache" / "mlx" / worker
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["TMPDIR"] = str(folder)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Find out how a worker ended that nobody told to: killed for memory, or crashed."""
    if error:
        status = node.gateway._io.popen.wait(timeout=10)
        how = signal.Signals(-status).name if status < 0 else f"exit status {status}"
        node.config.stash[lost_key].append(f"{node.gateway.id}: {how}")


@pytest.fixture(scope="session")
def depth(pytestconfig: pytest.Config) -> str:
    """``quick``, ``ci`` or ``full``."""
    return pytestconfig.stash[depth_key]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out tests above the chosen depth. What is asked for by name runs, whatever it takes;
    ``-k`` asks for all but the exhaustive ones.
    """
    if any("::" in arg for arg in config.args):
        return
    chosen = DEPTHS.index(config.stash[depth_key])
    if config.getoption("keyword"):
        chosen = max(chosen, DEPTHS.index("ci"))
    kept, left_out = [], []
    for item in items:
        marks = {mark.name for mark in item.iter_markers()}
        needed = max((DEPTHS.index(NEEDED[m]) for m in marks & NEEDED.keys()), default=0)
        (kept if needed <= chosen else left_out).append(item)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = kept


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the worst error of every dtype and output, in units of the output's rounding."""
    worst: dict[tuple[str, str], tuple[float, float, str]] = {}
    examples: dict[str, int] = {}
    launches = 0
    for reports in terminalreporter.stats.values():
        for report in reports:
            for name, value in _properties(report):
                if name == "errors":
                    launches += len(value)
                    for dtype, output, units, share, where in value:
                        seen = worst.get((dtype, output), (-1.0, 0.0, ""))
                        if units > seen[0]:
                            worst[dtype, output] = (units, max(share, seen[1]), where)
                elif name == "examples":
                    examples[report.nodeid.rpartition("::")[2]] = value
    if lost := terminalreporter.config.stash[lost_key]:
        terminalreporter.section("workers that ended early")
        for line in lost:
            terminalreporter.write_line(line)
    if worst:
        terminalreporter.section("worst errors, in units of the output's rounding")
        for (dtype, output), (units, share, where) in sorted(worst.items()):
            line = f"{dtype:9} {output:6} {units:9.2f} units  {share:5.0%} of the bound  {where}"
            terminalreporter.write_line(line)
        terminalreporter.write_line(f"{launches} outputs compared element by element")
    if examples:
        terminalreporter.section("property tests")
        for test, count in sorted(examples.items()):
            terminalreporter.write_line(f"{test}: {count} examples")


def _properties(report: Any) -> Iterable[tuple[str, Any]]:
    if getattr(report, "when", None) != "call":
        return ()
    return tuple(report.user_properties)
