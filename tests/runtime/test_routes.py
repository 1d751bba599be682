"""The routing policy as a table, explain(), supported()."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import pytest

import flashrt
from flashrt import _C
from flashrt._call import Call
from flashrt._env import Settings
from flashrt._errors import UnsupportedError
from flashrt._route import (
    CPU,
    Decision,
    Device,
    Route,
    Target,
    decide,
    gpu_class,
)
from flashrt.explain import visible_pairs

SIMD = Target(Device.METAL, "simd")
NAX = Target(Device.METAL, "nax")
CUDA = Target(Device.OTHER_GPU)


def make(
    qL: int = 512,
    kL: int | None = None,
    D: int = 64,
    Dv: int | None = None,
    dtype: mx.Dtype = mx.float16,
    H: int = 8,
    **options: Any,
) -> Call:
    """Return a call of these sizes; nothing is evaluated."""
    kL, Dv = kL or qL, Dv or D
    arrays = (mx.zeros((1, H, qL, D), dtype), mx.zeros((1, 2, kL, D), dtype))
    return Call(*arrays, mx.zeros((1, 2, kL, Dv), dtype), scale=1.0, **options)


def routed(
    call: Call, target: Target, impl: str = "auto", settings: Settings | None = None, **more: Any
) -> Decision:
    return decide(call, impl, settings or Settings(), target, **more)


@pytest.mark.parametrize("row", _C.routes(), ids=lambda r: "-".join(str(x) for x in r.values()))
def test_every_row_of_the_table(row: dict[str, Any]) -> None:
    """Own kernels inside the row's range and above its memory limit, mx.fast elsewhere."""
    dtype = {"float16": mx.float16, "bfloat16": mx.bfloat16, "float32": mx.float32}[row["dtype"]]
    target = Target(Device.METAL, row["gpu"])
    same = {"D": row["d"], "Dv": row["dv"], "dtype": dtype, "causal": row["mask"] == "causal"}
    lengths = {16, 100, 2048, *(n for n in (row["min_l"], row["max_l"] - 1) if 8 < n < 2**20)}
    for L in sorted(lengths):
        call = make(L, **same)
        tile = min(L, row["mlx_tile"])
        held = 8 * tile * tile * dtype.size
        own = row["min_l"] <= L < row["max_l"] or held >= row["score_bytes"]
        assert routed(call, target).route is (Route.KERNEL if own else Route.MLX), L


def test_the_table_covers_every_kernel() -> None:
    """Each (dtype, D, Dv) of the registry has a row for both GPUs and both masks."""
    rows = {(r["gpu"], r["d"], r["dv"], r["dtype"], r["mask"]) for r in _C.routes()}
    wanted = {
        (gpu, k["d"], k["dv"], k["dtype"], mask)
        for k in _C.kernels()
        if k["kind"] == "fwd"
        for gpu in ("simd", "nax")
        for mask in ("causal", "full")
    }
    assert rows == wanted


def prefers_mlx() -> tuple[dict[str, Any], Target]:
    """Return a call for which the table says mx.fast, from the table itself."""
    for row in _C.routes():
        if row["min_l"] > 512 and row["dtype"] == "float16" and row["score_bytes"] > 2**24:
            causal = row["mask"] == "causal"
            sizes = {"D": row["d"], "Dv": row["dv"], "causal": causal}
            return sizes, Target(Device.METAL, row["gpu"])
    pytest.skip("the table prefers own kernels everywhere")


@pytest.mark.parametrize(
    ("option", "reason"),
    [
        ({"softcap": 2.0}, "softcap"),
        ({"window_left": 64}, "window_size"),
        ({"mask": mx.zeros((1, 1, 512, 512), mx.bool_)}, "mask"),
        ({"block_mask": mx.zeros((1, 1, 16, 16), mx.bool_)}, "block_mask"),
        ({"alibi_slopes": mx.zeros((1, 8))}, "alibi_slopes"),
        ({"q_segments": mx.zeros((1, 512), mx.int32)}, "segment_ids"),
        ({"sinks": mx.zeros((8,))}, "no gradient with sinks"),
        ({"qL": 8, "kL": 512}, "8 queries"),
    ],
    ids=str,
)
def test_what_mlx_does_otherwise_runs_on_own_kernels(option: dict[str, Any], reason: str) -> None:
    """Even where the table prefers mx.fast."""
    sizes, target = prefers_mlx()
    assert routed(make(**sizes), target).route is Route.MLX
    decision = routed(make(**{**sizes, **option}), target)
    assert decision.route is Route.KERNEL
    assert reason in decision.reason


def test_lse_runs_on_own_kernels() -> None:
    """mx.fast does not give it."""
    sizes, target = prefers_mlx()
    assert routed(make(**sizes), target, wants_lse=True).route is Route.KERNEL


def test_thresholds_of_the_environment() -> None:
    """They replace the table's length and its memory limit."""
    sizes, target = prefers_mlx()
    at = routed(make(**sizes), target, settings=Settings(long_l_threshold=512))
    above = routed(make(**sizes), target, settings=Settings(long_l_threshold=513))
    assert (at.route, above.route) == (Route.KERNEL, Route.MLX)
    held = 8 * 512 * 512 * 2
    at = routed(make(**sizes), target, settings=Settings(attention_bytes_threshold=held))
    above = routed(make(**sizes), target, settings=Settings(attention_bytes_threshold=held + 1))
    assert (at.route, above.route) == (Route.KERNEL, Route.MLX)


