<%include file="provenance.mako"/>\
#include "flashrt/attention.h"

using namespace flashrt;

using T = ${cfg.dtype.msl};
constant constexpr int BQ = ${cfg.BQ}, BK = ${cfg.BK}, D = ${cfg.D}, Dv = ${cfg.Dv}, WM = ${cfg.WM};
constant constexpr int LDQ = ${res.pitch_q}, LDV = ${res.pitch_v};  // row pitches of staged tiles
constant constexpr int kThreads = kSimd * WM;
constant constexpr int R = BK / WM;  // keys of a simdgroup
constant constexpr int TR = R / kFrag, TQ = BQ / kFrag;

// One threadgroup owns BK keys of one key head, keeps their dK and dV in registers and walks over the queries that see
// them, through every query head of the group. Scores stand transposed: rows are keys, columns queries.
[[kernel, max_total_threads_per_threadgroup(kThreads)]]
void ${cfg.name}(
    device const T* Q [[buffer(kBufQ)]], device const T* K [[buffer(kBufK)]], device const T* V [[buffer(kBufV)]],
    device const T* dO [[buffer(kBufDO)]], device const float* lse [[buffer(kBufLse)]],
    device const float* delta [[buffer(kBufDelta)]], device T* dK [[buffer(kBufDK)]],
    device T* dV [[buffer(kBufDV)]], constant AttnParams& p [[buffer(kBufParams)]],
    device float* dK_partial [[buffer(kBufDKPartial), function_constant(has_splits)]],
    device float* dV_partial [[buffer(kBufDVPartial), function_constant(has_splits)]],
<%include file="score_arguments.mako"/>\
% if res.owner_staged:
  threadgroup T Ks[BK * LDQ];
  threadgroup T Vs[BK * LDV];
% endif
  threadgroup T Qs[BQ * LDQ];
  threadgroup T dOs[BQ * LDV];
  threadgroup float stats[2 * BQ];  // LSE and delta of the staged rows
  const ushort thread_index = simd * kSimd + lane;
  const LanePos at = lane_pos(lane);
  const Block block = block_of(p, threadgroup_pos, p.Hk, false);
  const int b = block.b, hk = block.h, k0 = block.index * BK;
  const int row0 = k0 + simd * R;

<%include file="score_operands.mako"/>\
  device const T* Kh = K + (b * p.k.b + hk * p.k.h);
  device const T* Vh = V + (b * p.v.b + hk * p.v.h);
% if res.owner_staged:
  const StagedRows<T, TR> k_rows = staged_rows<T, TR, LDQ>(Ks, simd * R, at);
  const StagedRows<T, TR> v_rows = staged_rows<T, TR, LDV>(Vs, simd * R, at);
  stage_rows<T, BK, D, LDQ, kThreads>(Ks, Kh + k0 * p.k.l, p.k.l, p.kL - k0, thread_index);
  stage_rows<T, BK, Dv, LDV, kThreads>(Vs, Vh + k0 * p.v.l, p.v.l, p.kL - k0, thread_index);
% else:
  const DeviceRows<T, TR> k_rows = owner_rows<T, TR>(Kh, p.k.l, row0, p.kL, at);
  const DeviceRows<T, TR> v_rows = owner_rows<T, TR>(Vh, p.v.l, row0, p.kL, at);
% endif

  Tile<TR, D / kFrag> dK_acc;
  Tile<TR, Dv / kFrag> dV_acc;
  clear(dK_acc);
  clear(dV_acc);

  // Steps run over (head of the group, query block), so that a split may cut anywhere.
  const BlockRange queries = query_blocks<BQ>(p, k0, BK);
  const int n_blocks = metal::max(0, queries.end - queries.begin);
  BlockRange steps;
  steps.begin = 0;
  steps.end = p.gqa_factor * n_blocks;
  if (has_splits) {
    steps = split_range(steps, threadgroup_pos.y, p.n_splits);
  }
  for (int step = steps.begin; step < steps.end; ++step) {
    const int h = hk * p.gqa_factor + step / n_blocks;
    const int q0 = (queries.begin + step % n_blocks) * BQ;
    const ScoreTerms<T> terms = score_terms<T>(operands, p, b, h);
    const short tile = classify_tile<BQ, BK, true>(terms, p, q0, k0);
    if (tile == kTileHidden) {
      continue;
    }
    const int64_t rows = (int64_t(b) * p.H + h) * p.qL + q0;
    stage_rows<T, BQ, D, LDQ, kThreads>(Qs, Q + (b * p.q.b + h * p.q.h + q0 * p.q.l), p.q.l, p.qL - q0, thread_index);
    stage_rows<T, BQ, Dv, LDV, kThreads>(dOs, dO + (b * p.d_o.b + h * p.d_o.h + q0 * p.d_o.l), p.d_o.l, p.qL - q0,
                                         thread_index);
    stage_stats<BQ, kThreads>(stats, lse + rows, delta + rows, p.qL - q0, thread_index);
    threadgroup_barrier(mem_flags::mem_threadgroup);  // staged rows are complete

    Tile<TR, TQ> S;  // S^T = K Q^T
    clear(S);
    mma_abt<T, D, LDQ>(S, k_rows, Qs, at);
    if (p.q_sign != 1.0f) {
      multiply(S, p.q_sign);
    }
    Tile<TR, TQ> slopes;  // of the softcap
    if (has_softcap) {
      softcap_slopes(slopes, S, p);
    }
    float scale_log2 = p.scale_log2;
    if (tile == kTileEdge) {
      apply_terms<BQ, BK, true>(S, terms, p, row0, q0, at);
      scale_log2 = 1.0f;  // S holds logits now
    }
    probabilities_t(S, stats, scale_log2, at);  // P = exp2(S - LSE)
    mma_ab<T, Dv, LDV>(dV_acc, S, dOs, at);     // dV += P^T dO

    Tile<TR, TQ> dS;  // dP^T = V dO^T
    clear(dS);
    mma_abt<T, Dv, LDV>(dS, v_rows, dOs, at);
    score_gradients_t(dS, S, stats, at);  // dS = P * (dP - delta)
    if (has_softcap) {
      multiply_tiles(dS, slopes);
    }
    mma_ab<T, D, LDQ>(dK_acc, dS, Qs, at);  // dK += dS^T Q
    threadgroup_barrier(mem_flags::mem_threadgroup);  // all simdgroups are done with Q, dO and the stats
  }

  multiply(dK_acc, p.scale);
  if (has_splits) {
    const int64_t rows = ((int64_t(threadgroup_pos.y) * p.B + b) * p.Hk + hk) * p.kL;
    store_rows<float, D>(dK_acc, dK_partial + rows * D, D, row0, p.kL, at);
    store_rows<float, Dv>(dV_acc, dV_partial + rows * Dv, Dv, row0, p.kL, at);
  } else {
    store_rows<T, D>(dK_acc, dK + (b * p.d_k.b + hk * p.d_k.h), p.d_k.l, row0, p.kL, at);
    store_rows<T, Dv>(dV_acc, dV + (b * p.d_v.b + hk * p.d_v.h), p.d_v.l, row0, p.kL, at);
  }
}
