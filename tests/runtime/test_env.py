"""Environment variables: strict values, precedence, and that they reach the route."""

from __future__ import annotations

import os
from pathlib import Path

import mlx.core as mx
import pytest

import flashrt
from flashrt import _env

Q = mx.zeros((1, 2, 8, 16))


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable of the developer's own shell takes part."""
    for name in (*_env.NAMES, *(n for n in os.environ if n.startswith("FLASHRT_"))):
        monkeypatch.delenv(name, raising=False)
    _env._parse.cache_clear()


def route() -> str:
    return str(flashrt.explain(Q, Q, Q)["route"])


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("FLASHRT_IMPL", "metal", "auto, kernel, mlx, reference"),
        ("FLASHRT_IMPL", "", "auto, kernel, mlx, reference"),
        ("FLASHRT_VJP_MODE", "Fused", "auto, fused, unfused"),
        ("MLX_SDPA_VJP_MODE", "yes", "auto, fused, unfused"),
        ("FLASHRT_LONG_L_THRESHOLD", "-1", "an integer >= 0"),
        ("FLASHRT_LONG_L_THRESHOLD", "4k", "an integer >= 0"),
        ("MLX_SDPA_VJP_LONG_L_THRESHOLD", "1e3", "an integer >= 0"),
        ("FLASHRT_ATTENTION_BYTES_THRESHOLD", "1.5", "an integer >= 0"),
        ("FLASHRT_METALLIB_DIR", "no/such/folder", "an existing directory"),
        ("FLASHRT_VERBOSE", "true", "0 or 1"),
    ],
)
def test_bad_values(name: str, value: str, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The call refuses, naming variable, value and what is supported."""
    monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=f"{name}={value!r}.*{expected}"):
        flashrt.attention(Q, Q, Q)


def test_unknown_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """A misspelt variable would otherwise do nothing, silently."""
    monkeypatch.setenv("FLASHRT_IMLP", "kernel")
    with pytest.raises(ValueError, match=r"FLASHRT_IMLP.*FLASHRT_IMPL"):
        flashrt.attention(Q, Q, Q)


@pytest.mark.parametrize(
    ("value", "expected"),
    [("auto", "kernel"), ("kernel", "kernel"), ("mlx", "mlx"), ("reference", "composed")],
)
def test_impl(value: str, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """FLASHRT_IMPL stands in for impl='auto'."""
    monkeypatch.setenv("FLASHRT_IMPL", value)
    assert route() == expected


def test_argument_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Anything but "auto" in the call wins over the environment."""
    monkeypatch.setenv("FLASHRT_IMPL", "mlx")
    assert flashrt.explain(Q, Q, Q, impl="reference")["route"] == "composed"
    assert flashrt.explain(Q, Q, Q, impl="kernel")["route"] == "kernel"


def test_impl_is_strict_from_the_environment_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """What FLASHRT_IMPL asks for runs or raises, and the message says who asked."""
    monkeypatch.setenv("FLASHRT_IMPL", "mlx")
    with pytest.raises(flashrt.UnsupportedError, match=r"FLASHRT_IMPL=mlx.*softcap"):
        flashrt.attention(Q, Q, Q, softcap=3.0)


def test_alias_and_its_winner(monkeypatch: pytest.MonkeyPatch) -> None:
    """FLASHRT_VJP_MODE wins over MLX_SDPA_VJP_MODE, which counts alone."""
    monkeypatch.setenv("MLX_SDPA_VJP_MODE", "unfused")
    assert route() == "mlx"
    assert flashrt.explain(Q, Q, Q, softcap=1.0)["route"] == "composed"
    monkeypatch.setenv("FLASHRT_VJP_MODE", "fused")
    assert route() == "kernel"


def test_verbose_says_each_route_once(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """One line per shape and reason, on standard error."""
    q = mx.zeros((1, 2, 11, 16))
    flashrt.attention(q, q, q)
    monkeypatch.setenv("FLASHRT_VERBOSE", "1")
    for _ in range(3):
        flashrt.attention(q, q, q)
    said = capfd.readouterr().err.splitlines()
    assert len(said) == 1
    assert said[0].startswith("flashrt: kernel for B=1 H=2 Hk=2 qL=11 kL=11 D=16 Dv=16")


def test_unknown_name_while_running(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found at the next call, whatever was looked up before, and gone with the variable."""
    route()
    monkeypatch.setenv("FLASHRT_IMPLL", "kernel")
    with pytest.raises(ValueError, match="FLASHRT_IMPLL is not one that flashrt reads"):
        route()
    monkeypatch.delenv("FLASHRT_IMPLL")
    route()


def test_bytes_that_are_no_text(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Read as os.environ reads them: a folder may have such a name."""
    odd = os.fsencode(tmp_path) + b"/\xff"
    monkeypatch.setenv("FLASHRT_METALLIB_DIR", os.fsdecode(odd))
    with pytest.raises(ValueError, match="expected an existing directory"):
        route()
    os.mkdir(odd)  # noqa: PTH102
    monkeypatch.setenv("FLASHRT_METALLIB_DIR", os.fsdecode(odd + b"/"))
    assert _env.settings().metallib_dir == os.fsdecode(odd + b"/")


def test_set_while_running() -> None:
    """os.environ works after import, both ways."""
    assert route() == "kernel"
    os.environ["FLASHRT_IMPL"] = "reference"
    try:
        assert route() == "composed"
    finally:
        del os.environ["FLASHRT_IMPL"]
    assert route() == "kernel"
