"""The allow-list vouches for the stub library, and nothing else slips in."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.emulator import mlx_headers
from tests.lint import allowlist, clang
from tests.lint.allowlist import Known
from tests.lint.legal import LEGAL, MIXED_MMA
from tests.lint.tokens import tokenize

STUB = clang.STUB / "metal_stdlib"


def test_every_stub_name_is_vouched_for(mlx: Known) -> None:
    """What the lint lets kernels call exists in MLX's kernel headers or in legal.py."""
    assert allowlist.check_stub(clang.find_clang(), mlx) == []


def test_stub_names_are_seen() -> None:
    """Functions, types, aliases, enumerators, members, macros: every kind is collected."""
    names, builtin = allowlist.stub_names(clang.find_clang())
    assert {
        "fma",
        "simdgroup_matrix",
        "enable_if_t",
        "mem_none",
        "thread_elements",
        "INFINITY",
        "int64_t",
    } <= names
    assert "event_t" in builtin
    assert "fma" not in builtin


@pytest.fixture
def stub_with_invention(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The stub library plus one function that Metal does not have."""
    for header in clang.STUB.iterdir():
        (tmp_path / header.name).write_text(header.read_text())
    with (tmp_path / "metal_stdlib").open("a") as file:
        file.write("namespace metal {\nfloat simd_median(float x);\n}\n")
    monkeypatch.setattr(clang, "STUB", tmp_path)
    allowlist.stub_names.cache_clear()
    yield
    allowlist.stub_names.cache_clear()


@pytest.mark.usefixtures("stub_with_invention")
def test_invented_stub_name_is_reported(mlx: Known) -> None:
    """A name that only the stub has is no evidence of anything."""
    findings = allowlist.check_stub(clang.find_clang(), mlx)
    assert [f.message.split()[0] for f in findings] == ["`simd_median`"]


def test_legal_list_is_needed(mlx: Known) -> None:
    """An entry that MLX's headers cover, or that nothing uses, goes."""
    names, _ = allowlist.stub_names(clang.find_clang())
    assert [name for name in LEGAL if name in mlx.names] == []
    assert [name for name in LEGAL if name[0] not in "[#" and name not in names] == []


def test_mixed_products_have_evidence() -> None:
    """Products of mixed types stand in legal.py, and Apple's compiler has made them for MLX."""
    tokens = [t.text for t in tokenize(STUB.read_text())]
    rows = {
        (tokens[i + 2], tokens[i + 4], tokens[i + 6])
        for i in range(len(tokens))
        if tokens[i : i + 2] == ["STUB_MMA", "("] and tokens[i - 1] != "define"
    }
    assert {row for row in rows if len(set(row)) > 1} == set(MIXED_MMA)
    metallib = mlx_headers.metallib().read_bytes()
    assert [name for name in MIXED_MMA.values() if name.encode() not in metallib] == []


def test_comments_are_no_evidence(tmp_path: Path) -> None:
    """A name in a comment or string of MLX's headers does not vouch for it."""
    header = tmp_path / "x.h"
    header.write_text(
        "// simd_median\n/* simd_median\n */\n#include <simd_median>\n"
        'constant int x = "simd_median"[0];\n'
    )
    assert "simd_median" not in allowlist.known([header]).names
