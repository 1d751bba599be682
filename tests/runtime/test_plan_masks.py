"""The planner leaves out bounds that hide nothing; what is left must mean the same."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests import reference
from tests.runtime import plan_module
from tests.runtime.plan_problems import fields, problem


def visible_to_kernels(launch: dict[str, Any]) -> NDArray[np.bool_]:
    """Return what causal and window hide, by the kernels' words: constants, then parameters."""
    on = launch["constants_on"]
    p = fields(launch, "AttnParams")
    after = np.arange(p.kL) - (np.arange(p.qL) + p.q_off)[:, None]  # keys beyond the diagonal
    right = 0 if "do_causal" in on else p.window_right
    visible = np.ones((p.qL, p.kL), bool)
    if "do_causal" in on or "has_window" in on:
        visible &= after <= right
    if "has_window" in on:
        visible &= after >= -p.window_left
    return visible


@settings(max_examples=300, deadline=None)
@given(
    qL=st.integers(1, 40),
    kL=st.integers(1, 40),
    shift=st.integers(-3, 3),
    causal=st.booleans(),
    left=st.integers(-1, 50) | st.just(2**40),
    right=st.integers(-1, 50) | st.just(2**40),
)
@example(qL=1, kL=40, shift=0, causal=True, left=-1, right=-1)
@example(qL=1, kL=40, shift=0, causal=True, left=39, right=-1)
@example(qL=1, kL=40, shift=0, causal=True, left=38, right=-1)
@example(qL=40, kL=1, shift=0, causal=True, left=0, right=-1)
def test_bounds_mean_what_was_asked(
    qL: int, kL: int, shift: int, causal: bool, left: int, right: int
) -> None:
    q_off = kL - qL + shift
    asked = {"causal": causal, "window_left": left, "window_right": right}
    plan = plan_module.load().plan(problem(qL=qL, kL=kL, q_off=q_off, **asked), {}, {})
    (launch,) = plan["launches"]
    expected = reference.visibility(
        (1, 1, qL, kL), causal=causal, window=(left, right), q_off=q_off
    )
    np.testing.assert_array_equal(visible_to_kernels(launch), expected[0, 0])
    bounded = {"do_causal", "has_window"} & set(launch["constants_on"])
    assert bool(bounded) == (not expected.all()), "mask code where nothing is hidden"


def test_row_diagonals_keep_every_bound() -> None:
    """Where each row's diagonal is known on the GPU alone, no bound can be ruled out."""
    asked = {"causal": True, "window_left": 1000, "qL": 1, "has_row_diagonals": True}
    (launch,) = plan_module.load().plan(problem(**asked), {}, {})["launches"]
    assert set(launch["constants_on"]) == {"do_causal", "has_window", "has_row_diagonals"}
    (launch,) = plan_module.load().plan(problem(has_row_diagonals=True), {}, {})["launches"]
    assert launch["constants_on"] == []  # nobody asks where the diagonal is
    (launch,) = plan_module.load().plan(problem(has_row_diagonals=True, has_alibi=True), {}, {})[
        "launches"
    ]
    assert launch["constants_on"] == ["has_alibi", "has_row_diagonals"]
