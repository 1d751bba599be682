"""Strides, threads, repeats and scratch of the CPU kernels: the same bits whatever the layout."""

from __future__ import annotations

import itertools
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.runtime import cpu_kernels
from tests.runtime.cpu_check import check, normal, operands
from tests.runtime.cpu_kernels import STORAGE, Array, Call


@pytest.fixture(params=cpu_kernels.isas())
def isa(request: pytest.FixtureRequest) -> str:
    if not cpu_kernels.runs(request.param):
        pytest.skip(f"this CPU has no {request.param}")
    return str(request.param)


def garbage(shape: tuple[int, ...], dtype: str) -> Array:
    """Large finite values: what lies between and behind the rows of a view."""
    return np.full(shape, 0x46EA if dtype == "bfloat16" else 3e4, STORAGE[dtype])  # 0x46ea: 3e4


def heads_inside(x: Array, dtype: str) -> Array:
    """The same values in (B,L,H,D) memory."""
    B, H, L, D = x.shape
    out = garbage((B, L, H, D), dtype).swapaxes(1, 2)
    out[:] = x
    return out


def in_cache(x: Array, dtype: str) -> Array:
    """A slice of a longer buffer, with padding behind each row."""
    B, H, L, D = x.shape
    out = garbage((B, H, L + 37, D + 8), dtype)[:, :, :L, :D]
    out[:] = x
    return out


def plain(x: Array, dtype: str) -> Array:
    return x


def results(q: Array, k: Array, v: Array, d_o: Array, dtype: str, **call: Any) -> dict[str, Array]:
    made = Call(q, k, v, dtype, **call).forward()
    assert made.o is not None
    assert made.lse is not None
    return {"o": made.o, "lse": made.lse, **made.backward(d_o)}


def assert_same(one: dict[str, Array], other: dict[str, Array]) -> None:
    for name, values in one.items():
        np.testing.assert_array_equal(values, other[name], err_msg=name)


