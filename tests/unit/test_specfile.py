"""Spec files: what they mean, and that every mistake is told with its place, rule and way out."""

from __future__ import annotations

import re
import time
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from codegen.diagnostics import SpecErrors
from codegen.model import KernelKind, Split
from codegen.specfile import load_folder, load_specs
from tests.unit.spec_text import ROW, errors, load, with_row

SPECS = Path(__file__).resolve().parents[2] / "specs"

VALID = """\
# Head dim 96.
D: 96

fwd:
  - {dtypes: [float16, bfloat16], BQ: 32, BK: 32, WM: 4, WN: 1, split: none}
bwd_dq:
  - {dtypes: [float16], BQ: 32, BK: 32, WM: 4, WN: 1, split: none}
bwd_dkv:
  - dtypes: [float16]
    BQ: 32
    BK: 32
    WM: 2
    WN: 2
    split: role
  - {dtypes: [float16, float32], BQ: 16, BK: 32, WM: 2, WN: 2, split: role}
"""


def test_meaning(tmp_path: Path) -> None:
    (file,) = load(tmp_path, VALID)
    assert (file.D, file.Dv) == (96, 96)
    assert [(str(k.kind), str(k.dtype), k.rank, k.location.line) for k in file.kernels] == [
        ("fwd", "float16", 0, 5),
        ("fwd", "bfloat16", 0, 5),
        ("bwd_dq", "float16", 0, 7),
        ("bwd_dkv", "float16", 0, 9),
        ("bwd_dkv", "float16", 1, 15),
        ("bwd_dkv", "float32", 0, 15),
    ]
    role = file.kernels[3]
    assert (role.kind, role.split, role.R, role.C) == (KernelKind.BWD_DKV, Split.ROLE, 16, 32)
    assert role.name == "flash_attn_bwd_dkv_float16_d96_bq32_bk32_wm2_wn2"
    assert role.spec_path == f"{tmp_path.name}/a.yaml"


def test_names(tmp_path: Path) -> None:
    row = "  - {dtypes: [float32], BQ: 64, BK: 16, WM: 4, WN: 2, split: split_d}\n"
    (file,) = load(tmp_path, f"D: 192\nDv: 128\nfwd:\n{row}")
    assert file.kernels[0].name == "flash_attn_fwd_float32_d192_dv128_bq64_bk16_wm4_wn2_sd2"


def changed(key: str, value: str) -> str:
    """Return a valid row with one value replaced."""
    return re.sub(rf"{key}: (\[.*?\]|[\w-]+)", lambda _: f"{key}: {value}", ROW)


