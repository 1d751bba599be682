"""The CPU kernels against the float64 reference, on every instruction set of this machine.

Numbers such as A05 name the fault, reported for another implementation, that a test guards against.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests import reference as ref
from tests.runtime import cpu_kernels
from tests.runtime.cpu_check import LN2, check, normal, operands
from tests.runtime.cpu_kernels import Array, Call


@pytest.fixture(params=cpu_kernels.isas())
def isa(request: pytest.FixtureRequest) -> str:
    if not cpu_kernels.runs(request.param):
        pytest.skip(f"this CPU has no {request.param}")
    return str(request.param)


@pytest.fixture(params=list(cpu_kernels.DTYPES))
def dtype(request: pytest.FixtureRequest) -> str:
    return str(request.param)


# Masks never meet a 16-bit value but where they are loaded: other pairs would repeat these.
PAIRS = [(isa, "float32") for isa in cpu_kernels.isas()] + [
    (cpu_kernels.isas()[0], "bfloat16"),
    (cpu_kernels.isas()[-1], "float16"),
]


@pytest.fixture(params=PAIRS, ids="-".join)
def pair(request: pytest.FixtureRequest) -> tuple[str, str]:
    isa, dtype = request.param
    if not cpu_kernels.runs(isa):
        pytest.skip(f"this CPU has no {isa}")
    return isa, dtype


# (B, H, Hk, qL, kL, D, Dv): one element, tile edges, more rows than keys, grouped heads, padded
# and unequal head dims, several super-blocks of keys, key splits.
SHAPES = [
    (1, 1, 1, 1, 1, 16, 16),
    (2, 4, 2, 65, 131, 64, 64),
    (1, 6, 2, 200, 150, 72, 40),
    (1, 3, 3, 33, 15, 27, 33),
    (1, 8, 1, 5, 1100, 64, 96),
    (1, 1, 1, 300, 520, 256, 128),
    (1, 2, 2, 64, 64, 1, 256),
]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_shapes(shape: tuple[int, ...], causal: bool, dtype: str, isa: str) -> None:
    check(*operands(*shape, dtype=dtype), dtype, isa, causal=causal)


def random_bool(seed: int, shape: tuple[int, ...], share: float = 0.5) -> Array:
    return np.random.default_rng(seed).random(shape) < share


def runs_of_ids(seed: int, shape: tuple[int, int], length: int) -> Array:
    """Segment ids in runs, neither sorted nor starting at 0."""
    ids = np.random.default_rng(seed).integers(-3, 4, shape)
    return np.repeat(ids[:, ::length], length, axis=1)[:, : shape[1]].astype(np.int32)


MASKS: dict[str, dict[str, Any]] = {
    "bool": {"mask": random_bool(1, (2, 4, 90, 150))},
    "bool-keys": {"mask": random_bool(2, (2, 1, 1, 150))},
    "bool-rows": {"mask": random_bool(3, (1, 4, 90, 1))},
    "bool-tiles": {"mask": np.arange(150) >= 130},
    "additive": {"mask": normal(4, (2, 4, 90, 150))},
    "additive-shared": {"mask": normal(5, (1, 1, 90, 150))},
    "additive-keys": {"mask": normal(6, (2, 1, 1, 150))},
    "additive-heads": {"mask": normal(7, (4, 1, 1))},
    "additive-inf": {
        "mask": np.where(random_bool(8, (4, 90, 150)), normal(9, (4, 90, 150)), np.float32(-np.inf))
    },
    "window": {"window": (20, 7)},
    "window-left": {"window": (20, -1)},
    "window-right": {"window": (-1, 3)},
    "window-causal": {"window": (15, 0), "causal": True},
    "window-beyond": {"window": (1 << 40, 1 << 40), "causal": True},
    "segments": {"segments": (runs_of_ids(1, (2, 90), 13), runs_of_ids(2, (2, 150), 17))},
    "segments-shared": {"segments": (runs_of_ids(1, (1, 90), 40), runs_of_ids(2, (1, 150), 70))},
    "diagonals": {
        "row_diagonals": np.random.default_rng(5).integers(-40, 200, (2, 90)),
        "causal": True,
        "window": (30, -1),
    },
    "block": {"block_mask": random_bool(10, (3, 5))},
    "block-heads": {"block_mask": random_bool(11, (2, 4, 3, 5)), "causal": True},
    "softcap": {"softcap": 1.5, "scale": 0.7},
    "softcap-wide": {"softcap": 1e6},
    "sinks": {"sinks": normal(12, (4,), scale=3.0)},
    "alibi": {"alibi": np.array([0.5, 0.25, 0.125, 0.0625])},
    "alibi-batched": {"alibi": np.abs(normal(13, (2, 4), scale=0.1)), "causal": True},
    "cut-rows": {"q_off": 17, "causal": True},
    "scale-negative": {"scale": -0.3, "causal": True},
    "scale-zero": {"scale": 0.0},
}
MASKS["everything"] = {
    "mask": normal(14, (1, 4, 90, 150)),
    "block_mask": random_bool(15, (1, 4, 3, 5), 0.8),
    "segments": (runs_of_ids(3, (2, 90), 50), runs_of_ids(4, (2, 150), 70)),
    "row_diagonals": np.random.default_rng(6).integers(0, 200, (2, 90)),
    "causal": True,
    "window": (90, -1),
    "softcap": 2.0,
    "sinks": normal(16, (4,)),
    "alibi": np.array([0.1, 0.2, 0.3, 0.4]),
}


@pytest.mark.parametrize("options", MASKS.values(), ids=MASKS.keys())
def test_masks(options: dict[str, Any], pair: tuple[str, str]) -> None:
    isa, dtype = pair
    if (
        options.get("mask") is not None and options["mask"].dtype != np.bool_
    ) and dtype != "float32":
        options = {**options, "mask": ref.narrow(options["mask"], dtype)}
    arrays = operands(2, 4, 2, 90, 150, 48, 40, dtype)
    check(*arrays, dtype, isa, normal(20, (2, 4, 90)), **options)


def test_mask_in_f32_beside_half_operands(isa: str) -> None:
    check(*operands(1, 2, 2, 40, 70, 32, 32, "float16"), "float16", isa, mask=normal(1, (40, 70)))


@pytest.mark.parametrize("qL", [1, 8])
@pytest.mark.parametrize(
    "options", [{}, {"causal": True}, {"window": (700, 0), "sinks": normal(1, (8,))}], ids=str
)
def test_decoding_splits_the_keys(qL: int, options: dict[str, Any], pair: tuple[str, str]) -> None:
    isa, dtype = pair
    check(*operands(1, 8, 2, qL, 1500, 64, 64, dtype), dtype, isa, **options)


def test_a01_a17_rows_without_keys(isa: str) -> None:
    q, k, v, d_o = operands(1, 1, 1, 8, 8, 16, 16, "float32")
    mask = np.zeros((8, 8), bool)
    mask[:4, :4] = True
    d_lse = np.full((1, 1, 8), np.nan, np.float32)
    d_lse[..., :4] = 0.5
    results = []
    for m in (mask, np.where(mask, 0.0, -np.inf).astype(np.float32)):
        call = Call(q, k, v, "float32", {"mask": m}, isa).forward()
        grads = call.backward(d_o, d_lse)
        assert (call.o[..., 4:, :] == 0).all()
        assert np.isneginf(call.lse[..., 4:]).all()
        assert all((g[..., 4:, :] == 0).all() for g in grads.values())
        assert all(np.isfinite(g).all() for g in grads.values())
        results.append([call.o, call.lse, *grads.values()])
    for one, other in zip(*results, strict=True):
        np.testing.assert_array_equal(one, other)
    check(q, k, v, d_o, "float32", isa, mask=mask)


def test_sink_of_a_row_without_keys(isa: str) -> None:
    q, k, v, d_o = operands(1, 2, 2, 4, 5, 8, 8, "float32")
    sinks = np.array([2.5, -np.inf], np.float32)
    options = {"mask": np.zeros((4, 5), bool), "sinks": sinks}
    call = Call(q, k, v, "float32", options, isa).forward()
    assert (call.o == 0).all()
    np.testing.assert_allclose(call.lse[:, 0] * LN2, 2.5, rtol=1e-6)
    assert np.isneginf(call.lse[:, 1]).all()
    grads = call.backward(d_o, np.ones((1, 2, 4), np.float32))
    assert all((g == 0).all() for g in grads.values())


def test_a02_one_key_is_copied(dtype: str, isa: str) -> None:
    q, k, v, d_o = (normal(i, (1, 1, 1, 16), dtype, 3.0) for i in range(4))
    call = Call(q, k, v, dtype, {}, isa).forward()
    grads = call.backward(d_o)
    np.testing.assert_array_equal(call.o, v)
    np.testing.assert_array_equal(grads["d_v"], d_o)
    for name in ("d_q", "d_k"):
        assert np.abs(ref.widen(grads[name])).max() <= 1e-3


def test_a03_wide_inputs(isa: str) -> None:
    arrays = [normal(i, (1, 1, 400, 128), "float16", 3.0) for i in range(4)]
    check(*arrays, "float16", isa, causal=True)


@pytest.mark.parametrize("sign", [1, -1])
def test_a04_products_beyond_half(sign: int, isa: str) -> None:
    q = np.full((1, 1, 4, 128), 300.0)
    k = sign * 300.0 * np.array([1.0, 0.9, 0.8, 0.7])[None, None, :, None] * np.ones(128)
    arrays = [ref.narrow(x, "float16") for x in (q, k)]
    check(*arrays, *(normal(i, (1, 1, 4, 128), "float16") for i in range(2)), "float16", isa)


def test_a05_leading_keys_hidden(isa: str) -> None:
    q, k, v, d_o = operands(1, 1, 1, 40, 257, 64, 64, "float32")
    mask = np.arange(257) >= 200
    check(q, k, v, d_o, "float32", isa, mask=mask)
    grads = Call(q, k, v, "float32", {"mask": mask}, isa).forward().backward(d_o)
    assert (grads["d_k"][..., :200, :] == 0).all()
    assert (grads["d_v"][..., :200, :] == 0).all()


@pytest.mark.parametrize("kind", ["bool", "additive"])
@pytest.mark.parametrize("L", [8, 40])
def test_a06_nan_in_a_masked_key(kind: str, L: int, isa: str) -> None:
    q, k, v, _ = operands(1, 1, 1, L, L, 64, 64, "float32")
    mask = np.broadcast_to(np.arange(L) != 5, (L, L))
    given = mask if kind == "bool" else np.where(mask, 0.0, -np.inf).astype(np.float32)
    clean = Call(q, k, v, "float32", {"mask": given}, isa).forward()
    k[:, :, 5] = np.nan
    call = Call(q, k, v, "float32", {"mask": given}, isa).forward()
    np.testing.assert_array_equal(call.o, clean.o)
    np.testing.assert_array_equal(call.lse, clean.lse)


def test_nan_in_a_visible_key_is_not_hidden(isa: str) -> None:
    q, k, v, _ = operands(1, 1, 1, 40, 40, 64, 64, "float32")
    k[:, :, 5, 3] = np.nan
    call = Call(q, k, v, "float32", {"causal": True}, isa).forward()
    assert np.isfinite(call.o[:, :, :5]).all()
    assert np.isnan(call.o[:, :, 5:]).all()


def test_a07_a_row_of_lowest_values(isa: str) -> None:
    q, k, v, d_o = operands(1, 1, 1, 9, 64, 32, 32, "float32")
    mask = np.zeros((9, 64), np.float32)
    mask[3] = np.finfo(np.float32).min
    call = Call(q, k, v, "float32", {"mask": mask}, isa).forward()
    np.testing.assert_allclose(call.o[0, 0, 3], v[0, 0].mean(0), atol=1e-6)
    assert all(np.isfinite(g).all() for g in call.backward(d_o).values())


def test_a08_hidden_keys_with_the_largest_logits(isa: str) -> None:
    q, k, v, d_o = operands(1, 1, 1, 70, 90, 64, 64, "float32")
    q[..., 0], k[..., 0] = 30.0, 0.0
    hidden = np.arange(90) % 7 == 3
    k[:, :, hidden, 0] = 32.0  # q.k * scale = 120
    check(q, k, v, d_o, "float32", isa, mask=random_bool(1, (70, 90)) & ~hidden)


def test_a12_float_mask_of_ones_is_added(isa: str) -> None:
    mask = ref.narrow(random_bool(1, (8, 8)).astype(np.float32), "bfloat16")
    check(*operands(1, 2, 2, 8, 8, 16, 16, "bfloat16"), "bfloat16", isa, mask=mask)


def test_a20_later_keys_do_not_matter(pair: tuple[str, str]) -> None:
    isa, dtype = pair
    q, k, v, _ = operands(1, 4, 4, 64, 64, 32, 32, dtype)
    whole = Call(q, k, v, dtype, {"causal": True}, isa).forward().o
    for i in (0, 3, 31, 40):
        other_k, other_v = k.copy(), v.copy()
        other_k[:, :, i + 1 :], other_v[:, :, i + 1 :] = k[:, :, :1], v[:, :, :1]
        part = Call(q, other_k, other_v, dtype, {"causal": True}, isa).forward().o
        np.testing.assert_array_equal(part[:, :, : i + 1], whole[:, :, : i + 1])


def test_a24_window_is_exact(isa: str) -> None:
    q, k, v, _ = operands(1, 1, 1, 70, 70, 16, 16, "float32")
    options = {"causal": True, "window": (15, 0)}
    whole = Call(q, k, v, "float32", options, isa).forward().o
    for i in (16, 40, 69):
        nudged = v.copy()
        nudged[:, :, i - 16] += 1
        got = Call(q, k, nudged, "float32", options, isa).forward().o
        np.testing.assert_array_equal(got[:, :, i], whole[:, :, i])
        nudged[:, :, i - 15] += 1
        got = Call(q, k, nudged, "float32", options, isa).forward().o
        assert (got[:, :, i] != whole[:, :, i]).any()


def test_a25_a54_keys_that_no_row_sees(isa: str) -> None:
    q, k, v, d_o = operands(1, 1, 1, 64, 300, 32, 32, "float32")
    options = {"causal": True, "window": (31, 0)}
    check(q, k, v, d_o, "float32", isa, **options)
    for _ in range(5):  # outputs start as NaN each time
        grads = Call(q, k, v, "float32", options, isa).forward().backward(d_o)
        assert (grads["d_k"][:, :, :200] == 0).all()
        assert (grads["d_v"][:, :, :200] == 0).all()
    check(*operands(1, 2, 1, 129, 64, 32, 32, "float32"), "float32", isa, window=(32, 64))


def test_a51_softcap(isa: str) -> None:
    q, k, v, d_o = operands(1, 2, 2, 64, 80, 64, 64, "float32")
    check(4 * q, 2 * k, v, d_o, "float32", isa, softcap=15.0)
    plain = Call(q, k, v, "float32", {}, isa).forward()
    wide = Call(q, k, v, "float32", {"softcap": 1e6}, isa).forward()
    np.testing.assert_allclose(wide.o, plain.o, atol=3e-6)


@pytest.mark.parametrize("causal", [False, True])
def test_a52_block_mask_of_the_causal_tiles(causal: bool, isa: str) -> None:
    q, k, v, d_o = operands(1, 2, 2, 256, 256, 64, 64, "float32")
    options = {"block_mask": np.tril(np.ones((8, 8), bool)), "causal": causal}
    check(q, k, v, d_o, "float32", isa, **options)
    if causal:
        one, other = (
            Call(q, k, v, "float32", o, isa).forward().o for o in (options, {"causal": True})
        )
        np.testing.assert_allclose(one, other, atol=1e-6)


def test_a53_segments_equal_separate_calls(isa: str) -> None:
    q, k, v, d_o = operands(1, 2, 1, 512, 512, 64, 64, "float32")
    ids = np.repeat([7, -2], [300, 212])[None].astype(np.int32)
    whole = Call(q, k, v, "float32", {"causal": True, "segments": (ids, ids)}, isa).forward()
    grads = whole.backward(d_o)
    for part in (slice(0, 300), slice(300, 512)):
        x = [np.ascontiguousarray(a[:, :, part]) for a in (q, k, v, d_o)]
        alone = Call(*x[:3], "float32", {"causal": True}, isa).forward()
        np.testing.assert_allclose(whole.o[:, :, part], alone.o, atol=2e-6)
        for name, grad in alone.backward(x[3]).items():
            np.testing.assert_allclose(grads[name][:, :, part], grad, atol=2e-5)


def test_a57_batches_agree_at_head_dim_256(isa: str) -> None:
    q, k, v, d_o = operands(2, 8, 2, 160, 160, 256, 256, "bfloat16")
    q, k = (
        ref.narrow(ref.widen(x) * np.where(np.arange(256) % 64 == 5, 20, 1), "bfloat16")
        for x in (q, k)
    )
    check(q, k, v, d_o, "bfloat16", isa, causal=True)
    whole = Call(q, k, v, "bfloat16", {"causal": True}, isa).forward().backward(d_o)
    for b in range(2):
        x = [a[b : b + 1] for a in (q, k, v, d_o)]
        alone = Call(*x[:3], "bfloat16", {"causal": True}, isa).forward().backward(x[3])
        for name, grad in alone.items():
            np.testing.assert_array_equal(grad[0], whole[name][b])


@pytest.mark.parametrize("causal", [False, True])
def test_a58_no_keys(causal: bool, isa: str) -> None:
    q, k, v, d_o = operands(2, 4, 2, 5, 0, 64, 64, "float32")
    call = Call(q, k, v, "float32", {"causal": causal}, isa).forward()
    assert (call.o == 0).all()
    assert np.isneginf(call.lse).all()
    grads = call.backward(d_o)
    assert (grads["d_q"] == 0).all()


@pytest.mark.parametrize(
    "shape", [(0, 2, 2, 3, 3, 8, 8), (2, 0, 0, 3, 3, 8, 8), (1, 2, 1, 0, 70, 8, 8)], ids=str
)
def test_a59_empty_axes(shape: tuple[int, ...], isa: str) -> None:
    q, k, v, d_o = operands(*shape, dtype="float16")
    grads = Call(q, k, v, "float16", {"causal": True}, isa).forward().backward(d_o)
    assert all((g == 0).all() for g in grads.values())  # keys that no row sees


@pytest.mark.parametrize("shape", [(200, 100), (1, 100), (200, 1), (1, 1)], ids=str)
@pytest.mark.parametrize("heads", [(1, 1), (2, 1), (1, 4), (2, 4)], ids=str)
def test_a48_gradient_of_an_additive_mask(
    heads: tuple[int, int], shape: tuple[int, int], isa: str
) -> None:
    options = {"mask": normal(1, (*heads, *shape)), "softcap": 3.0, "causal": True}
    # dS of a row sums to its dLSE: without one, a sum over the keys would be 0 whatever was added.
    d_lse = normal(2, (2, 4, 200))
    check(*operands(2, 4, 2, 200, 100, 32, 32, "float32"), "float32", isa, d_lse, **options)


@pytest.mark.parametrize("wanted", ["q", "k", "v", "qk", "qv", "kv", ""])
def test_a55_unwanted_gradients(wanted: str, pair: tuple[str, str]) -> None:
    isa, dtype = pair
    q, k, v, d_o = operands(1, 4, 2, 130, 200, 32, 48, dtype)
    call = Call(q, k, v, dtype, {"causal": True, "softcap": 2.0}, isa).forward()
    everything = call.backward(d_o)
    some = call.backward(d_o, wanted=wanted)
    assert set(some) == {f"d_{name}" for name in wanted}
    for name, grad in some.items():
        np.testing.assert_array_equal(grad, everything[name])
