<%include file="provenance.mako"/>\
#include "flashrt/attention.h"

using namespace flashrt;

using T = ${cfg.dtype.msl};
constant constexpr int BQ = ${cfg.BQ}, BK = ${cfg.BK}, D = ${cfg.D}, Dv = ${cfg.Dv}, WM = ${cfg.WM}, W = ${cfg.W};
constant constexpr int LDK = ${res.pitch_q}, LDV = ${res.pitch_v};  // row pitches of staged tiles
constant constexpr int kThreads = kSimd * WM * W;
constant constexpr int R = BQ / WM;  // query rows of a row group
constant constexpr int TR = R / kFrag, TK = BK / kFrag, TD = Dv / W / kFrag;

// One threadgroup owns BQ query rows of one head and walks over the keys they see. W simdgroups share a row group: each
// holds one part of D and Dv, and they add their partial scores through threadgroup memory.
[[kernel, max_total_threads_per_threadgroup(kThreads)]]
void ${cfg.name}(
    device const T* Q [[buffer(kBufQ)]], device const T* K [[buffer(kBufK)]], device const T* V [[buffer(kBufV)]],
    device T* O [[buffer(kBufO)]], device float* lse [[buffer(kBufLse)]], constant AttnParams& p [[buffer(kBufParams)]],
    device float* O_partial [[buffer(kBufOPartial), function_constant(has_splits)]],
    device float* lse_partial [[buffer(kBufLsePartial), function_constant(has_splits)]],
    device const float* sinks [[buffer(kBufSinks), function_constant(has_sinks)]],
<%include file="score_arguments.mako"/>\
% if res.owner_staged:
  threadgroup T Qs[BQ * LDK];
% endif
% if res.kv_resident:
  threadgroup T Ks[BK * LDK];
  threadgroup T Vs[BK * LDV];
% else:
  threadgroup T Ks[BK * (LDK > LDV ? LDK : LDV)];  // K, then V
  threadgroup T* Vs = Ks;
% endif
  threadgroup float exchange[WM * W * R * BK];  // partial scores, lane by lane
  const ushort thread_index = simd * kSimd + lane;
  const LanePos at = lane_pos(lane);
  const Block block = block_of(p, threadgroup_pos, p.H, do_causal);
  const int b = block.b, h = block.h, q0 = block.index * BQ;
  const int row_group = simd / W, part = simd % W;
  const int row0 = q0 + row_group * R;
  const int d0 = part * (D / W), dv0 = part * (Dv / W);  // first columns of this part

<%include file="score_operands.mako"/>\
  const ScoreTerms<T> terms = score_terms<T>(operands, p, b, h);
  device const T* Qh = Q + (b * p.q.b + h * p.q.h);
  device const T* Kh = K + (b * p.k.b + h / p.gqa_factor * p.k.h);
  device const T* Vh = V + (b * p.v.b + h / p.gqa_factor * p.v.h);

% if res.owner_staged:
  const StagedRows<T, TR> q_rows = staged_rows<T, TR, LDK>(Qs + d0, row_group * R, at);
  stage_rows<T, BQ, D, LDK, kThreads>(Qs, Qh + q0 * p.q.l, p.q.l, p.qL - q0, thread_index);
% else:
  const DeviceRows<T, TR> q_rows = owner_rows<T, TR>(Qh + d0, p.q.l, row0, p.qL, at);
% endif

  SoftmaxState<TR> state;
  start(state, has_sinks && threadgroup_pos.y == 0, has_sinks ? sinks[h] * kLog2E : 0.0f, at);
  Tile<TR, TD> acc;
  clear(acc);

  BlockRange keys = key_blocks<BK>(p, q0, BQ);
  if (has_splits) {
    keys = split_range(keys, threadgroup_pos.y, p.n_splits);
  }
  for (int kb = keys.begin; kb < keys.end; ++kb) {
    const int k0 = kb * BK;
    const short tile = classify_tile<BQ, BK, false>(terms, p, q0, k0);
    if (tile == kTileHidden) {
      continue;
    }
    stage_rows<T, BK, D, LDK, kThreads>(Ks, Kh + k0 * p.k.l, p.k.l, p.kL - k0, thread_index);
% if res.kv_resident:
    stage_rows<T, BK, Dv, LDV, kThreads>(Vs, Vh + k0 * p.v.l, p.v.l, p.kL - k0, thread_index);
% endif
    threadgroup_barrier(mem_flags::mem_threadgroup);  // staged rows are complete

    Tile<TR, TK> S;  // S = Q K^T, this part of D
    clear(S);
    mma_abt<T, D / W, LDK>(S, q_rows, Ks + d0, at);
    put_tile(exchange + simd * (R * BK), S, lane);
    threadgroup_barrier(mem_flags::mem_threadgroup);  // partial scores are complete, all are done with K
    add_tile(S, exchange + (simd ^ 1) * (R * BK), lane);
% if not res.kv_resident:
    stage_rows<T, BK, Dv, LDV, kThreads>(Vs, Vh + k0 * p.v.l, p.v.l, p.kL - k0, thread_index);
% endif
    if (p.q_sign != 1.0f) {
      multiply(S, p.q_sign);
    }
    float scale_log2 = p.scale_log2;
    if (tile == kTileEdge) {
      apply_terms<BQ, BK, false>(S, terms, p, row0, k0, at);
      scale_log2 = 1.0f;  // S holds logits now
    }
    update(state, S, acc, scale_log2);  // S -> P; l, acc rescaled
% if not res.kv_resident:
    threadgroup_barrier(mem_flags::mem_threadgroup);  // V is complete
% endif
    mma_ab<T, Dv / W, LDV>(acc, S, Vs + dv0, at);  // O += P V
    threadgroup_barrier(mem_flags::mem_threadgroup);  // all simdgroups are done with V
  }

  finish(state, acc);  // O = acc / l
  if (has_splits) {
    const int64_t rows = ((int64_t(threadgroup_pos.y) * p.B + b) * p.H + h) * p.qL;
    store_rows<float, Dv / W>(acc, O_partial + rows * Dv + dv0, Dv, row0, p.qL, at);
    if (part == 0) {
      store_lse(state, lse_partial + rows, row0, p.qL, at);
    }
  } else {
    store_rows<T, Dv / W>(acc, O + (b * p.o.b + h * p.o.h) + dv0, p.o.l, row0, p.qL, at);
    if (part == 0) {
      store_lse(state, lse + (int64_t(b) * p.H + h) * p.qL, row0, p.qL, at);
    }
  }
}