@pytest.mark.parametrize(
    ("call", "target", "reason"),
    [
        (make(D=100), SIMD, "no Metal kernel for D=100"),
        (make(D=64, Dv=80), NAX, "Dv=80"),
        (make(D=300), CPU, "CPU kernels take up to 256"),
        (make(D=64, Dv=257), CPU, "CPU kernels take up to 256"),
        (make(), CUDA, "not Metal"),
        (make(), Target(Device.METAL, "simd", "somewhere/flashrt.metallib"), "somewhere"),
        (make(dtype=mx.float64), CPU, "float64"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_without_a_kernel(call: Call, target: Target, reason: str) -> None:
    """Auto composes and says why; kernel refuses and says why."""
    decision = routed(call, target)
    assert decision.route is Route.COMPOSED
    assert reason in decision.reason
    with pytest.raises(UnsupportedError, match=f"impl='kernel'.*{reason}"):
        routed(call, target, "kernel")


@pytest.mark.parametrize("D", [1, 27, 64, 256])
def test_cpu_runs_own_kernels(D: int) -> None:
    """Whatever the length, head dim and dtype."""
    for dtype in (mx.float16, mx.bfloat16, mx.float32):
        for L in (1, 512, 100_000):
            assert routed(make(L, D=D, dtype=dtype), CPU).route is Route.KERNEL


@pytest.mark.parametrize(
    ("architecture", "macos", "expected"),
    [
        ("applegpu_g13s", "26.2", "simd"),
        ("applegpu_g16p", "27.0", "simd"),
        ("applegpu_g17s", "26.2", "nax"),
        ("applegpu_g17s", "26.1.1", "simd"),
        ("applegpu_g17s", "15.6", "simd"),
        ("applegpu_g17s", "", "simd"),
    ],
)
def test_gpu_class(architecture: str, macos: str, expected: str) -> None:
    """MLX computes on matrix units on an M5 with macOS 26.2."""
    assert gpu_class(architecture, macos) == expected


@pytest.mark.parametrize(
    ("qL", "kL", "options"),
    [
        (7, 7, {}),
        (7, 7, {"causal": True}),
        (5, 9, {"causal": True}),
        (9, 5, {"causal": True}),
        (9, 9, {"window_left": 3, "window_right": 0}),
        (9, 30, {"window_left": 0, "window_right": 4}),
        (30, 9, {"window_left": 4, "window_right": 2}),
        (6, 8, {"window_left": 2, "causal": True}),
        (6, 8, {"window_right": 3, "causal": True}),
    ],
)
def test_visible_pairs(qL: int, kL: int, options: dict[str, Any]) -> None:
    """Counted one by one."""
    left = options.get("window_left", -1)
    right = options.get("window_right", -1)
    counted = 0
    for i in range(qL):
        for j in range(kL):
            ahead = j - (i + kL - qL)
            hidden = (
                (options.get("causal", False) and ahead > 0)
                or (left >= 0 and -ahead > left)
                or (right >= 0 and ahead > right)
            )
            counted += not hidden
    assert visible_pairs(make(qL, kL, **options)) == counted


def test_explain_reads_and_counts() -> None:
    """The dict has what the text says; nothing is evaluated."""
    q, k = mx.zeros((2, 8, 1000, 64)), mx.zeros((2, 2, 1000, 64))
    told = flashrt.explain(q, k, k, causal=True, softcap=5.0, return_lse=True)
    text = str(told)
    assert told["route"] == "kernel"
    assert told["problem"]["softcap"] == 5.0
    assert told["flops"]["forward"] == 2 * 2 * 8 * (1000 * 1001 // 2) * 128
    assert told["bytes"]["forward"] == q.nbytes + 2 * k.nbytes + q.nbytes + 4 * 2 * 8 * 1000
    assert told["device"]["threads"] >= 1
    for word in ("kernel", "isa", "causal True", "cpu forward", "scratch", told["reason"]):
        assert word in text


def test_explain_plans_for_a_mac() -> None:
    """Kernels, tiles, constants and grids of another machine's GPU."""
    q = mx.zeros((1, 8, 1000, 128), dtype=mx.bfloat16)
    told = flashrt.explain(q, q, q, causal=True, window_size=64, architecture="applegpu_g13s")
    forward = told["forward"]["kernels"]
    assert [row["name"] for row in forward] == ["flash_attn_fwd_bfloat16_d128_bq32_bk32_wm4_wn1"]
    assert {"do_causal", "has_window"} <= set(forward[0]["constants"])
    assert forward[0]["grid"][0] == 8 * -(-1000 // 32)
    backward = {row["name"].split("_bfloat16")[0] for row in told["backward"]["kernels"]}
    assert {"flash_attn_bwd_delta", "flash_attn_bwd_dq", "flash_attn_bwd_dkv"} <= backward
    assert "flash_attn_bwd_dq" in str(told)


def test_explain_refuses_like_the_call() -> None:
    """The same checks, the same errors."""
    q = mx.zeros((1, 2, 8, 300))
    with pytest.raises(UnsupportedError, match="D=300"):
        flashrt.explain(q, q, q, impl="kernel")
    with pytest.raises(ValueError, match="window_size=0"):
        flashrt.explain(q, q, q, window_size=0)
    assert flashrt.explain(q, q, q)["route"] == "composed"


def test_supported_lists_the_registry() -> None:
    """Head dims as (D, Dv)."""
    told = flashrt.supported()
    assert (192, 128) in told["metal"]["head_dims"]
    assert told["metal"]["dtypes"] == ["bfloat16", "float16", "float32"]
    assert "cpu" in told["devices"]
