"""Figures worked out by hand for every default kernel, for the resource and cost models to meet.

Counts of products, loads and barriers are per 32x32 score tile by all simdgroups; `share` is the
predicted percentage of peak: one figure at 16 bits, M1 and Apple9 for float32. 16-bit shares take P
and dS as rounded to 16 bits, which the kernels do not do.
"""

from __future__ import annotations

from dataclasses import dataclass

from codegen.model import Dtype, KernelKind, KernelSpec, Location, Split

ROWS_16BIT = """
fwd 64          32 32 4 1  none  2+o  13824  4  192  2  256   288  0   7  87
fwd 72          32 32 4 1  none  2+o  13824  4  200  2  288   324  0   7  88
fwd 80          32 32 4 1  none  2+o  16896  3  208  2  320   360  0   7  88
fwd 96          32 32 4 1  none  2+o  19968  3  224  2  384   432  0   7  88
fwd 112         32 32 4 1  none  2    15360  4  240  2  448   504  0  10  88
fwd 128         32 32 4 1  none  2    17408  3  256  2  512   576  0  10  89
fwd 192/128     32 32 4 1  none  1    12800  4  256  4  640   736  0  11  86
fwd 256         32 32 4 1  none  1    16896  3  384  4  1024  1152 0  10  88
bwd_dq 64       32 32 4 1  none  2+o  18432  3  240  2  384   448  0   5  88
bwd_dq 72       32 32 4 1  none  2+o  18432  3  248  2  432   504  0   5  88
bwd_dq 80       32 32 4 1  none  2    11264  5  256  2  480   560  0   9  88
bwd_dq 96       32 32 4 1  none  2    13312  4  272  2  576   672  0   9  89
bwd_dq 112      32 32 4 1  none  2    15360  4  288  2  672   784  0   9  89
bwd_dq 128      32 32 4 1  none  2    17408  3  304  2  768   896  0   9  89
bwd_dq 192/128  32 32 4 1  none  1    12800  4  368  4  1024  1184 0   9  88
bwd_dq 256      32 16 4 1  none  2    16896  3  392  4  1536  2048 0  14  88
bwd_dkv 64      32 32 4 1  none  2+o  18688  3  304  2  512   576  0   3  89
bwd_dkv 72      32 32 4 1  none  2+o  18688  3  320  2  576   648  0   3  89
bwd_dkv 80      32 32 4 1  none  2    11520  4  336  2  640   720  0   7  89
bwd_dkv 96      32 32 4 1  none  2    13568  4  368  2  768   864  0   7  89
bwd_dkv 112     32 32 4 1  none  2    15616  3  400  2  896   1008 0   7  89
bwd_dkv 128     32 32 2 2  role  2    19712  3  448  3  1024  640  4   7  90
bwd_dkv 192/128 32 32 4 2  role  2    23808  2  336  3  1280  1440 4   7  87
bwd_dkv 256     16 32 4 2  role  2    18048  2  376  6  2048  2560 4  10  85
"""

ROWS_FLOAT32 = """
fwd 64          64 32 4 1  none    2  17408  3  288  2  256   160  0  12  77 80
fwd 72          64 32 4 1  none    2  19456  3  304  2  288   180  0  12  77 80
fwd 80          64 32 4 1  none    1  10752  4  320  4  320   200  0  12  76 79
fwd 96          64 32 4 1  none    1  12800  4  352  4  384   240  0  12  76 79
fwd 112         64 32 4 1  none    1  14848  4  384  4  448   280  0  12  76 79
fwd 128         64 32 4 1  none    1  16896  3  416  4  512   320  0  12  75 79
fwd 192/128     64 16 4 1  none    1  12544  4  384  8  640   512  0  19  72 75
fwd 256         64 16 4 2  split_d 1  24832  2  384  8  1024  768  16 17  71 74
bwd_dq 64       64 16 4 1  none    2  8704   4  320  4  384   320  0  19  72 76
bwd_dq 72       64 16 4 1  none    2  9728   4  336  4  432   360  0  19  72 76
bwd_dq 80       64 16 4 1  none    2  10752  4  352  4  480   400  0  19  72 76
bwd_dq 96       64 16 4 1  none    2  12800  4  384  4  576   480  0  19  72 75
bwd_dq 112      64 16 4 1  none    2  14848  3  416  4  672   560  0  19  72 75
bwd_dq 128      64 16 4 1  none    2  16896  3  448  4  768   640  0  19  72 75
bwd_dq 192/128  64 32 8 1  none    1  25088  2  384  4  1024  1184 0  10  66 71
bwd_dq 256      32 16 4 1  none    1  16640  3  400  8  1536  2048 0  20  63 68
bwd_dkv 64      16 32 2 2  role    2  10880  5  288  6  512   384  8  17  70 74
bwd_dkv 72      16 32 2 2  role    2  11904  5  304  6  576   432  8  17  71 74
bwd_dkv 80      16 32 2 2  role    2  12928  4  320  6  640   480  8  17  71 74
bwd_dkv 96      16 32 2 2  role    2  14976  4  352  6  768   576  8  17  71 75
bwd_dkv 112     16 32 2 2  role    2  17024  3  384  6  896   672  8  17  71 75
bwd_dkv 128     16 32 2 2  role    2  19072  3  416  6  1024  768  8  17  72 75
bwd_dkv 192/128 16 32 4 2  role    2  23168  2  320  6  1280  1600 8  15  63 68
bwd_dkv 256     8  32 4 2  role    2  17728  2  368  12 2048  3072 8  24  60 65
"""


@dataclass(frozen=True, slots=True)
class Row:
    """One kernel and its figures."""

    spec: KernelSpec
    stage: str
    threadgroup_bytes: int
    threadgroups_per_core: int
    live_bytes: int
    barriers: int
    mma: int
    loads: int
    exchanged_per_score: int
    l2_bytes_per_clock: int
    share: tuple[int, ...]


def make_spec(
    kind: str, dtype: Dtype, widths: str, tile: tuple[int, int, int, int], split: str
) -> KernelSpec:
    """Return a kernel from a table's notation; `widths` is "128" or "192/128"."""
    D, _, Dv = widths.partition("/")
    BQ, BK, WM, WN = tile
    return KernelSpec(
        kind=KernelKind[kind.upper()],
        dtype=dtype,
        D=int(D),
        Dv=int(Dv or D),
        BQ=BQ,
        BK=BK,
        WM=WM,
        WN=WN,
        split=Split[split.upper()],
        rank=0,
        spec_path="specs/table.yaml",
        location=Location("specs/table.yaml", 1),
    )


def _row(line: str, dtype: Dtype) -> Row:
    kind, widths, bq, bk, wm, wn, split, stage, *figures = line.split()
    tile = (int(bq), int(bk), int(wm), int(wn))
    threadgroup, per_core, live, barriers, mma, loads, exchanged, l2, *share = map(int, figures)
    spec = make_spec(kind, dtype, widths, tile, split)
    return Row(
        spec,
        stage,
        threadgroup,
        per_core,
        live,
        barriers,
        mma,
        loads,
        exchanged,
        l2,
        tuple(share),
    )


ROWS = tuple(
    _row(line, dtype)
    for text, dtypes in (
        (ROWS_16BIT, (Dtype.FLOAT16, Dtype.BFLOAT16)),
        (ROWS_FLOAT32, (Dtype.FLOAT32,)),
    )
    for line in text.strip().splitlines()
    for dtype in dtypes
)
