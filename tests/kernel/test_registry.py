"""The registry, the files and what the generator lists are one set."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.kernel.abi import ROOT
from tests.kernel.launch import library
from tests.kernel.registry import GENERATED, TILED, Kernel, kernels


def test_registry_files_and_generator_agree() -> None:
    names = [k.name for k in kernels()]
    assert len(set(names)) == len(names)
    assert set(names) == {path.stem for path in GENERATED.glob("*.metal")}
    command = [sys.executable, "-m", "codegen", "--list", "--json"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert {row["name"] for row in json.loads(listed)} == set(names)


def test_every_head_dim_has_every_kernel_in_every_dtype() -> None:
    dims = {(k.d, k.dv) for k in kernels() if k.kind in TILED}
    assert dims >= {(d, d) for d in (64, 72, 80, 96, 112, 128, 256)} | {(192, 128)}
    defaults = [(k.kind, k.dtype, k.d, k.dv) for k in kernels() if k.rank == 0 and k.kind in TILED]
    assert len(set(defaults)) == len(defaults)
    dtypes = ("float16", "bfloat16", "float32")
    assert set(defaults) == {(kind, t, *d) for kind in TILED for t in dtypes for d in dims}


@pytest.mark.slow
@pytest.mark.parametrize("kernel", [pytest.param(k, id=k.name) for k in kernels()])
def test_a_compiled_file_holds_its_kernel(kernel: Kernel) -> None:
    (signature,) = library(kernel, "fast").kernels.values()
    assert signature.name == kernel.name
    assert signature.max_threads == kernel.threads
