<%include file="provenance.mako"/>\
#include "flashrt/attention.h"

using namespace flashrt;

// One byte per 32x32 tile of scores: 1 where the block mask lets the tile through and the bool mask shows some key of
// it. One simdgroup per tile: lanes are keys, the loop runs over queries.
[[kernel, max_total_threads_per_threadgroup(kSimd)]]
void ${cfg.name}(
    constant TileMapParams& p [[buffer(kBufHelperParams)]], device uint8_t* tile_map [[buffer(kBufHelperOut)]],
    device const uint8_t* mask [[buffer(kBufHelperIn0)]], device const uint8_t* block_mask [[buffer(kBufHelperIn1)]],
    uint3 threadgroup_pos [[threadgroup_position_in_grid]], ushort lane [[thread_index_in_simdgroup]]) {
  const int64_t tile = p.first_tile + threadgroup_pos.x;
  const int q_tiles = ceil_div(p.qL, kMapTile), k_tiles = ceil_div(p.kL, kMapTile);
  const int64_t per_head = int64_t(q_tiles) * k_tiles;
  const int64_t head = quotient(tile, per_head);
  if (head >= int64_t(p.B) * p.H) {
    return;
  }
  const int64_t in_head = tile - head * per_head;
  const int i = int(quotient(in_head, k_tiles)), j = int(in_head - int64_t(i) * k_tiles);
  const int64_t b = quotient(head, p.H), h = head - b * p.H;
  bool open = true;
  if (p.has_block != 0) {
    open = block_mask[b * p.block.b + h * p.block.h + i * p.block.q + j * p.block.k] != 0;
  }
  int seen = 0;
  const int k = j * kMapTile + lane;
  if (open && k < p.kL) {
    device const uint8_t* column = mask + (b * p.mask.b + h * p.mask.h + k * p.mask.k);
    for (int q = i * kMapTile; q < metal::min((i + 1) * kMapTile, p.qL) && seen == 0; ++q) {
      seen = column[q * p.mask.q] != 0 ? 1 : 0;
    }
  }
  seen = simd_max(seen);
  if (lane == 0) {
    tile_map[tile] = uint8_t(seen);
  }
}
