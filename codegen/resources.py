"""What a kernel takes from the machine: threadgroup memory, registers, instructions per step.

Symbols: s = element bytes, R = owner rows per row group, C = rows of the other side per step,
W = parts of D. "Per step" is one row group (its WN simdgroups together) against C rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, unique

from codegen.model import FRAGMENT, SIMD_WIDTH, KernelKind, KernelSpec, Split

THREADGROUP_LIMIT = 32_768  # Metal's limit per threadgroup
THREADGROUP_POOL = 61_440  # per core, shared by its threadgroups
LIVE_LIMIT = 512  # 128 registers of 32 bits per lane; beyond them the compiler spills
LIVE_WARNING = 416  # beyond it no input operand may be kept in registers
LIVE_BASE = 96  # addresses, four fragments in flight, row statistics
MIN_THREADS_PER_CORE = 384  # fewer do not hide latency
VECTOR = 16  # bytes of the widest load
ACCUMULATOR = 4  # bytes of a float32 accumulator, score or row statistic


@unique
class Staging(Enum):
    """Which tiles lie in threadgroup memory: both of a step or one in turn, and the owner's."""

    BOTH_AND_OWNER = ("2+o", True, True, "both tiles and owner rows")
    BOTH = ("2", True, False, "both tiles")
    ONE_AND_OWNER = ("1+o", False, True, "one tile in turn and owner rows")
    ONE = ("1", False, False, "one tile in turn")

    def __init__(self, token: str, kv_resident: bool, owner_staged: bool, words: str) -> None:
        self.token = token
        self.kv_resident = kv_resident
        self.owner_staged = owner_staged
        self.words = words

    def __str__(self) -> str:
        return self.token


@dataclass(frozen=True, slots=True)
class Resources:
    """The figures of one kernel; bytes per threadgroup unless said otherwise.

    Helper kernels have no tiles: all but `model` stay 0.
    """

    model: str  # one line for the generated file
    pitch_q: int = 0  # elements from row to row of a staged Q or K tile
    pitch_v: int = 0  # of a staged V or dO tile
    staging: Staging = Staging.ONE
    tile_bytes: int = 0  # tiles of one step
    owner_bytes: int = 0  # owner rows
    stats_bytes: int = 0  # LSE and delta rows (dkv)
    slot_bytes: int = 0  # P from one role to the other
    exchange_bytes: int = 0  # partial scores between the parts of D
    threadgroup_bytes: int = 0
    accumulators: int = 0  # f32 per lane
    live_bytes: int = 0  # per lane: accumulators, scores and the base
    threadgroups_per_core: int = 0
    barriers: int = 0  # per step, of each simdgroup
    mma: int = 0  # 8x8x8 products per step
    loads: int = 0  # A and B fragments per step
    exchanged_per_score: int = 0  # bytes that cross between simdgroups
    device_bytes: int = 0  # read by the threadgroup per step

    @property
    def stage(self) -> str:
        return self.staging.token

    @property
    def kv_resident(self) -> bool:
        return self.staging.kv_resident

    @property
    def owner_staged(self) -> bool:
        return self.staging.owner_staged