TILE_MISTAKES = [
    ("bwd_dq", "BQ", "24", "a.yaml:3: bwd_dq.BQ=24: must be a multiple of 8*WM = 32; try 32"),
    ("bwd_dkv", "BK", "24", "a.yaml:3: bwd_dkv.BK=24: must be a multiple of 8*WM = 32; try 32"),
    ("fwd", "BQ", "0", "a.yaml:3: fwd.BQ=0: must be at least 1"),
    ("fwd", "BQ", "-32", "a.yaml:3: fwd.BQ=-32: must be at least 1"),
    (
        "fwd",
        "BQ",
        "128",
        "a.yaml:3: fwd.BQ=128: gives each of WM = 4 row groups 32 rows, must be 8 or 16; try 64",
    ),
    ("fwd", "BK", "24", "a.yaml:3: fwd.BK=24: must be one of 8, 16, 32, 64; try 16"),
    ("bwd_dkv", "BQ", "48", "a.yaml:3: bwd_dkv.BQ=48: must be one of 8, 16, 32, 64; try 32"),
    ("fwd", "WM", "16", "a.yaml:3: fwd.WM=16: WM*WN = 16 simdgroups, at most 8; try 8"),
    ("fwd", "WM", "3", "a.yaml:3: fwd.WM=3: no BQ fits 3 row groups; try WM: 4"),
    ("fwd", "WN", "2", "a.yaml:3: fwd.WN=2: must be 1 with split: none; try 1"),
    (
        "fwd",
        "split",
        "role",
        "a.yaml:3: fwd.split=role: fwd has no such kernel; use one of none, split_d",
    ),
    ("bwd_dq", "split", "role", "bwd_dq has no such kernel; use one of none"),
    (
        "fwd",
        "split",
        "half",
        "a.yaml:3: fwd.split=half: must be one of none, role, split_d, role_split_d",
    ),
    ("fwd", "BQ", "'32'", "fwd.BQ=32: is quoted text, must be a whole number; remove the quotes"),
    ("fwd", "BQ", "32.0", "a.yaml:3: fwd.BQ=32.0: must be a whole number; write 32"),
    ("fwd", "BQ", "032", "fwd.BQ=032: has a leading zero, which YAML reads as octal"),
    ("fwd", "BQ", "0x20", "fwd.BQ=0x20: must be a whole number in plain decimal digits"),
    ("fwd", "BQ", "1_6", "fwd.BQ=1_6: must be a whole number in plain decimal digits"),
    ("fwd", "BQ", "3e1", "fwd.BQ=3e1: must be a whole number in plain decimal digits"),
    ("fwd", "BQ", "9999999999", "must be a whole number in plain decimal digits"),
    ("fwd", "BQ", "yes", "fwd.BQ=yes: is a boolean to YAML; must be a whole number"),
    ("fwd", "BQ", "~", "fwd.BQ=~: has no value (null); must be a whole number"),
    ("fwd", "BQ", "", "fwd.BQ=: has no value (null); must be a whole number"),
    ("fwd", "BQ", "[32]", "a.yaml:3: fwd.BQ: is a list, must be a whole number"),
    ("fwd", "BQ", "{x: 1}", "a.yaml:3: fwd.BQ: is a mapping, must be a whole number"),
    ("fwd", "split", "off", "fwd.split=off: is a boolean to YAML; must be one of none"),
    ("fwd", "split", "null", "fwd.split=null: has no value (null); must be one of none"),
    ("fwd", "split", "[none]", "a.yaml:3: fwd.split: is a list, must be one of none"),
    ("fwd", "dtypes", "float16", "fwd.dtypes=float16: must be a list of some of float16, bfloat16"),
    ("fwd", "dtypes", "[]", "fwd.dtypes: is an empty list; must be a list of some of float16"),
    ("fwd", "dtypes", "[half]", "fwd.dtypes=half: must be one of float16, bfloat16, float32"),
    ("fwd", "dtypes", "[on, off]", "fwd.dtypes=off: is a boolean to YAML; must be one of float16"),
    ("fwd", "dtypes", "[float16, float16]", "fwd.dtypes: float16 is listed twice; keep one"),
    ("fwd", "split", r'"a\nb"', r"a.yaml:3: fwd.split=a\nb: must be one of none"),
    ("fwd", "dtypes", "[none]", "fwd.dtypes=none: must be one of float16, bfloat16, float32"),
]


