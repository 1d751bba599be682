"""What is compiled when, and that processes which build at once do not meet."""

from __future__ import annotations

import multiprocessing
import os
import platform
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests import emulator
from tests.emulator import compile as compile_module
from tests.emulator import toolchain
from tests.emulator.rewrite import rewrite

pytestmark = pytest.mark.skipif(
    emulator.unsupported() is not None, reason=str(emulator.unsupported())
)

KERNEL = """\
#include <metal_stdlib>
#include "lib/value.h"
kernel void {name}(device int* out [[buffer(0)]]) {{ out[0] = value() + {add}; }}
"""


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache for the whole file: the runtime is compiled once."""
    return tmp_path_factory.mktemp("cache") / "flashrt"


@pytest.fixture
def project(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Two kernels that share a header."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache.parent))
    toolchain.cache_dir.cache_clear()
    (tmp_path / "include" / "lib").mkdir(parents=True)
    write_header(tmp_path, 40)
    for name, add in (("one", 1), ("two", 2)):
        (tmp_path / f"{name}.metal").write_text(KERNEL.format(name=name, add=add))
    yield tmp_path
    toolchain.cache_dir.cache_clear()


def write_header(project: Path, value: int) -> None:
    text = f"#pragma once\ninline int value() {{ return {value}; }}\n"
    (project / "include" / "lib" / "value.h").write_text(text)


def build(project: Path, **options: object) -> emulator.Library:
    sources = [project / "one.metal", project / "two.metal"]
    return emulator.build(sources, include=[project / "include"], **options)


def result(library: emulator.Library, kernel: str) -> int:
    out = np.zeros(1, np.int32)
    library.launch(kernel, grid=(1, 1, 1), group=(1, 1, 1), buffers={0: out})
    return int(out[0])


def libraries(cache: Path) -> set[str]:
    return {p.name for p in (cache / "emulator").glob("[!l]*_fast_*.so")}


def test_a_changed_source_is_compiled_alone(project: Path, cache: Path) -> None:
    before = libraries(cache)
    assert [result(build(project), k) for k in ("one", "two")] == [41, 42]
    assert len(libraries(cache) - before) == 2
    before = libraries(cache)
    (project / "two.metal").write_text(KERNEL.format(name="two", add=3))
    assert [result(build(project), k) for k in ("one", "two")] == [41, 43]
    assert len(libraries(cache) - before) == 1


def test_a_changed_header_or_define_compiles_again(project: Path, cache: Path) -> None:
    build(project)
    write_header(project, 50)
    assert [result(build(project), k) for k in ("one", "two")] == [51, 52]
    before = libraries(cache)
    build(project, defines={"UNUSED": 1})
    assert len(libraries(cache) - before) == 2


def test_an_unchanged_project_compiles_nothing(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(project)

    def refuse(*command: object) -> str:
        raise AssertionError(command)

    monkeypatch.setattr(compile_module, "_clang", refuse)
    assert result(build(project), "one") == 41


def test_the_same_text_elsewhere_is_not_compiled_again(project: Path, cache: Path) -> None:
    build(project)
    before = libraries(cache)
    shutil.copytree(project, project / "copy")
    assert result(build(project / "copy"), "one") == 41
    assert libraries(cache) == before


def test_what_was_long_not_used_is_forgotten(project: Path, cache: Path) -> None:
    build(project)
    old = cache / "emulator" / "old_fast_0123456789abcdef.so"
    old.touch()
    os.utime(old, (0, 0))
    before = libraries(cache) - {old.name}
    (project / "one.metal").write_text(KERNEL.format(name="one", add=77))
    assert result(build(project), "one") == 117
    assert not old.exists()
    assert before < libraries(cache), "what was used of late is kept"


def _build_in_process(project: Path, start: object, answers: object) -> None:
    start.wait()
    library = build(project)
    answers.put([result(library, "one"), result(library, "two")])


def test_processes_may_build_the_same_sources_at_once(project: Path, cache: Path) -> None:
    context = multiprocessing.get_context("spawn")
    start, answers = context.Event(), context.Queue()
    workers = [
        context.Process(target=_build_in_process, args=(project, start, answers)) for _ in range(3)
    ]
    for worker in workers:
        worker.start()
    start.set()
    assert [answers.get(timeout=120) for _ in workers] == [[41, 42]] * 3
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    assert not list((cache / "emulator").glob("build-*")), "nothing half-made is left"


def test_two_sources_may_not_define_one_kernel(project: Path) -> None:
    (project / "two.metal").write_text(KERNEL.format(name="one", add=2))
    with pytest.raises(emulator.EmulatorError, match="kernel one is in two sources"):
        build(project)


def test_unknown_kernel_and_mode_are_named(project: Path) -> None:
    with pytest.raises(emulator.EmulatorError, match=r"no kernel 'three'; .*'one', 'two'"):
        build(project).launch("three", grid=(1, 1, 1), group=(1, 1, 1), buffers={})
    with pytest.raises(ValueError, match="mode 'slow': one of fast, trace, asan"):
        build(project, mode="slow")


def test_compile_errors_name_the_source(project: Path) -> None:
    (project / "two.metal").write_text(KERNEL.format(name="two", add="nothing"))
    with pytest.raises(emulator.ToolchainError, match=r"two\.metal:3:\d+: error: .*'nothing'"):
        build(project)


@pytest.mark.parametrize("mode", ["trace", "asan"])
def test_names_may_have_spaces(
    mode: toolchain.Mode, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLASHRT_CACHE_DIR", str(cache / "a cache"))
    toolchain.cache_dir.cache_clear()
    folder = tmp_path / "a checkout"
    (folder / "include" / "lib").mkdir(parents=True)
    write_header(folder, 40)
    (folder / "one.metal").write_text(KERNEL.format(name="one", add="out[1]"))
    library = emulator.build([folder / "one.metal"], mode=mode, include=[folder / "include"])
    out = np.full(2, 2, np.int32)
    arguments = {"grid": (1, 1, 1), "group": (1, 1, 1)}
    library.launch("one", **arguments, buffers={0: out})
    assert out.tolist() == [42, 2]
    with pytest.raises(emulator.EmulatorError, match=r"one\.metal:3"):
        library.launch("one", **arguments, buffers={0: out[:1].copy()})
    toolchain.cache_dir.cache_clear()


def test_lines_stay_where_they_are() -> None:
    text = (
        "constant bool on\n  [[function_constant(3)]];\n"
        "[[kernel,\n max_total_threads_per_threadgroup(32)]]\nvoid f(device int* o [[buffer(0)]],\n"
        "  device int* x [[buffer(1),\n function_constant(on)]]) {\n"
        "  threadgroup float\n    s[2]\n    [3];\n  o[0] = 1; // line 11\n}\n"
        'template [[host_name("g" "h")]] [[kernel]]\ndecltype(t<1>) t<1>;\nint last;\n'
    )
    source = "template <int N> [[kernel]] void t(device int* o [[buffer(0)]]) {}\n" + text
    lines = rewrite(source).splitlines()
    for number, line in enumerate(source.splitlines()):
        if "line 11" in line or "int last" in line:
            assert line in lines[number]
    assert re.search(r'"gh"', "\n".join(lines))


def test_other_machines_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert toolchain.unsupported() is None
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    toolchain.compiler.cache_clear()
    with pytest.raises(emulator.ToolchainError, match="Linux on x86-64 only, this is Linux on arm"):
        toolchain.compiler()
