"""The lint accepts good MSL, and rejects each deliberate mistake for its own reason."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.lint import run
from tests.lint.allowlist import Known

HERE = Path(__file__).parent
MISTAKES = sorted((HERE / "mistakes").glob("*.metal"))
EXPECTATION = re.compile(r"// expect (?P<rule>[\w-]+): ?(?P<text>.*)$")


@pytest.mark.parametrize("path", MISTAKES, ids=lambda path: path.stem)
def test_mistake_is_rejected(path: Path, mlx: Known) -> None:
    """Each marked line, and no other, is reported under the rule and with the words of its mark."""
    expected = {
        number: match
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if (match := EXPECTATION.search(line))
    }
    assert expected, f"{path.name} marks no line"
    found = run.check(run.Sources((path,)), mlx, HERE)
    listing = "\n".join(map(str, found))
    for number, mark in expected.items():
        assert any(
            f.line == number and f.rule == mark["rule"] and mark["text"] in f.message for f in found
        ), f"line {number} should give {mark['rule']}: {mark['text']}\nfound:\n{listing}"
    assert {f.line for f in found} <= set(expected), f"more than the marked lines:\n{listing}"


def test_good_code_passes(mlx: Known) -> None:
    """The constructs that kernels are made of give no finding."""
    assert run.check(run.Sources((HERE / "good.metal",)), mlx, HERE) == []
