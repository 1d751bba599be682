<%include file="provenance.mako"/>\
#include "flashrt/attention.h"

using namespace flashrt;

using T = ${cfg.dtype.msl};
constant constexpr int BQ = ${cfg.BQ}, BK = ${cfg.BK}, D = ${cfg.D}, Dv = ${cfg.Dv}, WM = ${cfg.WM};
constant constexpr int LDK = ${res.pitch_q}, LDV = ${res.pitch_v};  // row pitches of staged tiles
constant constexpr int kThreads = kSimd * WM;
constant constexpr int R = BQ / WM;  // query rows of a simdgroup
constant constexpr int TR = R / kFrag, TK = BK / kFrag, TD = D / kFrag;

// One threadgroup owns BQ query rows of one head, keeps their dQ in registers and walks over the keys they see.
[[kernel, max_total_threads_per_threadgroup(kThreads)]]
void ${cfg.name}(
    device const T* Q [[buffer(kBufQ)]], device const T* K [[buffer(kBufK)]], device const T* V [[buffer(kBufV)]],
    device const T* dO [[buffer(kBufDO)]], device const float* lse [[buffer(kBufLse)]],
    device const float* delta [[buffer(kBufDelta)]], device T* dQ [[buffer(kBufDQ)]],
    constant AttnParams& p [[buffer(kBufParams)]],
    device float* d_mask [[buffer(kBufDMask), function_constant(has_dmask)]],
<%include file="score_arguments.mako"/>\
% if res.owner_staged:
  threadgroup T Qs[BQ * LDK];
  threadgroup T dOs[BQ * LDV];
% endif
% if res.kv_resident:
  threadgroup T Ks[BK * LDK];
  threadgroup T Vs[BK * LDV];
% else:
  threadgroup T Ks[BK * (LDK > LDV ? LDK : LDV)];  // V, then K
  threadgroup T* Vs = Ks;
% endif
  const ushort thread_index = simd * kSimd + lane;
  const LanePos at = lane_pos(lane);
  const Block block = block_of(p, threadgroup_pos, p.H, do_causal);
  const int b = block.b, h = block.h, q0 = block.index * BQ;
  const int row0 = q0 + simd * R;

<%include file="score_operands.mako"/>\
  const ScoreTerms<T> terms = score_terms<T>(operands, p, b, h);
  device const T* Qh = Q + (b * p.q.b + h * p.q.h);
  device const T* dOh = dO + (b * p.d_o.b + h * p.d_o.h);
  device const T* Kh = K + (b * p.k.b + h / p.gqa_factor * p.k.h);
  device const T* Vh = V + (b * p.v.b + h / p.gqa_factor * p.v.h);

% if res.owner_staged:
  const StagedRows<T, TR> q_rows = staged_rows<T, TR, LDK>(Qs, simd * R, at);
  const StagedRows<T, TR> dO_rows = staged_rows<T, TR, LDV>(dOs, simd * R, at);
  stage_rows<T, BQ, D, LDK, kThreads>(Qs, Qh + q0 * p.q.l, p.q.l, p.qL - q0, thread_index);
  stage_rows<T, BQ, Dv, LDV, kThreads>(dOs, dOh + q0 * p.d_o.l, p.d_o.l, p.qL - q0, thread_index);
% else:
  const DeviceRows<T, TR> q_rows = owner_rows<T, TR>(Qh, p.q.l, row0, p.qL, at);
  const DeviceRows<T, TR> dO_rows = owner_rows<T, TR>(dOh, p.d_o.l, row0, p.qL, at);
% endif
  float row_lse[TR];
  float row_delta[TR];
  const int64_t rows = (int64_t(b) * p.H + h) * p.qL;
  load_row_stats<TR>(row_lse, row_delta, lse + rows, delta + rows, row0, p.qL, at);

  Tile<TR, TD> acc;
  clear(acc);
  const BlockRange keys = key_blocks<BK>(p, q0, BQ);
  for (int kb = keys.begin; kb < keys.end; ++kb) {
    const int k0 = kb * BK;
    const short tile = classify_tile<BQ, BK, false>(terms, p, q0, k0);
    if (tile == kTileHidden) {
      continue;
    }
    stage_rows<T, BK, Dv, LDV, kThreads>(Vs, Vh + k0 * p.v.l, p.v.l, p.kL - k0, thread_index);
% if res.kv_resident:
    stage_rows<T, BK, D, LDK, kThreads>(Ks, Kh + k0 * p.k.l, p.k.l, p.kL - k0, thread_index);
% endif
    threadgroup_barrier(mem_flags::mem_threadgroup);  // staged rows are complete

    Tile<TR, TK> dS;  // dP = dO V^T
    clear(dS);
    mma_abt<T, Dv, LDV>(dS, dO_rows, Vs, at);
% if not res.kv_resident:
    threadgroup_barrier(mem_flags::mem_threadgroup);  // all simdgroups are done with V
    stage_rows<T, BK, D, LDK, kThreads>(Ks, Kh + k0 * p.k.l, p.k.l, p.kL - k0, thread_index);
    threadgroup_barrier(mem_flags::mem_threadgroup);  // K is complete, for S and for dQ
% endif

    Tile<TR, TK> S;  // S = Q K^T
    clear(S);
    mma_abt<T, D, LDK>(S, q_rows, Ks, at);
    if (p.q_sign != 1.0f) {
      multiply(S, p.q_sign);
    }
    Tile<TR, TK> slopes;  // of the softcap
    if (has_softcap) {
      softcap_slopes(slopes, S, p);
    }
    float scale_log2 = p.scale_log2;
    if (tile == kTileEdge) {
      apply_terms<BQ, BK, false>(S, terms, p, row0, k0, at);
      scale_log2 = 1.0f;  // S holds logits now
    }
    probabilities(S, row_lse, scale_log2);  // P = exp2(S - LSE)
    score_gradients(dS, S, row_delta);      // dS = P * (dP - delta)
    if (has_dmask) {
      add_mask_gradient(d_mask + (b * p.d_mask.b + h * p.d_mask.h), dS, p, row0, k0, at);
    }
    if (has_softcap) {
      multiply_tiles(dS, slopes);
    }
    mma_ab<T, D, LDK>(acc, dS, Ks, at);  // dQ += dS K
    threadgroup_barrier(mem_flags::mem_threadgroup);  // all simdgroups are done with K
  }

  multiply(acc, p.scale);
  store_rows<T, D>(acc, dQ + (b * p.d_q.b + h * p.d_q.h), p.d_q.l, row0, p.qL, at);
}
