"""The commands that users run, and the package as it is installed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import mlx.core as mx
import pytest

import flashrt
from flashrt import _C, _version

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = Path(flashrt.__file__).parent


def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run Python with the package that the tests use."""
    given = {n: v for n, v in os.environ.items() if not n.startswith("FLASHRT_")}
    given["PYTHONPATH"] = os.pathsep.join([str(PACKAGE.parent), given.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, *arguments], env=given | variables, capture_output=True, text=True
    )


def test_doctor_finds_nothing() -> None:
    """Versions, devices and a computed check."""
    done = run("-m", "flashrt.doctor")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"built for {_version.MLX_VERSION}" in done.stdout
    assert re.search(r"cpu +\w+ kernels, \d+ threads", done.stdout)
    assert "no problem found" in done.stdout


def test_doctor_names_what_is_wrong() -> None:
    """A bad variable is a problem, and the exit code says so."""
    done = run("-m", "flashrt.doctor", FLASHRT_VERBOSE="loud")
    assert done.returncode == 1
    assert "problem: environment variable FLASHRT_VERBOSE='loud'" in done.stdout


@pytest.mark.parametrize("broken", ["q", "k", "v"])
def test_doctor_sees_gradients_that_are_not_numbers(
    broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NaN loses every comparison, so a plain maximum would drop it."""
    from flashrt import doctor

    real = flashrt.attention

    def attention(*qkv: mx.array, impl: str, causal: bool) -> mx.array:
        o = real(*qkv, impl=impl, causal=causal)
        at_zero = qkv["qkv".index(broken)] * 0
        return o + mx.sqrt(mx.abs(at_zero)).sum() if impl == "auto" else o

    monkeypatch.setattr(flashrt, "attention", attention)
    problems: list[str] = []
    doctor._check(problems)
    assert len(problems) == 1
    assert "differ from the reference" in problems[0]


@pytest.mark.parametrize("dim", ["32", "1"])
def test_bench_op_prints_time_and_memory(dim: str) -> None:
    """A small run, from text to table; one column has no pair to rotate."""
    done = run(
        *("-m", "flashrt.bench", "op", "--length", "96", "--rounds", "1"),
        *("--text", str(ROOT / "pyproject.toml"), "--head-dim", dim),
    )
    assert done.returncode == 0, done.stderr
    assert "text pyproject.toml" in done.stdout
    for row in ("forward, ms", "gradients of q, k, v, ms", "peak memory above the inputs, MiB"):
        assert re.search(rf"{row} +[\d.]+ +[\d.]+ +([\d.]+|inf)x", done.stdout), row


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--heads", "3"], "--heads 3 is not a multiple of --kv-heads 2"),
        (["--text", "nowhere.txt"], "nowhere.txt is not a file"),
        (["--text", os.devnull], "is not a file with something in it"),
        (["--length", "0"], "at least 1"),
    ],
)
def test_bench_op_refuses(arguments: list[str], message: str) -> None:
    """With a line that says what to change."""
    done = run("-m", "flashrt.bench", "op", *arguments)
    assert done.returncode == 2
    assert message in done.stderr


def test_bench_lists_its_measurements() -> None:
    """Without a name it lists them; a wrong one is an error."""
    listed = run("-m", "flashrt.bench")
    assert (listed.returncode, "op" in listed.stdout) == (0, True)
    assert run("-m", "flashrt.bench", "nothing").returncode == 2


def test_versions_are_pinned_alike() -> None:
    """pyproject.toml, CMakeLists.txt and the package name one mlx and one nanobind."""
    project = (ROOT / "pyproject.toml").read_text()
    cmake = (ROOT / "CMakeLists.txt").read_text()
    pins = re.findall(r'"mlx(?:\[cpu\])?==([\d.]+)', project)
    assert len(pins) == 4
    assert set(pins) == {_version.MLX_VERSION}
    assert f"MLX_VERSION VERSION_EQUAL {_version.MLX_VERSION}" in cmake
    (nanobind,) = set(re.findall(r'"nanobind==([\d.]+)"', project))
    assert f"find_package(nanobind {nanobind} EXACT" in cmake
    assert re.search(rf'^version = "{re.escape(flashrt.__version__)}"$', project, re.MULTILINE)


def test_another_mlx_is_an_import_error() -> None:
    """Both versions are named, before the extension is loaded and by the extension itself."""
    pretend = "import mlx.core as mx; mx.__version__ = '9.9.9'; import flashrt"
    done = run("-c", pretend)
    assert done.returncode != 0
    assert f"is built for mlx {_version.MLX_VERSION} and found mlx 9.9.9" in done.stderr


def test_the_extension_joins_mlx_alone() -> None:
    """Loaded without the package, beside mlx, the module takes mlx's arrays."""
    module = str(_C.__file__)
    load = (
        "import importlib.util, mlx.core, sys\n"
        f"spec = importlib.util.spec_from_file_location('_C', {module!r})\n"
        "loaded = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(loaded)\n"
        "a = mlx.core.ones((1, 1, 2, 4))\n"
        "print(loaded.attention(a, a, a, scale=1.0)[0].shape)\n"
    )
    done = run("-c", load)
    assert done.returncode == 0, done.stderr
    assert "(1, 1, 2, 4)" in done.stdout


def test_import_leaves_nothing_evaluated() -> None:
    """Importing starts no thread, touches no array and needs no numpy."""
    code = (
        "import sys, threading, mlx.core, flashrt\n"
        "assert 'numpy' not in sys.modules\n"
        "assert threading.active_count() == 1\n"
        "assert mlx.core.get_active_memory() == 0\n"
    )
    done = run("-c", code)
    assert done.returncode == 0, done.stderr
