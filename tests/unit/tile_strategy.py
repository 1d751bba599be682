"""Hypothesis strategies for kernels."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from codegen.model import TEMPLATES, TENSOR_DTYPES, KernelSpec, Owner
from codegen.rules import violations
from tests.unit.spec_table import make_spec


@st.composite
def tiles(draw: st.DrawFn) -> KernelSpec:
    """Any kernel that has a template, its tile legal or not."""
    kind, split = draw(st.sampled_from([key for key in TEMPLATES if key[0].tiled]))
    WM = draw(st.sampled_from([1, 2, 4, 8]))
    owner = draw(st.sampled_from([8, 16, 24, 32, 64, 128]))
    step = draw(st.sampled_from([8, 12, 16, 32, 64]))
    D = draw(st.integers(1, 32)) * 8
    tile = make_spec(
        str(kind),
        draw(st.sampled_from(TENSOR_DTYPES)),
        str(D) if draw(st.booleans()) else f"{D}/{draw(st.integers(1, 32)) * 8}",
        (owner, step, WM, split.WN),
        str(split),
    )
    return replace(tile, BQ=step, BK=owner) if kind.owner is Owner.KEY else tile


def legal_tiles() -> st.SearchStrategy[KernelSpec]:
    """Any kernel that a spec may ask for."""
    return tiles().filter(lambda spec: not violations(spec))
