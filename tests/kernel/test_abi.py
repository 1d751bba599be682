"""The parsed ABI against a compiler's view of the same header."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

from tests.kernel.abi import HEADER, abi


def test_parsed_structs_have_the_compilers_sizes_and_offsets(tmp_path: Path) -> None:
    structs = abi().structs
    assert {"AttnParams", "DeltaParams", "ReduceParams", "MergeParams", "PackParams"} <= set(
        structs
    )
    lines, expected = [], []
    for name, struct in structs.items():
        lines.append(f'std::printf("%zu\\n", sizeof({name}));')
        expected.append(ctypes.sizeof(struct))
        for member, *_ in struct._fields_:
            lines.append(f'std::printf("%zu\\n", offsetof({name}, {member}));')
            expected.append(getattr(struct, member).offset)
    for slot, value in abi().slots.items():
        lines.append(f'std::printf("%d\\n", int({slot}));')
        expected.append(value)
    constants = 'std::printf("%d\\n%s\\n", index, #name);'
    source = tmp_path / "abi.cpp"
    source.write_text(
        "#include <cstdio>\n"
        f'#include "{HEADER}"\n'
        "using namespace flashrt;\n"
        "int main() {\n"
        + "\n".join(lines)
        + f"\n#define PRINT(index, name) {constants}\n"
        + "FLASHRT_FUNCTION_CONSTANTS(PRINT)\n}\n"
    )
    compiler = shutil.which("c++") or shutil.which("clang++") or "c++"
    program = tmp_path / "abi"
    subprocess.run([compiler, "-std=c++17", str(source), "-o", str(program)], check=True)
    out = subprocess.run([str(program)], check=True, capture_output=True, text=True).stdout.split()
    assert [int(x) for x in out[: len(expected)]] == expected
    rest = out[len(expected) :]
    assert dict(zip(rest[1::2], map(int, rest[::2]), strict=True)) == abi().constants