def pitch(width: int, size: int) -> int:
    """Return the elements from row to row: the least padding that makes it odd in 16-byte units.

    An odd pitch puts the rows that a fragment load touches on different banks.
    """
    per_vector = VECTOR // size
    padded = -(-width // per_vector) * per_vector
    return padded if (padded // per_vector) % 2 else padded + per_vector


def gemm_widths(spec: KernelSpec) -> int:
    """Return the widths of the kernel's products summed: S, O; S, dP, dQ; S, dP, dV, dK."""
    return {
        KernelKind.FWD: spec.D + spec.Dv,
        KernelKind.BWD_DQ: 2 * spec.D + spec.Dv,
        KernelKind.BWD_DKV: 2 * (spec.D + spec.Dv),
    }[spec.kind]


def threads_resident(live_bytes: int) -> int:
    """Return how many threads of a core the register file holds."""
    return min(3072, 128 * (196_608 // live_bytes // 128))


def _tile_bytes(spec: KernelSpec, kv_resident: bool) -> int:
    q = spec.C * pitch(spec.D, spec.dtype.size) * spec.dtype.size
    v = spec.C * pitch(spec.Dv, spec.dtype.size) * spec.dtype.size
    return q + v if kv_resident else max(q, v)


def _owner_bytes(spec: KernelSpec) -> int:
    q = spec.OB * pitch(spec.D, spec.dtype.size) * spec.dtype.size
    v = spec.OB * pitch(spec.Dv, spec.dtype.size) * spec.dtype.size
    return q if spec.kind is KernelKind.FWD else q + v


def _stats_bytes(spec: KernelSpec) -> int:
    return 2 * ACCUMULATOR * spec.C if spec.kind is KernelKind.BWD_DKV else 0


def _slot_bytes(spec: KernelSpec) -> int:
    # P is half for both 16-bit types and float for float32: spec.dtype.size bytes.
    return spec.WM * spec.R * spec.C * spec.dtype.size if spec.roles > 1 else 0


def _exchanged_scores(spec: KernelSpec) -> int:
    """Return how many kinds of partial scores (S, dP) a simdgroup exchanges."""
    if spec.W == 1:
        return 0
    return 1 if spec.kind is KernelKind.FWD or spec.roles > 1 else 2


def exchange_bytes(spec: KernelSpec) -> int:
    """Return the threadgroup memory through which the parts of D add up their scores."""
    return spec.WM * spec.WN * spec.R * spec.C * ACCUMULATOR * _exchanged_scores(spec)


def _fixed_bytes(spec: KernelSpec) -> int:
    return _stats_bytes(spec) + _slot_bytes(spec) + exchange_bytes(spec)


def _stagings(spec: KernelSpec) -> Iterator[tuple[Staging, int]]:
    for staging in Staging:
        if spec.kind is KernelKind.BWD_DKV and not staging.kv_resident:
            continue  # a step needs Q for S and dK, and dO for dP and dV
        owner = _owner_bytes(spec) if staging.owner_staged else 0
        yield staging, _tile_bytes(spec, staging.kv_resident) + owner + _fixed_bytes(spec)


def least_threadgroup_bytes(spec: KernelSpec) -> int:
    """Return the threadgroup memory of the leanest staging."""
    return min(size for _, size in _stagings(spec))


def threadgroups_per_core(spec: KernelSpec, threadgroup_bytes: int) -> int:
    """Return how many threadgroups a core holds, by threadgroup memory and by registers."""
    return min(
        THREADGROUP_POOL // threadgroup_bytes,
        threads_resident(live_bytes(spec)) // spec.threads,
    )


def _choose_staging(spec: KernelSpec) -> Staging:
    """Return the richest staging that leaves a core busy, else the leanest that fits."""
    fitting = [(s, size) for s, size in _stagings(spec) if size <= THREADGROUP_LIMIT]
    for staging, size in fitting:
        groups = threadgroups_per_core(spec, size)
        if groups >= 2 and groups * spec.threads >= MIN_THREADS_PER_CORE:
            return staging
    return fitting[-1][0]


def accumulators(spec: KernelSpec) -> int:
    """Return the f32 accumulators per lane."""
    width = {
        KernelKind.FWD: spec.Dv,
        KernelKind.BWD_DQ: spec.D,
        KernelKind.BWD_DKV: max(spec.D, spec.Dv) if spec.roles > 1 else spec.D + spec.Dv,
    }[spec.kind]
    return spec.R * width // (spec.W * SIMD_WIDTH)


def _score_bytes(spec: KernelSpec) -> int:
    """Return the bytes per lane of S, dP and what is made of them."""
    if spec.kind is KernelKind.FWD:
        per_score = 4
    elif spec.roles > 1:
        per_score = 4 + spec.dtype.size
    else:
        per_score = 8 + spec.dtype.size
    return per_score * spec.R * spec.C // SIMD_WIDTH


def live_bytes(spec: KernelSpec) -> int:
    """Return the register bytes per lane that stay live through a step."""
    return ACCUMULATOR * accumulators(spec) + _score_bytes(spec) + LIVE_BASE


def _barriers(spec: KernelSpec, kv_resident: bool) -> int:
    if spec.split is Split.ROLE_SPLIT_D:
        return 4
    if spec.split is Split.ROLE:
        return 3
    if spec.split is Split.SPLIT_D:
        if kv_resident:
            return 3
        # In fwd the exchange barrier also says that the K buffer is free for V.
        return 4 if spec.kind is KernelKind.FWD else 5
    return 2 if kv_resident else 4


def _owner_width(spec: KernelSpec) -> int:
    """Return the widths of the owner's operands: Q; Q and dO; K and V."""
    return spec.D if spec.kind is KernelKind.FWD else spec.D + spec.Dv


def _loads(spec: KernelSpec) -> int:
    lane_elements = FRAGMENT * FRAGMENT
    b = spec.C * gemm_widths(spec) // lane_elements
    a = spec.R * _owner_width(spec) // lane_elements
    return a + b


def _exchanged_per_score(spec: KernelSpec) -> int:
    # P is written by one simdgroup and read by each part of the other role; partial scores are
    # written by every part and read by its partner.
    slot = (1 + spec.W) * spec.dtype.size if spec.roles > 1 else 0
    return slot + 2 * ACCUMULATOR * _exchanged_scores(spec) * spec.WN


def _device_bytes(spec: KernelSpec, owner_staged: bool) -> int:
    step = spec.C * (spec.D + spec.Dv) * spec.dtype.size
    return step if owner_staged else step + spec.OB * _owner_width(spec) * spec.dtype.size


def _model_line(spec: KernelSpec, threadgroup_bytes: int, live: int, staging: Staging) -> str:
    return (
        f"{spec.threads} threads, {threadgroup_bytes:,} of {THREADGROUP_LIMIT:,} B threadgroup, "
        f"{live} of {LIVE_LIMIT} B/lane live, {staging.words} staged"
    )


def resources(spec: KernelSpec) -> Resources:
    """Return the figures of a legal kernel."""
    if not spec.kind.tiled:
        return Resources(model=f"{spec.threads} threads, no threadgroup memory")
    staging = _choose_staging(spec)
    tile = _tile_bytes(spec, staging.kv_resident)
    owner = _owner_bytes(spec) if staging.owner_staged else 0
    threadgroup_bytes = tile + owner + _fixed_bytes(spec)
    live = live_bytes(spec)
    return Resources(
        pitch_q=pitch(spec.D, spec.dtype.size),
        pitch_v=pitch(spec.Dv, spec.dtype.size),
        staging=staging,
        tile_bytes=tile,
        owner_bytes=owner,
        stats_bytes=_stats_bytes(spec),
        slot_bytes=_slot_bytes(spec),
        exchange_bytes=exchange_bytes(spec),
        threadgroup_bytes=threadgroup_bytes,
        accumulators=accumulators(spec),
        live_bytes=live,
        threadgroups_per_core=threadgroups_per_core(spec, threadgroup_bytes),
        barriers=_barriers(spec, staging.kv_resident),
        mma=spec.R * spec.C * gemm_widths(spec) // FRAGMENT**3,
        loads=_loads(spec),
        exchanged_per_score=_exchanged_per_score(spec),
        device_bytes=_device_bytes(spec, staging.owner_staged),
        model=_model_line(spec, threadgroup_bytes, live, staging),
    )
