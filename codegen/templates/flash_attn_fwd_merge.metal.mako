<%include file="provenance.mako"/>\
#include "flashrt/attention.h"

using namespace flashrt;

using T = ${cfg.dtype.msl};
constant constexpr int kRows = ${cfg.WM};  // rows of a threadgroup, one simdgroup each

// Joins the key splits of a row: each part weighs exp2(its LSE), a part that saw no key nothing.
[[kernel, max_total_threads_per_threadgroup(kSimd * kRows)]]
void ${cfg.name}(
    constant MergeParams& p [[buffer(kBufHelperParams)]], device T* O [[buffer(kBufHelperOut)]],
    device const float* O_partial [[buffer(kBufHelperIn0)]], device const float* lse_partial [[buffer(kBufHelperIn1)]],
    device float* lse [[buffer(kBufHelperIn2)]], uint3 threadgroup_pos [[threadgroup_position_in_grid]],
    ushort simd [[simdgroup_index_in_threadgroup]], ushort lane [[thread_index_in_simdgroup]]) {
  const int64_t row = p.first_row + int64_t(threadgroup_pos.x) * kRows + simd;
  const int64_t n_rows = int64_t(p.B) * p.H * p.qL;
  if (row >= n_rows) {
    return;  // a whole simdgroup; there are no barriers
  }
  float m = kFloor;
  bool any = false;
  for (int s = 0; s < p.n_splits; ++s) {
    const float part = lse_partial[s * n_rows + row];
    any = any || part != -metal::numeric_limits<float>::infinity();
    m = metal::max(m, part);
  }
  float total = 0.0f;
  for (int s = 0; s < p.n_splits; ++s) {
    total += metal::fast::exp2(metal::max(lse_partial[s * n_rows + row], kMasked) - m);
  }
  const float inverse = any ? 1.0f / total : 0.0f;

  const int64_t head = quotient(row, p.qL), q = row - head * p.qL;
  const int64_t b = quotient(head, p.H), h = head - b * p.H;
  device T* o_row = O + (b * p.o.b + h * p.o.h + q * p.o.l);
  for (int d = lane; d < p.Dv; d += kSimd) {
    float sum = 0.0f;
    for (int s = 0; s < p.n_splits; ++s) {
      const float weight = metal::fast::exp2(metal::max(lse_partial[s * n_rows + row], kMasked) - m);
      sum += weight * O_partial[(s * n_rows + row) * p.Dv + d];
    }
    o_row[d] = T(sum * inverse);
  }
  if (lane == 0) {
    lse[row] = any ? m + metal::precise::log2(total) : -metal::numeric_limits<float>::infinity();
  }
}