@pytest.mark.parametrize(("kind", "key", "value", "message"), TILE_MISTAKES)
def test_tile_mistake(tmp_path: Path, kind: str, key: str, value: str, message: str) -> None:
    found = errors(tmp_path, with_row(changed(key, value), kind))
    assert any(message in line for line in found), found


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "a.yaml:1: is empty; must be a mapping with D and fwd, bwd_dq, bwd_dkv"),
        ("# only a comment\n", "a.yaml:1: is empty; must be a mapping"),
        ("---\n", "a.yaml:1: is empty; must be a mapping"),
        ("- D: 96\n", "a.yaml:1: is a list; must be a mapping"),
        ("96\n", "a.yaml:1: is a single value; must be a mapping"),
        ("D: 96\n", "a.yaml:1: has no kernels; give some of fwd, bwd_dq, bwd_dkv"),
        (with_row(ROW, head="# no D"), "a.yaml:2: D: is missing"),
        (with_row(ROW, head="D:"), "a.yaml:1: D=: has no value (null); must be a whole number"),
        (with_row(ROW, head="D: 100"), "D=100: must be a multiple of 8 up to 256; try 96"),
        (with_row(ROW, head="D: 512"), "D=512: must be a multiple of 8 up to 256; try 256"),
        (with_row(ROW, head="D: 96\nDv: 3"), "Dv=3: must be a multiple of 8 up to 256; try 8"),
        ("D: 96\nfwd:\n", "a.yaml:2: fwd=: has no value (null); must be a list of tiles"),
        ("D: 96\nfwd: []\n", "a.yaml:2: fwd: is an empty list"),
        (f"D: 96\nfwd: {ROW}\n", "a.yaml:2: fwd: is a mapping, must be a list of tiles"),
        ("D: 96\nfwd:\n  - 32\n", "a.yaml:3: fwd=32: must be a mapping with dtypes, BQ"),
        ("D: 96\nfwd:\n  -\n", "fwd=: has no value (null); must be a mapping with dtypes, BQ"),
        (with_row(ROW, head="D: 96\ncausual: true"), "a.yaml:2: causual: unknown key; known are D"),
        (with_row(ROW[:-1] + ", causual: true}"), "a.yaml:3: fwd.causual: unknown key; known are"),
        (with_row(ROW, head="D: 96\non: 1"), "a.yaml:2: on: unknown key"),
        (with_row(ROW.replace(", WM: 4", "")), "a.yaml:3: fwd.WM: is missing"),
        (with_row(ROW, head="D: 64\nD: 96"), "a.yaml:2: D: given twice, first on line 1; keep one"),
        (with_row(ROW[:-1] + ", WM: 8}"), "a.yaml:3: fwd.WM: given twice, first on line 3"),
        ("D: &d 96\nDv: *d\n", "a.yaml:1: &d: anchors are refused; write the value out"),
        ("D: 96\nDv: *d\n", "a.yaml:2: *d: aliases are refused; write the value out"),
        ("D: 96\n<<: {Dv: 64}\n", "a.yaml:2: <<: merge keys are not allowed; write the keys out"),
        ("D: !!int '96'\n", "a.yaml:1: tag:yaml.org,2002:int: tags are not allowed"),
        ("D: !!python/name:os.system 96\n", "a.yaml:1: tag:yaml.org,2002:python/name:os.system"),
        ("D: 96\n---\nD: 64\n", "a.yaml:2: a second document; a spec file holds one"),
        ("D: " + "[" * 3000 + "]" * 3000, "a.yaml:1: nested deeper than 8"),
        ("? [D]\n: 96\n", "a.yaml:1: ?: a key must be a plain name"),
        ("D: 96\n\tfwd: 1\n", "a.yaml:2: not YAML: while scanning"),
        ("D: {96\n", "a.yaml:2: not YAML: while parsing a flow mapping"),
        ("D: 96\nx: \x07\n", "a.yaml:2: character #x0007 is not allowed in YAML"),
        (b"D: 96\n# caf\xe9\n", "a.yaml:2: byte 0xe9 is not UTF-8; save the file as UTF-8"),
        ("D: 96\nfwd: x\nfwd: y\n", "a.yaml:3: fwd: given twice"),
    ],
)
def test_file_mistake(tmp_path: Path, text: str | bytes, message: str) -> None:
    found = errors(tmp_path, text)
    assert any(message in line for line in found), found


@pytest.mark.parametrize(
    ("kind", "head", "row", "message"),
    [
        (
            "bwd_dkv",
            "D: 256",
            "{dtypes: [float32], BQ: 16, BK: 32, WM: 4, WN: 2, split: role}",
            (
                "a.yaml:3: bwd_dkv: float32 needs 35,456 B of threadgroup memory, "
                "at most 32,768; try BQ: 8"
            ),
        ),
        (
            "fwd",
            "D: 256",
            "{dtypes: [float32], BQ: 64, BK: 16, WM: 4, WN: 1, split: none}",
            (
                "a.yaml:3: fwd: float32 keeps 640 B live per lane, at most 512 "
                "(registers would spill); try BQ: 32"
            ),
        ),
        (
            "bwd_dkv",
            "D: 256",
            "{dtypes: [float16], BQ: 16, BK: 32, WM: 4, WN: 1, split: none}",
            "(registers would spill); no smaller tile fits; try another split",
        ),
        (
            "fwd",
            "D: 72",
            "{dtypes: [float16], BQ: 64, BK: 16, WM: 4, WN: 2, split: split_d}",
            (
                "a.yaml:3: fwd.split=split_d: split_d needs D and Dv to be multiples of 8*2 = 16, "
                "here 72 and 72; try split: none"
            ),
        ),
    ],
)
def test_tile_that_cannot_run(tmp_path: Path, kind: str, head: str, row: str, message: str) -> None:
    found = errors(tmp_path, with_row(row, kind, head))
    assert any(message in line for line in found), found


