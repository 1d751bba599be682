// The one ABI between host and kernels: buffer indices, function constants and parameter structs.
//
// Compiled unchanged as MSL (kernels), as C++ (plan, encoder) and by the emulator in tests/.
// Fixed-width members only, explicit padding, sizes and offsets asserted below.
#pragma once

#if defined(__METAL_VERSION__)
#include <metal_stdlib>
#else
#include <cstddef>
#include <cstdint>
#endif

namespace flashrt {

/// Argument slots of every attention kernel (fwd, bwd_dq, bwd_dkv).
enum BufferIndex : int32_t {
  kBufQ = 0,
  kBufK = 1,
  kBufV = 2,
  kBufO = 3,
  kBufLse = 4,  ///< f32 (B,H,qL), log2 domain: m + log2(l), -inf for a row that sees no key
  kBufParams = 5,
  kBufMask = 6,           ///< bool bytes, T or f32: constants 308, 309
  kBufSinks = 7,          ///< f32 (H), natural-log logits
  kBufAlibi = 8,          ///< f32 slopes
  kBufTileMap = 9,        ///< uint8 per 32x32 tile of scores: 0 = nothing visible
  kBufQSegments = 10,     ///< int32 id per query row
  kBufKSegments = 11,     ///< int32 id per key
  kBufQBounds = 12,       ///< int32[4] per 32 query rows: segment min, max, diagonal min, max
  kBufKBounds = 13,       ///< int32[4] per 32 keys: segment min, max, unused, unused
  kBufRowDiagonals = 14,  ///< int32 key position of each query row's diagonal
  kBufDO = 15,
  kBufDelta = 16,  ///< f32 (B,H,qL): rowsum(dO*O) - dLSE (natural)
  kBufDQ = 17,
  kBufDK = 18,
  kBufDV = 19,
  kBufOPartial = 20,    ///< f32 (splits,B,H,qL,Dv), each normalised by its own l
  kBufLsePartial = 21,  ///< f32 (splits,B,H,qL), log2 domain
  kBufDKPartial = 22,   ///< f32 (splits,B,Hk,kL,D)
  kBufDVPartial = 23,   ///< f32 (splits,B,Hk,kL,Dv)
  kBufDMask = 24,       ///< f32, zero-filled: bwd_dq adds the gradient of an additive mask
};

/// Argument slots of the small helper kernels; each documents its own use.
enum HelperBufferIndex : int32_t {
  kBufHelperParams = 0,
  kBufHelperOut = 1,
  kBufHelperIn0 = 2,
  kBufHelperIn1 = 3,
  kBufHelperIn2 = 4,
};

// X(index, name): every one is a bool, gates whole statements, and is always set by the host.
#define FLASHRT_FUNCTION_CONSTANTS(X)                                           \
  X(200, align_Q)        /* qL is a multiple of the kernel's BQ */              \
  X(201, align_K)        /* kL is a multiple of the kernel's BK */              \
  X(300, has_mask)       /* kBufMask is read */                                 \
  X(301, do_causal)      /* keys beyond a row's diagonal are hidden */          \
  X(302, has_block_mask) /* kBufTileMap is read */                              \
  X(303, has_window)     /* window_left, window_right apply */                  \
  X(304, has_softcap)                                                           \
  X(305, has_sinks)                                                             \
  X(306, has_alibi)                                                             \
  X(307, has_segments)      /* kBuf{Q,K}Segments and kBuf{Q,K}Bounds */         \
  X(308, mask_is_bool)      /* with has_mask: bytes, zero hides */              \
  X(309, mask_is_f32)       /* with has_mask: f32; neither: the kernel's T */   \
  X(310, has_row_diagonals) /* kBufRowDiagonals replaces row + q_off */         \
  X(311, has_splits)        /* f32 partials are written, grid.y is the split */ \
  X(312, has_dmask)         /* bwd_dq: kBufDMask is added to */

/// Side of the square score tiles that tile maps and bounds describe.
enum MapTile : int32_t { kMapTile = 32 };

/// Strides of the batch, head and row axes in elements; the last axis is contiguous.
struct Strides3 {
  int64_t b;
  int64_t h;
  int64_t l;
};

/// Strides of a (B,H,qL,kL)-broadcastable operand in elements; 0 broadcasts.
struct Strides4 {
  int64_t b;
  int64_t h;
  int64_t q;
  int64_t k;
};

/// Per-call values of every attention kernel.
struct AttnParams {
  int32_t B;
  int32_t H;
  int32_t Hk;
  int32_t gqa_factor;  ///< H / Hk: query head h reads key head h / gqa_factor

  int32_t qL;
  int32_t kL;
  int32_t q_off;               ///< kL - qL: row i stands at key i + q_off
  int32_t window_left;         ///< keys before the diagonal that stay visible, clamped to 2^30
  int32_t window_right;        ///< keys after it; 0 when causal, clamped to 2^30
  int32_t n_blocks;            ///< owner blocks per head: ceil(qL/BQ) or ceil(kL/BK)
  int32_t heads_per_group;     ///< heads that take turns block by block (cache reuse), see block_of()
  int32_t n_splits;            ///< grid.y; 1 unless has_splits
  uint32_t first_threadgroup;  ///< added to grid.x: a launch may cover part of the blocks

