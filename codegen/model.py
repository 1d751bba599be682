"""What a kernel is: its kind, element type, head dims, tiles and split, and what follows from them.

A `KernelSpec` that came out of the loader is legal; nothing downstream checks it again.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, unique

SIMD_WIDTH = 32  # lanes of a simdgroup
FRAGMENT = 8  # edge of a simdgroup_matrix


@unique
class Dtype(Enum):
    """An element type under its MLX name, its MSL name and its size in bytes."""

    FLOAT16 = ("float16", "half", 2)
    BFLOAT16 = ("bfloat16", "bfloat", 2)
    FLOAT32 = ("float32", "float", 4)
    NONE = ("none", "void", 0)  # kernels that read no tensor elements

    def __init__(self, mlx: str, msl: str, size: int) -> None:
        self.mlx = mlx
        self.msl = msl
        self.size = size

    def __str__(self) -> str:
        return self.mlx


TENSOR_DTYPES = (Dtype.FLOAT16, Dtype.BFLOAT16, Dtype.FLOAT32)


@unique
class Split(Enum):
    """How the simdgroups of one row group share its work."""

    NONE = ("none", 1, 1)
    ROLE = ("role", 2, 1)  # one does S, P, dV; its partner dP, dS, dK
    SPLIT_D = ("split_d", 1, 2)  # each holds half of D and Dv, scores are exchanged
    ROLE_SPLIT_D = ("role_split_d", 2, 2)

    def __init__(self, token: str, roles: int, d_parts: int) -> None:
        self.token = token
        self.roles = roles
        self.d_parts = d_parts

    @property
    def WN(self) -> int:
        """Simdgroups per row group."""
        return self.roles * self.d_parts

    def __str__(self) -> str:
        return self.token


@unique
class Owner(Enum):
    """Whose rows a threadgroup keeps in registers while it walks over the other side."""

    QUERY = "query"
    KEY = "key"
    NOBODY = "nobody"  # helper kernels: no tiles


@unique
class KernelKind(Enum):
    """A family of kernels: who owns rows, and for helpers the threads and element types."""

    FWD = ("fwd", Owner.QUERY, 0, TENSOR_DTYPES)
    BWD_DQ = ("bwd_dq", Owner.QUERY, 0, TENSOR_DTYPES)
    BWD_DKV = ("bwd_dkv", Owner.KEY, 0, TENSOR_DTYPES)
    BWD_DELTA = ("bwd_delta", Owner.NOBODY, 128, TENSOR_DTYPES)  # a simdgroup per row
    BWD_REDUCE = ("bwd_reduce", Owner.NOBODY, 256, TENSOR_DTYPES)  # an element per thread
    FWD_MERGE = ("fwd_merge", Owner.NOBODY, 128, TENSOR_DTYPES)  # a simdgroup per row
    PACK = ("pack", Owner.NOBODY, 256, TENSOR_DTYPES)  # an element per thread
    TILE_MAP = ("tile_map", Owner.NOBODY, 32, (Dtype.NONE,))  # a 32x32 tile each
    ROW_BOUNDS = ("row_bounds", Owner.NOBODY, 32, (Dtype.NONE,))  # 32 rows each

    def __init__(
        self, token: str, owner: Owner, helper_threads: int, dtypes: tuple[Dtype, ...]
    ) -> None:
        self.token = token
        self.owner = owner
        self.helper_threads = helper_threads
        self.dtypes = dtypes

    @property
    def tiled(self) -> bool:
        return self.owner is not Owner.NOBODY

    def __str__(self) -> str:
        return self.token


@unique
class Gpu(Enum):
    """Whether a GPU has the matrix units of Apple10, which MLX uses."""

    SIMD = "simd"
    NAX = "nax"

    def __str__(self) -> str:
        return self.value


@unique
class MaskClass(Enum):
    """The masks that mx.fast differentiates without holding all scores."""

    CAUSAL = "causal"
    FULL = "full"

    def __str__(self) -> str:
        return self.value


UNBOUNDED = 2**31 - 1  # a length that no bound holds back


@dataclass(frozen=True, slots=True)
class Route:
    """When calls of one kind take these kernels rather than mx.fast, where both mean the same.

    Own kernels take min_L <= L < max_L, L the longer of queries and keys, and any L for which
    mx.fast would hold an array of score_bytes or more.
    """

    gpu: Gpu
    D: int
    Dv: int
    dtype: Dtype
    mask: MaskClass
    min_L: int
    max_L: int
    score_bytes: int

    @property
    def sort_key(self) -> tuple[int, int, int, int, int]:
        """Order of routes in every list that is written."""
        gpus, dtypes, masks = list(Gpu), list(Dtype), list(MaskClass)
        return (
            gpus.index(self.gpu),
            self.D,
            self.Dv,
            dtypes.index(self.dtype),
            masks.index(self.mask),
        )


TILED_KINDS = tuple(kind for kind in KernelKind if kind.tiled)

# The template of every legal (kind, split).
TEMPLATES = {
    (KernelKind.FWD, Split.NONE): "flash_attn_fwd.metal.mako",
    (KernelKind.FWD, Split.SPLIT_D): "flash_attn_fwd_split_d.metal.mako",
    (KernelKind.BWD_DQ, Split.NONE): "flash_attn_bwd_dq.metal.mako",
    (KernelKind.BWD_DKV, Split.NONE): "flash_attn_bwd_dkv.metal.mako",
    (KernelKind.BWD_DKV, Split.ROLE): "flash_attn_bwd_dkv_role.metal.mako",
    (KernelKind.BWD_DKV, Split.ROLE_SPLIT_D): "flash_attn_bwd_dkv_role.metal.mako",
    (KernelKind.BWD_DELTA, Split.NONE): "flash_attn_bwd_delta.metal.mako",
    (KernelKind.BWD_REDUCE, Split.NONE): "flash_attn_bwd_reduce.metal.mako",
    (KernelKind.FWD_MERGE, Split.NONE): "flash_attn_fwd_merge.metal.mako",
    (KernelKind.PACK, Split.NONE): "flash_attn_pack.metal.mako",
    (KernelKind.TILE_MAP, Split.NONE): "flash_attn_tile_map.metal.mako",
    (KernelKind.ROW_BOUNDS, Split.NONE): "flash_attn_row_bounds.metal.mako",
}


def splits_of(kind: KernelKind) -> tuple[Split, ...]:
    """Return the splits that `kind` has a template for."""
    return tuple(split for split in Split if (kind, split) in TEMPLATES)


@dataclass(frozen=True, slots=True)
class Location:
    """A line of a spec file, the file named as the user would."""

    path: str
    line: int

    def __str__(self) -> str:
        return f"{self.path}:{self.line}"


@dataclass(frozen=True, slots=True)
class KernelSpec:
    """One kernel; helper kernels have no tiles, so their D, Dv, BQ and BK are 0.

    D is the width of Q and K, Dv that of V and O. BQ x BK scores are one step of a threadgroup of
    WM row groups with WN simdgroups each. Rank 0 is the default of its kind, dtype and head dims.
    """

    kind: KernelKind
    dtype: Dtype
    D: int
    Dv: int
    BQ: int
    BK: int
    WM: int
    WN: int
    split: Split
    rank: int
    spec_path: str  # the same on every machine, for the generated text
    location: Location

    @property
    def name(self) -> str:
        parts = [f"flash_attn_{self.kind}"]
        if self.dtype is not Dtype.NONE:
            parts.append(self.dtype.mlx)
        if self.kind.tiled:
            parts.append(f"d{self.D}" if self.Dv == self.D else f"d{self.D}_dv{self.Dv}")
            parts.append(f"bq{self.BQ}_bk{self.BK}_wm{self.WM}_wn{self.WN}")
            if self.W > 1:
                parts.append(f"sd{self.W}")
        return "_".join(parts)

    @property
    def template(self) -> str:
        return TEMPLATES[self.kind, self.split]

    @property
    def threads(self) -> int:
        return SIMD_WIDTH * self.WM * self.WN

    @property
    def roles(self) -> int:
        return self.split.roles

    @property
    def W(self) -> int:
        """Parts that D and Dv are divided into."""
        return self.split.d_parts

    @property
    def OB(self) -> int:
        """Owner rows of a threadgroup."""
        return self.BK if self.kind.owner is Owner.KEY else self.BQ

    @property
    def R(self) -> int:
        """Owner rows of a row group."""
        return self.OB // self.WM

    @property
    def C(self) -> int:
        """Rows of the other side per step."""
        return self.BQ if self.kind.owner is Owner.KEY else self.BK

    @property
    def sort_key(self) -> tuple[int, int, int, int, int]:
        """Order of kernels in every list that is written."""
        kinds, dtypes = list(KernelKind), list(Dtype)
        return (kinds.index(self.kind), self.D, self.Dv, dtypes.index(self.dtype), self.rank)


def helper_kernels() -> tuple[KernelSpec, ...]:
    """Return the kernels that have no tiles and so nothing to specify: one per kind and dtype."""
    here = "codegen/model.py"
    return tuple(
        KernelSpec(
            kind=kind,
            dtype=dtype,
            D=0,
            Dv=0,
            BQ=0,
            BK=0,
            WM=kind.helper_threads // SIMD_WIDTH,
            WN=1,
            split=Split.NONE,
            rank=0,
            spec_path=here,
            location=Location(here, 0),
        )
        for kind, _ in TEMPLATES
        if not kind.tiled
        for dtype in kind.dtypes
    )