def test_line_of_the_key(tmp_path: Path) -> None:
    """In block style the error points at the key's own line, not at the row's."""
    text = VALID.replace("    BK: 32\n", "    BK: 24\n")
    (found,) = errors(tmp_path, text)
    assert found == "a.yaml:11: bwd_dkv.BK=24: must be a multiple of 8*WM = 16; try 16"


def test_rules_apply_beside_unreadable_values(tmp_path: Path) -> None:
    """What cannot be read hides no other mistake of its row, and makes up none."""
    row = "{dtypes: [half], BQ: 24, BK: 033, WM: 4, WN: 2, split: off}"
    splits = ", ".join(map(str, Split))
    assert errors(tmp_path, with_row(row, head="D: 97")) == [
        "a.yaml:1: D=97: must be a multiple of 8 up to 256; try 96",
        "a.yaml:3: fwd.BK=033: has a leading zero, which YAML reads as octal; write it without",
        "a.yaml:3: fwd.BQ=24: must be a multiple of 8*WM = 32; try 32",
        "a.yaml:3: fwd.dtypes=half: must be one of float16, bfloat16, float32",
        f"a.yaml:3: fwd.split=off: is a boolean to YAML; must be one of {splits}",
    ]
    for key in ("dtypes", "BQ", "BK", "WM", "WN", "split"):
        found = errors(tmp_path, with_row(changed(key, "x")))
        assert len(found) == 1, found
        assert found[0].startswith(f"a.yaml:3: fwd.{key}=x: ")


def test_all_mistakes_of_all_files(tmp_path: Path) -> None:
    first = VALID.replace("BQ: 32, BK: 32", "BQ: 24, BK: 33").replace("D: 96", "D: 96\nx: 1")
    second = "D: 64\nfwd: 7\n"
    found = errors(tmp_path, first, second)
    places = [line.split(": ")[:2] for line in found]
    assert places == [
        ["a.yaml:3", "x"],
        ["a.yaml:6", "fwd.BK=33"],
        ["a.yaml:6", "fwd.BQ=24"],
        ["a.yaml:8", "bwd_dq.BK=33"],
        ["a.yaml:8", "bwd_dq.BQ=24"],
        ["b.yaml:2", "fwd=7"],
    ]


def test_name_clash(tmp_path: Path) -> None:
    (found,) = errors(tmp_path, with_row(f"{ROW}\n  - {ROW}"))
    name = "flash_attn_fwd_float16_d96_bq32_bk32_wm4_wn1"
    assert re.fullmatch(rf"a.yaml:4: fwd: makes {name}, as .*a.yaml:3 does; remove one", found)


def test_head_dim_in_two_files(tmp_path: Path) -> None:
    found = errors(tmp_path, with_row(ROW), with_row(ROW.replace("32", "64"), "fwd"))
    assert any(
        re.fullmatch(r"b.yaml:1: D=96: .*a.yaml:1 has D=96, Dv=96 too; keep one file for both", f)
        for f in found
    ), found


def test_folder(tmp_path: Path) -> None:
    """A folder without specs, or with one that would be passed over, is a mistake."""
    with pytest.raises(SpecErrors, match=r"holds no \*\.yaml"):
        load_folder(tmp_path)
    load(tmp_path, VALID)
    assert len(load_folder(tmp_path)) == 1
    (tmp_path / "d64.yml").write_text(VALID)
    with pytest.raises(SpecErrors, match=r"d64\.yml:1: spec files end in \.yaml; rename it"):
        load_folder(tmp_path)


