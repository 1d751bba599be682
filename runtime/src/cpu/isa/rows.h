// The query rows of one block, as lanes: where each stands, what it may see, and how its operands are loaded.
#pragma once

#include "key_operand.h"

namespace flashrt::cpu {
namespace {

constexpr int kPanels = kRowBlock / kPanel;
static_assert(kRowBlock % kPanel == 0, "a row block is whole panels");

struct Rows {
  int32_t batch;
  int32_t count;   ///< lanes in use
  int32_t padded;  ///< rounded up to whole vectors; padding lanes hold zeros and are never stored
  int32_t head[kRowBlock];
  int32_t row[kRowBlock];
  int32_t diagonal[kRowBlock];  ///< key position of the row's diagonal
  int32_t lo[kRowBlock];        ///< first and last key inside causal and window
  int32_t hi[kRowBlock];
  int32_t segment[kRowBlock];
  float slope[kRowBlock];  ///< ALiBi slope * log2(e)
  int32_t lo_min, lo_max, hi_min, hi_max;
  int32_t segment_min, segment_max;
  int32_t panel_lo[kPanels], panel_hi[kPanels];  ///< first and last key that some lane of the panel may see
  bool shares_mask_row;                          ///< every lane reads the same row of the array mask

  int64_t offset(const Strides3& s, int lane) const { return batch * s.b + head[lane] * s.h + row[lane] * s.l; }
};

FLASHRT_INLINE int32_t clamp_position(int64_t x) {
  return static_cast<int32_t>(max_of<int64_t>(min_of<int64_t>(x, INT32_MAX), INT32_MIN));
}

/// Rows [block * kRowBlock, ...) of the `group` heads that start at `first_head`.
inline void set_rows(const Problem& p, const Tensors& t, const Geometry& g, int64_t batch, int64_t first_head,
                     int64_t block, Rows& rows) {
  const int64_t first = block * kRowBlock;
  rows.batch = static_cast<int32_t>(batch);
  rows.count = static_cast<int32_t>(min_of<int64_t>(kRowBlock, g.rows - first));
  rows.padded = static_cast<int32_t>(round_up(rows.count, kLanes));
  rows.lo_min = rows.hi_min = rows.segment_min = INT32_MAX;
  rows.lo_max = rows.hi_max = rows.segment_max = INT32_MIN;
  for (int i = 0; i < kPanels; ++i) {
    rows.panel_lo[i] = INT32_MAX;
    rows.panel_hi[i] = INT32_MIN;
  }
  for (int lane = 0; lane < rows.count; ++lane) {
    const int64_t r = first + lane;
    const int64_t row = r / g.group;
    rows.row[lane] = static_cast<int32_t>(row);
    rows.head[lane] = static_cast<int32_t>(first_head + r % g.group);
    const int64_t diagonal = p.has_row_diagonals ? t.row_diagonals[batch * p.row_diagonals_b + row] : row + p.q_off;
    rows.diagonal[lane] = clamp_position(diagonal);
    rows.lo[lane] = g.window_left == INT32_MAX ? INT32_MIN : clamp_position(diagonal - g.window_left);
    rows.hi[lane] = g.window_right == INT32_MAX ? INT32_MAX : clamp_position(diagonal + g.window_right);
    rows.segment[lane] = p.has_segments ? t.q_segments[batch * p.q_segments_b + row] : 0;
    rows.slope[lane] = p.has_alibi ? t.alibi[batch * p.alibi_b + rows.head[lane] * p.alibi_h] * kLog2e : 0.0f;
    rows.lo_min = min_of(rows.lo_min, rows.lo[lane]);
    rows.lo_max = max_of(rows.lo_max, rows.lo[lane]);
    rows.hi_min = min_of(rows.hi_min, rows.hi[lane]);
    rows.hi_max = max_of(rows.hi_max, rows.hi[lane]);
    rows.segment_min = min_of(rows.segment_min, rows.segment[lane]);
    rows.segment_max = max_of(rows.segment_max, rows.segment[lane]);
    int32_t& panel_lo = rows.panel_lo[lane / kPanel];
    int32_t& panel_hi = rows.panel_hi[lane / kPanel];
    panel_lo = min_of(panel_lo, rows.lo[lane]);
    panel_hi = max_of(panel_hi, rows.hi[lane]);
  }
  for (int lane = rows.count; lane < rows.padded; ++lane) {
    rows.head[lane] = rows.row[lane] = rows.diagonal[lane] = rows.lo[lane] = rows.segment[lane] = 0;
    rows.hi[lane] = INT32_MAX;
    rows.slope[lane] = 0.0f;
  }
  rows.shares_mask_row = p.mask.q == 0 && (p.mask.h == 0 || g.group == 1);
}

/// The block's rows of an operand, row-major with zeros from `columns` up to `ld`.
inline void load_rows(const Rows& rows, Dtype dtype, const void* base, const Strides3& strides, int64_t columns,
                      int64_t ld, float* out) {
  for (int lane = 0; lane < rows.count; ++lane) {
    float* row = out + lane * ld;
    load_row(dtype, base, rows.offset(strides, lane), columns, row);
    for (int64_t c = columns; c < ld; ++c) row[c] = 0.0f;
  }
}

/// What q is multiplied by once, so that a product of q and k is a score in the log2 domain (or tanh's argument).
FLASHRT_INLINE float query_factor(const Problem& p) {
  return p.softcap > 0.0f ? p.scale / p.softcap : p.scale * kLog2e;
}

}  // namespace
}  // namespace flashrt::cpu
