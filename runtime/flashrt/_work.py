"""How much a call computes, and how long an Apple GPU is predicted to take for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flashrt import _C

if TYPE_CHECKING:
    from flashrt._call import Call

# A core retires 128 multiply-adds per clock. The clock is the slowest of the generations' published
# ones and the share of the peak a low one of the cost model's, so that times are not too short.
FMA_PER_CLOCK = 128
CLOCK_HZ = 1.28e9
SHARE_OF_PEAK = 0.6


def visible_pairs(call: Call) -> int:
    """Count the (row, key) pairs of one head that causal and window leave; arrays are not read."""
    qL, kL = call.shape[3:5]
    offset = kL - qL
    right = call.window_right if call.window_right >= 0 else kL + qL
    if call.causal:
        right = min(right, 0)
    left = call.window_left if call.window_left >= 0 else kL + qL

    def keys_before(shift: int) -> int:
        """Sum over rows i of the number of keys j < i + shift."""
        return _ramp(qL + shift, kL) - _ramp(shift, kL)

    return max(keys_before(offset + right + 1) - keys_before(offset - left), 0)


def _ramp(n: int, top: int) -> int:
    """Sum of min(t, top) over 0 <= t < n."""
    if n <= 0:
        return 0
    if n <= top:
        return n * (n - 1) // 2
    return top * (top - 1) // 2 + (n - top) * top


def predicted_ms(call: Call, architecture: str) -> dict[str, float]:
    """Milliseconds of forward and of backward on the GPU that Metal calls ``architecture``.

    Counts the products of every kernel: two in forward, three in dQ and four in dK/dV, as these
    form S and dP each for itself. A prediction, not a measurement.
    """
    B, H, _, _, _, D, Dv = call.shape
    rate = int(_C.device(architecture)["cores"]) * FMA_PER_CLOCK * CLOCK_HZ * SHARE_OF_PEAK
    scores = B * H * visible_pairs(call)
    widths = {"forward": D + Dv, "backward": 4 * D + 3 * Dv}
    return {name: 1e3 * scores * width / rate for name, width in widths.items()}