def test_unreadable(tmp_path: Path) -> None:
    with pytest.raises(SpecErrors, match=r"a\.yaml:1: cannot be read: No such file"):
        load_specs([tmp_path / "a.yaml"])


def test_nested_anchors_do_not_explode(tmp_path: Path) -> None:
    """18 levels of ten references each would be 10**18 values."""
    lines = ["a0: &a0 [x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 19)]
    tracemalloc.start()
    begin = time.process_time()
    try:
        found = errors(tmp_path, "\n".join(lines))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(found) == 19 + 18  # each anchor once; a line's equal references once
    assert time.process_time() - begin < 2
    assert peak < 20_000_000


def test_non_ascii_comment_and_line_ends(tmp_path: Path) -> None:
    plain = load(tmp_path, VALID)
    unix = VALID.replace("Head dim 96.", "Kopfmaß 96 – größer")
    assert load(tmp_path, unix) == plain
    assert load(tmp_path, unix.replace("\n", "\r\n").encode()) == plain


MUTATED_VALUES = [
    *("0", "1", "2", "3", "4", "7", "8", "16", "24", "32", "64", "-8", "256", "4096"),
    *("99999999999", "'32'", "32.0", "032", "0x20", "yes", "no", "null", "~", "", "text"),
    *("none", "role", "split_d", "role_split_d", "[float32]", "[float16, on]", "[]", "{}", "[1]"),
    *("&x 1", "*x", "!!a 1", "|", "'", '"', "- 1", "a: b", "? x", "%", "@", "`", "\t", "é"),
    *("\u2028", "#"),
]


# Every example writes the same file of its test's folder anew.
ONE_FOLDER = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@given(
    line=st.integers(0, VALID.count("\n") - 1),
    pick=st.integers(0, 7),
    value=st.sampled_from(MUTATED_VALUES) | st.text(max_size=6),
)
@settings(ONE_FOLDER, max_examples=300)
def test_mutation(tmp_path: Path, line: int, pick: int, value: str) -> None:
    """One value replaced by anything: the file is accepted, or the error has a file and line."""
    lines = VALID.split("\n")
    values = list(re.finditer(r"(?<=: )(\[[^]]*\]|[^,}\[]+)", lines[line]))
    if not values:
        lines[line] = value
    else:
        match = values[pick % len(values)]
        lines[line] = lines[line][: match.start()] + value + lines[line][match.end() :]
    check_accepted_or_placed(tmp_path, "\n".join(lines))


@given(
    line=st.integers(0, VALID.count("\n") - 1), key=st.sampled_from(["BQ", "x", "on", "D", "<<"])
)
@settings(ONE_FOLDER)
def test_mutated_key(tmp_path: Path, line: int, key: str) -> None:
    lines = VALID.split("\n")
    lines[line] = re.sub(r"\w+(?=:)", key, lines[line], count=1)
    check_accepted_or_placed(tmp_path, "\n".join(lines))


def check_accepted_or_placed(folder: Path, text: str) -> None:
    path = folder / "a.yaml"
    path.write_text(text, encoding="utf-8")
    try:
        files = load_specs([path])
    except SpecErrors as error:
        diagnostics = error.diagnostics
    else:
        assert len(files[0].kernels) > 0
        return
    assert len(diagnostics) > 0
    for diagnostic in diagnostics:
        assert diagnostic.location.path == path.as_posix()
        assert 1 <= diagnostic.location.line <= text.count("\n") + 2
        assert "\n" not in str(diagnostic)
        assert diagnostic.message


def test_the_projects_specs() -> None:
    """Every head dim has a default of every kind and dtype."""
    files = load_specs(sorted(SPECS.glob("*.yaml")))
    assert {(f.D, f.Dv) for f in files} == {
        *((D, D) for D in (64, 72, 80, 96, 112, 128, 256)),
        (192, 128),
    }
    for file in files:
        defaults = {(str(k.kind), str(k.dtype)) for k in file.kernels if k.rank == 0}
        assert defaults == {
            (kind, dtype)
            for kind in ("fwd", "bwd_dq", "bwd_dkv")
            for dtype in ("float16", "bfloat16", "float32")
        }, file.location
