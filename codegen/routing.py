"""Where `mx.fast.scaled_dot_product_attention` is predicted to beat these kernels, and by how much.

The derivation of the `routing:` blocks in specs/. Compared are the times of a training step's
attention, forward and backward, per score of one head, when there are enough heads to fill the GPU:

own     fwd, dQ and dK/dV kernels: 9 products (7 in the backward, which makes S and dP twice),
        tiles beyond the diagonal skipped; times from cost.py.
mx.fast of MLX 0.32.4, where it has a fused forward for the head dim ("blocked"): that forward, with
        four barriers a step; then a loop over score tiles of at most 1024 x 1024: S and dP (written
        in the inputs' type), one elementwise pass (reads S, dP, writes P, dS), dQ, dK, dV, and
        float32 accumulation of the three. 7 products; causal skips whole tiles only.
mx.fast elsewhere ("unfused"): the graph that autograd makes of softmax(QK^T)V. It keeps P, so 6
        products, over all scores also when causal, and some 12 passes over an L x L array (15
        when causal); checked against the published times of that graph on an M3 Max.

Products run at the 102.5 (float32: 101.7) multiply-adds per clock and core that MLX's GEMM was
measured at, elementwise passes at 80% of DRAM bandwidth (a measured STREAM share), a product at the
slower of both. On Apple10 mx's 16-bit products run on matrix units, 512 multiply-adds per clock at
the same efficiency; these kernels do not use them. Launches and copies of strided operands, which
mx.fast has more of, are left out. Grouped queries change neither side: all scores of all query
heads are computed in each, and few key heads are split over queries.

Own kernels are the default. mx.fast takes a call only where it is predicted to be faster by more
than the model's own error, as the geometric mean over the devices: on a tie own gradients are the
more precise (S, dP, P, dS stay float32), memory does not grow with heads, and GPU time per command
buffer is bounded. Whatever is predicted, own kernels take a call for which mx.fast would hold more
than MAX_SCORE_BYTES in one array of scores: it holds about four, and 1 GiB is an eighth of the
smallest Mac's memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from codegen.cost import DEVICES, FMA_PER_CLOCK, Device, head_seconds
from codegen.model import UNBOUNDED, Dtype, Gpu, KernelSpec, MaskClass

MARGIN = 0.10  # the model's error at the 95th percentile is 8.5% for 16-bit kernels
MAX_SCORE_BYTES = 1 << 28
LENGTHS = tuple(1 << n for n in range(7, 18))  # 128 .. 131072, where ratios are looked at

MLX_TILE = 1024  # edge of the score tiles in MLX's blocked backward
_MLX_FUSED = {64, 72, 80, 96, 128, 192, 256}  # head dims of its fused forward, D = Dv
_MLX_FUSED_FLOAT32 = 128  # widest head dim whose float32 tiles fit its threadgroup memory
_GEMM_CLOCK = {2: 102.5, 4: 101.7}  # measured multiply-adds per clock and core
_NAX_GEMM_CLOCK = 512 * 102.5 / FMA_PER_CLOCK
_STREAM = 0.8
_UNFUSED_PASSES = {MaskClass.FULL: 12, MaskClass.CAUSAL: 15}


def mlx_score_tile(D: int, Dv: int, dtype: Dtype) -> int:
    """Return the edge of the score tiles that mx.fast holds while differentiating."""
    fused = Dv == D and D in _MLX_FUSED and (dtype.size == 2 or D <= _MLX_FUSED_FLOAT32)
    return MLX_TILE if fused else UNBOUNDED


class Mlx:
    """Seconds of MLX's parts on one device, for elements of one size."""

    def __init__(self, device: Device, size: int) -> None:
        nax = device.nax and size == 2  # float32 would need TF32, which is opt-in
        per_clock = _NAX_GEMM_CLOCK if nax else _GEMM_CLOCK[size]
        self._device = device
        self._fma = per_clock * device.cores * device.ghz * 1e9
        self._size = size

    def product(self, scores: int, width: int) -> float:
        """Return the time of one product that reads or writes a tile of scores."""
        return max(scores * width / self._fma, self.elements(scores))

    def elements(self, count: float) -> float:
        """Return the time of moving `count` elements to or from DRAM."""
        return self.bytes(count * self._size)

    def bytes(self, count: float) -> float:
        return count / (_STREAM * self._device.dram * 1e9)

    def forward(self, L: int, D: int, Dv: int, mask: MaskClass) -> float:
        """Return the time of the fused forward: 32 queries a threadgroup, 8 per simdgroup."""
        keys = 32 if D < 128 else 16
        c = self._device.coefficients(self._size)
        mma = 8 * keys * (D + Dv) / 512
        loads = (keys * (D + Dv) + 8 * D) / 64 * self._size / 2
        clocks = c.mma * mma + c.load * loads + 4 * c.barrier
        if self._device.nax and self._size == 2:  # as its products: no barriers, no staging
            clocks = 8 * keys * (D + Dv) / _NAX_GEMM_CLOCK
        scores = L * L if mask is MaskClass.FULL else L * (L + 32) / 2
        steps = scores / (8 * keys)
        return steps * clocks / (self._device.cores * self._device.ghz * 1e9)

    def blocked_backward(self, L: int, D: int, Dv: int, mask: MaskClass) -> float:
        edge = min(L, MLX_TILE)
        per_side = -(-L // edge)
        tiles = per_side**2 if mask is MaskClass.FULL else per_side * (per_side + 1) // 2
        scores = edge * edge
        products = 3 * self.product(scores, D) + 2 * self.product(scores, Dv)
        gradients = self.elements(4 * scores)  # reads S, dP, writes P, dS
        # Each of dQ, dK, dV: a partial written and read, a float32 sum read and written, a result.
        summed = edge * (2 * D + Dv)
        return tiles * (products + gradients + self.elements(3 * summed) + self.bytes(8 * summed))

    def unfused(self, L: int, D: int, Dv: int, mask: MaskClass) -> float:
        """Return the time of forward and backward of the graph."""
        products = 3 * self.product(L * L, D) + 3 * self.product(L * L, Dv)
        return products + self.elements(_UNFUSED_PASSES[mask] * L * L)


def mlx_seconds(device: Device, dtype: Dtype, D: int, Dv: int, L: int, mask: MaskClass) -> float:
    """Return the predicted time of mx.fast, forward and backward, per head."""
    mlx = Mlx(device, dtype.size)
    if mlx_score_tile(D, Dv, dtype) == UNBOUNDED:
        return mlx.unfused(L, D, Dv, mask)
    return mlx.forward(L, D, Dv, mask) + mlx.blocked_backward(L, D, Dv, mask)


def own_seconds(device: Device, kernels: Iterable[KernelSpec], L: int, mask: MaskClass) -> float:
    """Return the predicted time of the three kernels per head."""
    causal = mask is MaskClass.CAUSAL
    return sum(head_seconds(kernel, device, L, causal=causal) for kernel in kernels)


def advantage(gpu: Gpu, kernels: Iterable[KernelSpec], L: int, mask: MaskClass) -> float:
    """Return mx.fast's time over own time, as the geometric mean over the GPU class's devices."""
    chosen = tuple(kernels)
    spec = chosen[0]
    ratios = [
        mlx_seconds(device, spec.dtype, spec.D, spec.Dv, L, mask)
        / own_seconds(device, chosen, L, mask)
        for device in DEVICES
        if device.nax == (gpu is Gpu.NAX)
    ]
    return float(prod(ratios) ** (1 / len(ratios)))


def own_range(gpu: Gpu, kernels: Iterable[KernelSpec], mask: MaskClass) -> tuple[int, int]:
    """Return min_L, max_L: own kernels take min_L <= L < max_L; (0, 0) where mx.fast takes all.

    Kernels are the defaults of one head dim and dtype. Ratios rise or fall with L, so the lengths
    of one side are contiguous; a bound at the end of LENGTHS is no bound.
    """
    chosen = tuple(kernels)
    own = [L for L in LENGTHS if advantage(gpu, chosen, L, mask) >= 1 - MARGIN]
    if not own:
        return 0, 0
    first, last = LENGTHS.index(own[0]), LENGTHS.index(own[-1])
    if len(own) != last - first + 1:
        raise ValueError(f"{chosen[0].name}: own kernels win at scattered lengths {own}")
    min_L = 0 if first == 0 else own[0]
    max_L = UNBOUNDED if last == len(LENGTHS) - 1 else LENGTHS[last + 1]
    return min_L, max_L
