// Which block of rows a threadgroup owns, and which blocks of the other side it has to visit.
//
// Everything here is the same for all threads of a threadgroup.
#pragma once

#include "flashrt/constants.h"

namespace flashrt {

/// The block of one (batch, head) that a threadgroup owns.
struct Block {
  int b;
  int h;
  int index;
};

/// Half-open range of blocks.
struct BlockRange {
  int begin;
  int end;
};

/// Threadgroup number -> block. Heads take turns block by block, heads_per_group of them at a time (their keys and
/// values share the cache), and the longest blocks come first: under a causal mask those are the last query blocks.
METAL_FUNC Block block_of(constant AttnParams& p, uint3 threadgroup_pos, int heads, bool last_first) {
  const int index = int(threadgroup_pos.x + p.first_threadgroup);
  const int per_group = p.heads_per_group * p.n_blocks;
  const int first_head = index / per_group * p.heads_per_group;
  const int in_group = index % per_group;
  const int n_heads = metal::min(p.heads_per_group, p.B * heads - first_head);
  const int rank = in_group / n_heads;
  const int head = first_head + in_group % n_heads;
  Block block;
  block.b = head / heads;
  block.h = head % heads;
  block.index = last_first ? p.n_blocks - 1 - rank : rank;
  return block;
}

/// ceil(a / b) for a >= 0.
METAL_FUNC int ceil_div(int a, int b) { return (a + b - 1) / b; }

/// a / b for a >= 0 and b > 0. GPUs divide in software, and 64 bits cost several times what 32 do: mostly enough.
METAL_FUNC int64_t quotient(int64_t a, int64_t b) {
  if (((a | b) >> 32) == 0) {
    return int64_t(uint32_t(a) / uint32_t(b));
  }
  return a / b;
}

/// Keys after a row's diagonal that stay visible; only read where do_causal or has_window.
METAL_FUNC int right_reach(constant AttnParams& p) { return do_causal ? 0 : p.window_right; }

/// Key blocks of size BK that query rows [q0, q0 + n_q) may see. Row diagonals leave the choice to classify_tile().
template <int BK>
METAL_FUNC BlockRange key_blocks(constant AttnParams& p, int q0, int n_q) {
  BlockRange range;
  range.begin = 0;
  range.end = ceil_div(p.kL, BK);
  if ((do_causal || has_window) && !has_row_diagonals) {
    const int last_key = metal::min(q0 + n_q, p.qL) - 1 + p.q_off + right_reach(p);
    range.end = metal::min(range.end, last_key < 0 ? 0 : last_key / BK + 1);
  }
  if (has_window && !has_row_diagonals) {
    range.begin = metal::max(0, q0 + p.q_off - p.window_left) / BK;
  }
  return range;
}

/// Query blocks of size BQ that may see keys [k0, k0 + n_k).
template <int BQ>
METAL_FUNC BlockRange query_blocks(constant AttnParams& p, int k0, int n_k) {
  BlockRange range;
  range.begin = 0;
  range.end = ceil_div(p.qL, BQ);
  if ((do_causal || has_window) && !has_row_diagonals) {
    range.begin = metal::max(0, k0 - right_reach(p) - p.q_off) / BQ;
  }
  if (has_window && !has_row_diagonals) {
    const int last_row = metal::min(k0 + n_k, p.kL) - 1 - p.q_off + p.window_left;
    range.end = metal::min(range.end, last_row < 0 ? 0 : last_row / BQ + 1);
  }
  return range;
}

/// The part of a range that falls to one split.
METAL_FUNC BlockRange split_range(BlockRange range, int split, int n_splits) {
  const int n = metal::max(0, range.end - range.begin);
  BlockRange part;
  part.begin = range.begin + int(int64_t(n) * split / n_splits);
  part.end = range.begin + int(int64_t(n) * (split + 1) / n_splits);
  return part;
}

}  // namespace flashrt