  float q_sign;            ///< sign of the scale (0 for scale 0): S = q_sign * q.k
  float scale;             ///< signed scale, applied once to dQ and dK
  float scale_log2;        ///< |scale| * log2(e) > 0 (log2(e) for scale 0, where S = 0)
  float softcap_in;        ///< |scale| / softcap
  float softcap_out_log2;  ///< softcap * log2(e)

  int32_t q_map_tiles;  ///< ceil(qL / 32)
  int32_t k_map_tiles;  ///< ceil(kL / 32)

  Strides3 q;
  Strides3 k;
  Strides3 v;
  Strides3 o;
  Strides3 d_o;
  Strides3 d_q;
  Strides3 d_k;
  Strides3 d_v;
  Strides4 mask;
  Strides4 tile_map;  ///< q and k strides count 32x32 tiles
  Strides4 d_mask;    ///< b or h 0: the mask is shared, and a launch covers one batch or head at a time
  int64_t alibi_b;    ///< slope of (b,h) at b*alibi_b + h*alibi_h
  int64_t alibi_h;
  int64_t q_segments_b;  ///< id of (b,row) at b*q_segments_b + row
  int64_t k_segments_b;
  int64_t row_diagonals_b;
  int64_t q_bounds_b;  ///< in int32[4] records: (b,tile) at b*q_bounds_b + tile
  int64_t k_bounds_b;
};

/// bwd_delta: delta = rowsum(dO * O) - log2(e) * dLSE2, one simdgroup per row.
struct DeltaParams {
  int32_t B;
  int32_t H;
  int32_t qL;
  int32_t Dv;
  int32_t has_dlse;  ///< In2 holds f32 (B,H,qL), the cotangent of the log2-domain LSE
  int32_t pad;
  int64_t first_row;  ///< added to the row index: a launch may cover part of the rows
  Strides3 o;         ///< In0
  Strides3 d_o;       ///< In1
};

/// bwd_reduce: Out[b,h,l,d] = T(sum over s of In0[s * n + i]), in ascending s, where i = ((b * H + h) * L + l) * D + d.
struct ReduceParams {
  int64_t n;      ///< elements in all: B * H * L * D
  int64_t first;  ///< added to the element index: a launch may cover part of the elements
  int32_t H;
  int32_t L;
  int32_t D;
  int32_t n_splits;
  Strides3 out;
};

/// fwd_merge: joins the key splits of one row by their LSE. In0 O partials, In1 LSE partials, Out O, In2 (written) LSE.
struct MergeParams {
  int32_t B;
  int32_t H;
  int32_t qL;
  int32_t Dv;
  int32_t n_splits;
  int32_t pad;
  int64_t first_row;
  Strides3 o;
};

/// pack: Out, contiguous, = In0 read through four strides.
struct PackParams {
  int64_t n;      ///< elements in all
  int64_t first;  ///< added to the element index
  int32_t shape[4];
  int64_t strides[4];
};

/// tile_map: Out[b,h,i,j] = 1 where some element of the bool mask (In0) in 32x32 tile (i,j) is set and the block
/// mask (In1, when has_block) lets the tile through.
struct TileMapParams {
  int32_t B;  ///< 1 where neither mask varies with the batch
  int32_t H;
  int32_t qL;
  int32_t kL;
  int32_t has_block;
  int32_t pad;
  int64_t first_tile;
  Strides4 mask;
  Strides4 block;
};

/// row_bounds: Out[b,t] = {min id, max id, min diagonal, max diagonal} over rows [32t, 32t+32).
struct RowBoundsParams {
  int32_t B;
  int32_t L;
  int32_t has_segments;   ///< In0: int32 ids
  int32_t has_diagonals;  ///< In1: int32 key positions
  int64_t segments_b;
  int64_t diagonals_b;
};

static_assert(sizeof(Strides3) == 24 && sizeof(Strides4) == 32, "strides have no padding");
static_assert(sizeof(AttnParams) == 80 + 8 * 24 + 3 * 32 + 7 * 8, "AttnParams has no hidden padding");
static_assert(sizeof(DeltaParams) == 80, "DeltaParams has no hidden padding");
static_assert(sizeof(ReduceParams) == 56, "ReduceParams has no hidden padding");
static_assert(sizeof(MergeParams) == 56, "MergeParams has no hidden padding");
static_assert(sizeof(PackParams) == 64, "PackParams has no hidden padding");
static_assert(sizeof(TileMapParams) == 96, "TileMapParams has no hidden padding");
static_assert(sizeof(RowBoundsParams) == 32, "RowBoundsParams has no hidden padding");

}  // namespace flashrt
