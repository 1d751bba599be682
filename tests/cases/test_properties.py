"""Whole kinds of input instead of single ones: random shapes, layouts, masks and dtypes.

Derandomised: the same examples in every run. The summary prints how many there were.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import reference as ref
from tests.cases.support import DTYPES, agree, same_bits, to_mx
from tests.cases.test_layout import BHDL, BLHD
from tests.cases.test_sizes import inside
from tests.kernel import check, launch
from tests.kernel.problems import Problem
from tests.kernel.registry import TILED, Kernel, kernels

Array = np.ndarray
PLACES: dict[str, Callable[[Array], mx.array]] = {
    "contiguous": to_mx,
    "blhd": BLHD,
    "bhdl": BHDL,
    "cache": inside(3e4, 7),
    "reversed": lambda x: to_mx(x[:, :, ::-1].copy())[:, :, ::-1],
}
LENGTHS = st.one_of(st.integers(0, 12), st.sampled_from([31, 32, 33, 63, 64, 65, 100, 130]))
WINDOWS = st.one_of(st.none(), st.tuples(st.integers(-1, 40), st.integers(-1, 40)))


@st.composite
def masks(draw: st.DrawFn, shape: tuple[int, ...], dtype: str, rng: np.random.Generator) -> Array:
    """Draw a mask of a shape that broadcasts to ``shape``, of any rank, dtype and density."""
    rank = draw(st.integers(1, 4))
    sizes = [n if draw(st.booleans()) else 1 for n in shape[4 - rank :]]
    density = draw(st.sampled_from([0.02, 0.5, 0.95, 1.0]))
    keep = rng.random(sizes) < density
    if draw(st.booleans()):
        return keep
    values = np.where(keep, rng.standard_normal(sizes) * 2, -np.inf)
    return ref.narrow(values, draw(st.sampled_from([dtype, "float32"])))


@st.composite
def calls(draw: st.DrawFn) -> tuple[tuple[Array, ...], dict[str, Any], str]:
    """Draw arrays (q, k, v, dO, dLSE), options of the reference, and a layout."""
    dtype = draw(st.sampled_from(DTYPES))
    B, Hk, group = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 4))
    H, qL, kL = Hk * group, draw(LENGTHS), draw(LENGTHS)
    D, Dv = draw(st.integers(1, 80)), draw(st.integers(1, 80))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    spread = draw(st.sampled_from([0.1, 1.0, 2.0]))

    def normal(*shape: int, spread: float = 1.0) -> Array:
        return ref.narrow(rng.standard_normal(shape) * spread, dtype)

    arrays = (
        normal(B, H, qL, D, spread=spread),
        normal(B, Hk, kL, D, spread=spread),
        normal(B, Hk, kL, Dv),
        normal(B, H, qL, Dv),
        rng.standard_normal((B, H, qL)).astype(np.float32),
    )
    options: dict[str, Any] = {"causal": draw(st.booleans())}
    if (window := draw(WINDOWS)) is not None:
        options["window"] = window
    if draw(st.booleans()):
        options["mask"] = draw(masks((B, H, qL, kL), dtype, rng))
    if draw(st.integers(0, 3)) == 0:
        options["softcap"] = draw(st.sampled_from([0.5, 5.0, 50.0]))
    if draw(st.integers(0, 3)) == 0:
        options["sinks"] = rng.standard_normal(H).astype(np.float32)
    if draw(st.integers(0, 3)) == 0:
        shape = (B, H) if draw(st.booleans()) else (H,)
        options["alibi"] = rng.uniform(-0.2, 0.5, shape).astype(np.float32)
    if draw(st.integers(0, 3)) == 0 and qL and kL:
        lead = draw(st.sampled_from([(), (1, 1), (B, 1), (1, H), (B, H)]))
        tiles = (-(-qL // 32), -(-kL // 32))
        options["block_mask"] = (rng.random((*lead, *tiles)) < 0.6).astype(np.uint8)
    if draw(st.integers(0, 3)) == 0:
        n = draw(st.integers(1, 5))
        q_ids, k_ids = (rng.integers(-n, n, (B, x)).astype(np.int32) for x in (qL, kL))
        options["segments"] = (np.sort(q_ids, 1), np.sort(k_ids, 1))
    if draw(st.integers(0, 3)) == 0:
        options["scale"] = float(np.float32(draw(st.sampled_from([-0.3, 0.0, 0.01, 1.0]))))
    return arrays, options, draw(st.sampled_from(sorted(PLACES)))


def run(request: pytest.FixtureRequest, strategy: Any, body: Callable[..., None]) -> None:
    """Run a property and keep the number of its examples for the summary."""
    count = 0

    @given(strategy)
    def every_example(example: Any) -> None:
        nonlocal count
        count += 1
        body(example)

    every_example()
    request.node.user_properties.append(("examples", count))


@pytest.mark.parametrize("impl", ["kernel", "reference"])
def test_attention_and_gradients_agree(request: pytest.FixtureRequest, impl: str) -> None:
    def body(example: Any) -> None:
        arrays, options, layout = example
        agree(*arrays, impl=impl, place=PLACES[layout], **options)

    run(request, calls(), body)


def test_layouts_do_not_change_a_bit(request: pytest.FixtureRequest) -> None:
    def body(example: Any) -> None:
        arrays, options, layout = example
        plain = agree(*arrays, **options)
        same_bits(agree(*arrays, place=PLACES[layout], **options), plain)

    run(request, calls(), body)


def test_a_batch_is_its_items(request: pytest.FixtureRequest) -> None:
    def body(example: Any) -> None:
        arrays, options, _ = example
        options = {
            n: x for n, x in options.items() if n in ("causal", "window", "softcap", "scale")
        }
        whole = agree(*arrays, **options)
        for i in range(arrays[0].shape[0]):
            item = agree(*(x[i : i + 1] for x in arrays), **options)
            for name in ("o", "lse", "dq", "dk", "dv"):
                assert getattr(item, name)[0].tobytes() == getattr(whole, name)[i].tobytes(), name

    run(request, calls(), body)


SMALL = [k for k in kernels() if k.kind in TILED and k.rank == 0 and k.d in (64, 72)]


@st.composite
def launches(draw: st.DrawFn) -> tuple[Kernel, Problem]:
    """Draw a kernel and a problem that its covering list does not have."""
    kernel = draw(st.sampled_from(SMALL))
    Hk, group = draw(st.integers(1, 2)), draw(st.integers(1, 3))
    qL, kL = draw(st.integers(1, 80)), draw(st.integers(1, 80))
    mask = draw(st.sampled_from(["none", "none", "bool", "dtype", "f32"]))
    additive = mask in ("dtype", "f32")
    problem = Problem(
        dtype=kernel.dtype,
        d=kernel.d,
        dv=kernel.dv,
        B=draw(st.integers(1, 2)),
        H=Hk * group,
        Hk=Hk,
        qL=qL,
        kL=kL,
        q_off=draw(st.one_of(st.none(), st.integers(-90, 90))),
        causal=draw(st.booleans()),
        window=draw(WINDOWS),
        mask=mask,
        mask_shape=draw(st.sampled_from(["full", "row", "column", "head", "sliced"])),
        dmask=draw(st.sampled_from(["none", "full", "b", "bh"])) if additive else "none",
        block_mask=draw(st.booleans()),
        softcap=draw(st.sampled_from([None, None, 1.0, 30.0])),
        sinks=draw(st.booleans()),
        alibi=draw(st.booleans()),
        segments=draw(st.booleans()),
        row_diagonals=draw(st.booleans()),
        splits=draw(st.integers(1, 4)),
        layout=draw(st.sampled_from(["contiguous", "blhd", "cache", "padded"])),
    )
    return kernel, problem


def test_kernels_agree_on_the_emulator(request: pytest.FixtureRequest) -> None:
    def body(example: tuple[Kernel, Problem]) -> None:
        kernel, problem = example
        verdict = check.check(kernel, problem, launch.Run())
        assert not verdict.complaints, check.explain(kernel, verdict)

    run(request, launches(), body)