@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize("layout", [heads_inside, in_cache])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a33_a34_a38_views_equal_copies(layout: Any, group: int, dtype: str) -> None:
    arrays = operands(2, 4, 4 // group, 70, 130, 64, 48, dtype)
    expected = results(*arrays, dtype, options={"causal": True})
    for which in range(4):  # one view at a time, then all
        mixed = [layout(x, dtype) if i == which else x for i, x in enumerate(arrays)]
        assert_same(results(*mixed, dtype, options={"causal": True}), expected)
    views = [layout(x, dtype) for x in arrays]
    call = Call(*views[:3], dtype, {"causal": True}, o=layout(np.zeros_like(expected["o"]), dtype))
    call.forward()
    into = {n: layout(np.zeros_like(expected[n]), dtype) for n in ("d_q", "d_k", "d_v")}
    assert_same({"o": call.o, **call.backward(views[3], into=into)}, expected)  # type: ignore[dict-item]
    for array in (call.o, *into.values()):  # nothing beside the view was written
        assert array is not None
        whole = array.base if array.base is not None else array
        assert (whole == garbage((1,), dtype)).sum() >= whole.size - array.size


def test_a35_a37_zero_strides(isa: str) -> None:
    k, v = (normal(i, (2, 1, 50, 64)) for i in (1, 2))
    q = normal(3, (2, 4, 50, 64))
    d_o = np.lib.stride_tricks.as_strided(
        np.full(64, 0.25, np.float32), (2, 4, 50, 64), (0, 0, 0, 4)
    )
    wide_k, wide_v = (np.broadcast_to(x, (2, 4, 50, 64)) for x in (k, v))
    expected = results(q, wide_k.copy(), wide_v.copy(), d_o.copy(), "float32", isa=isa)
    assert_same(results(q, wide_k, wide_v, d_o, "float32", isa=isa), expected)


def test_a13_mask_slice_with_a_longer_row(isa: str) -> None:
    mask = normal(1, (1, 8, 77, 80))[..., :77]
    check(*operands(1, 8, 8, 77, 77, 32, 32, "float32"), "float32", isa, mask=mask)


@pytest.mark.parametrize("kind", ["bool", "additive"])
def test_mask_with_transposed_keys(kind: str, isa: str) -> None:
    mask = normal(1, (150, 90)).T
    given = mask > -1 if kind == "bool" else mask
    check(*operands(1, 2, 2, 90, 150, 32, 32, "float32"), "float32", isa, mask=given)


def test_a60_offsets_beyond_two_to_the_31(tmp_path: Path) -> None:
    """Rows 2^28 elements apart, in a sparse file."""
    stride, rows = 1 << 28, 10
    shape = ((rows - 1) * stride + 64,)
    path = tmp_path / "sparse"
    far = [np.memmap(path.with_suffix(f".{i}"), np.float16, "w+", shape=shape) for i in range(2)]
    q, k, v, d_o = operands(1, 1, 1, rows, rows, 64, 64, "float16")
    views = []
    for memory, x in zip(far, (k, v), strict=True):
        view = np.lib.stride_tricks.as_strided(memory, (1, 1, rows, 64), (0, 0, 2 * stride, 2))
        view[:] = x
        views.append(view)
    expected = results(q, k, v, d_o, "float16", options={"causal": True})
    assert_same(results(q, *views, d_o, "float16", options={"causal": True}), expected)


CASES = {
    "causal": ((2, 4, 2, 300, 700, 64, 64), {"causal": True}),
    "decode": ((1, 8, 2, 1, 3000, 64, 64), {}),
    "window": ((1, 2, 2, 600, 600, 40, 72), {"window": (100, 30), "softcap": 3.0}),
    "padded": ((1, 3, 3, 400, 400, 72, 72), {"causal": True}),
}


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("name", CASES)
def test_a70_same_bits_for_any_number_of_threads(name: str, dtype: str) -> None:
    shape, options = CASES[name]
    arrays = operands(*shape, dtype=dtype)
    expected = results(*arrays, dtype, options=options, threads=1)
    for threads in (2, 2, 2, 3, 64):
        assert_same(results(*arrays, dtype, options=options, threads=threads), expected)


def test_calls_from_several_threads_at_once() -> None:
    arrays = operands(1, 4, 2, 200, 300, 64, 64, "float32")
    expected = results(*arrays, "float32", options={"causal": True})
    failures: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(5):
                assert_same(results(*arrays, "float32", options={"causal": True}), expected)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_has_threads_of_its_own() -> None:
    arrays = operands(1, 4, 4, 400, 400, 64, 64, "float32")
    expected = results(*arrays, "float32")
    child = os.fork()
    if child == 0:
        try:
            assert_same(results(*arrays, "float32"), expected)
            os._exit(0)
        except BaseException:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("backward", [False, True])
def test_a63_scratch_does_not_grow_with_the_score_matrix(dtype: str, backward: bool) -> None:
    def scratch(L: int) -> int:
        q = np.broadcast_to(np.zeros(128, STORAGE[dtype]), (1, 8, L, 128))
        return Call(q, q, q, dtype, {"causal": True}, o=q).scratch_bytes(backward, 2)

    sizes = [scratch(L) for L in (4096, 8192, 16384)]
    assert sizes[0] < 8 << 20
    assert all(later <= 2.05 * earlier for earlier, later in itertools.pairwise(sizes))


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads /proc")
def test_a62_memory_is_given_back() -> None:
    arrays = operands(2, 4, 4, 256, 256, 64, 64, "float32")
    call = Call(*arrays[:3], "float32", {"causal": True}).forward()
    into = call.backward(arrays[3])

    def resident() -> int:
        pages = Path("/proc/self/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    for _ in range(20):
        call.forward().backward(arrays[3], into=into)
    before = resident()
    for _ in range(180):
        call.forward().backward(arrays[3], into=into)
    assert resident() - before <= 1 << 20
