<%include file="provenance.mako"/>\
#include "flashrt/attention.h"

using namespace flashrt;

using T = ${cfg.dtype.msl};
constant constexpr int kRows = ${cfg.WM};  // rows of a threadgroup, one simdgroup each

// delta = rowsum(dO * O) - dLSE, with dLSE = log2(e) * dLSE2: what the softmax's normalisation takes from every dP.
[[kernel, max_total_threads_per_threadgroup(kSimd * kRows)]]
void ${cfg.name}(
    constant DeltaParams& p [[buffer(kBufHelperParams)]], device float* delta [[buffer(kBufHelperOut)]],
    device const T* O [[buffer(kBufHelperIn0)]], device const T* dO [[buffer(kBufHelperIn1)]],
    device const float* d_lse [[buffer(kBufHelperIn2)]], uint3 threadgroup_pos [[threadgroup_position_in_grid]],
    ushort simd [[simdgroup_index_in_threadgroup]], ushort lane [[thread_index_in_simdgroup]]) {
  const int64_t row = p.first_row + int64_t(threadgroup_pos.x) * kRows + simd;
  const int64_t heads = int64_t(p.B) * p.H;
  if (row >= heads * p.qL) {
    return;  // a whole simdgroup; there are no barriers
  }
  const int64_t head = quotient(row, p.qL), q = row - head * p.qL;
  const int64_t b = quotient(head, p.H), h = head - b * p.H;
  device const T* o_row = O + (b * p.o.b + h * p.o.h + q * p.o.l);
  device const T* dO_row = dO + (b * p.d_o.b + h * p.d_o.h + q * p.d_o.l);
  float sum = 0.0f;
  for (int d = lane; d < p.Dv; d += kSimd) {
    sum += float(o_row[d]) * float(dO_row[d]);
  }
  sum = simd_sum(sum);
  if (lane == 0) {
    delta[row] = p.has_dlse != 0 ? sum - kLog2E * d_lse[row] : sum;
  }
}
