"""What a kernel costs: core clocks per step, share of the machine's peak, seconds for a problem.

Per row group and step of R x C scores, in core clocks (a core retires the work of all its
simdgroups at this rate):

    T = c_m MMA + c_l (loads u + exchanged bytes / 128) + c_b barriers WN,    u = element bytes / 2

The coefficients were fitted to some 1,100 published throughput measurements of Metal attention
kernels (M1 Max and M4, 16-bit and float32); c_m is pinned to a microbenchmark of simdgroup_matrix.
Left-out kernels are met within 3.5% (16-bit) and 9% (float32) on average, 8.5% and 28% at the 95th
percentile. That is good enough to reject tiles and to order them, not to choose between tiles
closer than about 7%: predictions are no measurements.
"""

from __future__ import annotations

from dataclasses import dataclass

from codegen.model import FRAGMENT, KernelKind, KernelSpec, Owner
from codegen.resources import Resources, gemm_widths, resources

FMA_PER_CLOCK = 128  # a core's float32 pipes
L2_PLAN = 20  # bytes per clock and core; L2 was measured to give 32
LOAD_UNIT = 128  # bytes of a 16-bit fragment pair per simdgroup: what c_l is a price for


@dataclass(frozen=True, slots=True)
class Coefficients:
    """Core clocks per instruction of one simdgroup."""

    mma: float  # 8x8x8, both operands of the kernel's type
    mma_mixed: float  # A in float32 (P, dS), B in 16 bits
    load: float  # LOAD_UNIT bytes of fragments from threadgroup memory or L1
    barrier: float  # with the part of the copy that it does not hide


# simdgroup_matrix takes 17 clocks of one of four schedulers in half, 18 in float: 4.25 and 4.5. No
# measurement of the mixed form is known; it is taken for as slow as float. Kernels that stage
# through threadgroup memory on Apple9 keep the M1's 16-bit row: the only 16-bit fit with staging.
HALF = Coefficients(mma=4.25, mma_mixed=4.5, load=0.18, barrier=9.7)
FLOAT_M1 = Coefficients(mma=4.5, mma_mixed=4.5, load=0.67, barrier=4.2)
FLOAT_APPLE9 = Coefficients(mma=4.5, mma_mixed=4.5, load=0.50, barrier=4.2)


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU in the numbers that times depend on."""

    name: str
    cores: int
    ghz: float
    dram: float  # GB/s
    float32: Coefficients
    nax: bool = False  # Apple10: matrix units, which mx's products use and these kernels do not

    def coefficients(self, size: int) -> Coefficients:
        """Return the coefficients for elements of `size` bytes."""
        return HALF if size == 2 else self.float32

    @property
    def peak(self) -> float:
        """Multiply-adds per second on the float32 pipes."""
        return self.cores * FMA_PER_CLOCK * self.ghz * 1e9


# Core counts and bandwidths as Apple publishes them, clocks as measured by others: the smallest and
# the Max chip of each generation, which bracket the ratio of bandwidth to arithmetic.
DEVICES = (
    Device("M1", 8, 1.278, 68, FLOAT_M1),
    Device("M1 Max", 32, 1.296, 410, FLOAT_M1),
    Device("M2", 10, 1.398, 102, FLOAT_M1),
    Device("M2 Max", 38, 1.398, 410, FLOAT_M1),
    Device("M3", 10, 1.380, 102, FLOAT_APPLE9),
    Device("M3 Max", 40, 1.380, 410, FLOAT_APPLE9),
    Device("M4", 10, 1.398, 120, FLOAT_APPLE9),
    Device("M4 Max", 40, 1.398, 546, FLOAT_APPLE9),
    Device("M5", 10, 1.578, 154, FLOAT_APPLE9, nax=True),
    Device("M5 Max", 40, 1.578, 614, FLOAT_APPLE9, nax=True),
)


def mixed_widths(spec: KernelSpec) -> int:
    """Return the widths of the products whose A is P or dS: O; dQ; dV and dK."""
    return {
        KernelKind.FWD: spec.Dv,
        KernelKind.BWD_DQ: spec.D,
        KernelKind.BWD_DKV: spec.D + spec.Dv,
    }[spec.kind]


def step_clocks(spec: KernelSpec, res: Resources, c: Coefficients) -> float:
    """Return T: core clocks of one row group and step."""
    per_width = spec.R * spec.C / FRAGMENT**3
    mixed = per_width * mixed_widths(spec)
    products = c.mma * (res.mma - mixed) + c.mma_mixed * mixed
    exchanged = res.exchanged_per_score * spec.R * spec.C / LOAD_UNIT
    operands = c.load * (res.loads * spec.dtype.size / 2 + exchanged)
    return products + operands + c.barrier * res.barriers * spec.WN


def share_of_peak(spec: KernelSpec, res: Resources, c: Coefficients) -> float:
    """Return useful multiply-adds over what the pipes could do; +5 per score is the softmax."""
    useful = FRAGMENT**3 * res.mma * (1 + 5 / gemm_widths(spec))
    return useful / FMA_PER_CLOCK / step_clocks(spec, res, c)


def l2_bytes_per_clock(spec: KernelSpec, res: Resources, c: Coefficients) -> float:
    """Return an upper bound of a core's reads from L2; above L2_PLAN they may bind."""
    return res.device_bytes / (step_clocks(spec, res, c) * spec.WM)


def steps(spec: KernelSpec, L: int, *, causal: bool) -> int:
    """Return the steps of all threadgroups of one head, for L queries and keys."""
    owners, others = -(-L // spec.OB), -(-L // spec.C)
    if not causal:
        return owners * others
    if spec.kind.owner is Owner.QUERY:
        return sum(-(-min(L, (block + 1) * spec.OB) // spec.C) for block in range(owners))
    return sum(others - block * spec.OB // spec.C for block in range(owners))


def head_seconds(spec: KernelSpec, device: Device, L: int, *, causal: bool) -> float:
    """Return the seconds of one head when there are enough heads to fill the device."""
    res = resources(spec)
    clocks = step_clocks(spec, res, device.coefficients(spec.dtype.size)) * spec.WM
    return steps(spec, L, causal=causal) * clocks / (device.cores * device.ghz * 1e9)
