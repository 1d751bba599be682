<%include file="provenance.mako"/>\
#include "flashrt/attention.h"

using namespace flashrt;

// {min id, max id, min diagonal, max diagonal} of every 32 rows, so that whole tiles of scores can be ruled out without
// a look at their rows. One simdgroup per record, one row per lane; lanes past the end repeat the last row.
[[kernel, max_total_threads_per_threadgroup(kSimd)]]
void ${cfg.name}(
    constant RowBoundsParams& p [[buffer(kBufHelperParams)]], device int4* bounds [[buffer(kBufHelperOut)]],
    device const int32_t* segments [[buffer(kBufHelperIn0)]], device const int32_t* diagonals [[buffer(kBufHelperIn1)]],
    uint3 threadgroup_pos [[threadgroup_position_in_grid]], ushort lane [[thread_index_in_simdgroup]]) {
  const int t = int(threadgroup_pos.x), b = int(threadgroup_pos.y);
  const int row = metal::min(t * kMapTile + int(lane), p.L - 1);
  int4 record;
  record.x = record.y = record.z = record.w = 0;
  if (p.has_segments != 0) {
    const int id = segments[b * p.segments_b + row];
    record.x = simd_min(id);
    record.y = simd_max(id);
  }
  if (p.has_diagonals != 0) {
    const int diagonal = diagonals[b * p.diagonals_b + row];
    record.z = simd_min(diagonal);
    record.w = simd_max(diagonal);
  }
  if (lane == 0) {
    bounds[int64_t(b) * ceil_div(p.L, kMapTile) + t] = record;
  }
}
