<%include file="provenance.mako"/>\
#include "flashrt/attention.h"

using namespace flashrt;

using T = ${cfg.dtype.msl};
using Slot = ${"float" if cfg.dtype.msl == "float" else "half"};  // P from the V role to the K role
constant constexpr int BQ = ${cfg.BQ}, BK = ${cfg.BK}, D = ${cfg.D}, Dv = ${cfg.Dv}, WM = ${cfg.WM}, W = ${cfg.W};
constant constexpr int LDQ = ${res.pitch_q}, LDV = ${res.pitch_v};  // row pitches of staged tiles
constant constexpr int kRoles = 2, WN = kRoles * W;
constant constexpr int kThreads = kSimd * WM * WN;
constant constexpr int R = BK / WM;  // keys of a row group
constant constexpr int TR = R / kFrag, TQ = BQ / kFrag;
constant constexpr int TD = (D > Dv ? D : Dv) / W / kFrag;

// One threadgroup owns BK keys of one key head and walks over the queries that see them, through every query head of
// the group. Scores stand transposed: rows are keys, columns queries. Two roles share a row group: the V role makes S,
// P and dV, the K role dP, dS and dK, so each holds one accumulator; P crosses once, through a slot of threadgroup
// memory.
% if cfg.W > 1:
// Each role is W simdgroups, one part of D and Dv each, which add their partial scores through threadgroup memory.
% endif
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
  threadgroup Slot slots[WM * R * BQ];
% if cfg.W > 1:
  threadgroup float exchange[WM * WN * R * BQ];  // partial scores, lane by lane
% endif
  const ushort thread_index = simd * kSimd + lane;
  const LanePos at = lane_pos(lane);
  const Block block = block_of(p, threadgroup_pos, p.Hk, false);
  const int b = block.b, hk = block.h, k0 = block.index * BK;
  const int row_group = simd / WN, part = simd % W;
  const bool v_role = simd % WN < W;
  const int row0 = k0 + row_group * R;
  const int d0 = part * (D / W), dv0 = part * (Dv / W);  // first columns of this part
  threadgroup Slot* slot = slots + row_group * (R * BQ);

<%include file="score_operands.mako"/>\
  device const T* Kh = K + (b * p.k.b + hk * p.k.h);
  device const T* Vh = V + (b * p.v.b + hk * p.v.h);
% if res.owner_staged:
  const StagedRows<T, TR> k_rows = staged_rows<T, TR, LDQ>(Ks + d0, row_group * R, at);
  const StagedRows<T, TR> v_rows = staged_rows<T, TR, LDV>(Vs + dv0, row_group * R, at);
  stage_rows<T, BK, D, LDQ, kThreads>(Ks, Kh + k0 * p.k.l, p.k.l, p.kL - k0, thread_index);
  stage_rows<T, BK, Dv, LDV, kThreads>(Vs, Vh + k0 * p.v.l, p.v.l, p.kL - k0, thread_index);
% else:
  const DeviceRows<T, TR> k_rows = owner_rows<T, TR>(Kh + d0, p.k.l, row0, p.kL, at);
  const DeviceRows<T, TR> v_rows = owner_rows<T, TR>(Vh + dv0, p.v.l, row0, p.kL, at);
% endif

  Tile<TR, TD> acc;  // dV in the V role, dK in the K role
  clear(acc);

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

    Tile<TR, TQ> X;  // V role: S^T = K Q^T, then P^T; K role: dP^T = V dO^T, then dS^T
    clear(X);
    if (v_role) {
      mma_abt<T, D / W, LDQ>(X, k_rows, Qs + d0, at);
    } else {
      mma_abt<T, Dv / W, LDV>(X, v_rows, dOs + dv0, at);
    }
% if cfg.W > 1:
    put_tile(exchange + simd * (R * BQ), X, lane);
    threadgroup_barrier(mem_flags::mem_threadgroup);  // partial scores are complete
    add_tile(X, exchange + (simd ^ 1) * (R * BQ), lane);
% endif
    if (v_role) {
      if (p.q_sign != 1.0f) {
        multiply(X, p.q_sign);
      }
      Tile<TR, TQ> slopes;  // of the softcap
      if (has_softcap) {
        softcap_slopes(slopes, X, p);
      }
      float scale_log2 = p.scale_log2;
      if (tile == kTileEdge) {
        apply_terms<BQ, BK, true>(X, terms, p, row0, q0, at);
        scale_log2 = 1.0f;  // X holds logits now
      }
      probabilities_t(X, stats, scale_log2, at);  // P = exp2(S - LSE)
      if (has_softcap) {
        multiply_tiles(slopes, X);  // the K role needs P only inside dS, which carries the slope
      } else {
        round_to_slot<Slot>(X);  // both roles use the value that crosses
      }
      if (part == 0) {
        if (has_softcap) {
          put_slot(slot, slopes, lane);
        } else {
          put_slot(slot, X, lane);
        }
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);  // P has crossed
    if (v_role) {
      mma_ab<T, Dv / W, LDV>(acc, X, dOs + dv0, at);  // dV += P^T dO
    } else {
      Tile<TR, TQ> P;
      get_slot(P, slot, lane);
      score_gradients_t(X, P, stats, at);            // dS = P * (dP - delta)
      mma_ab<T, D / W, LDQ>(acc, X, Qs + d0, at);  // dK += dS^T Q
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);  // all simdgroups are done with Q, dO, the stats and the slot
  }

  if (v_role) {
    if (has_splits) {
      const int64_t rows = ((int64_t(threadgroup_pos.y) * p.B + b) * p.Hk + hk) * p.kL;
      store_rows<float, Dv / W>(acc, dV_partial + rows * Dv + dv0, Dv, row0, p.kL, at);
    } else {
      store_rows<T, Dv / W>(acc, dV + (b * p.d_v.b + hk * p.d_v.h) + dv0, p.d_v.l, row0, p.kL, at);
    }
  } else {
    multiply(acc, p.scale);
    if (has_splits) {
      const int64_t rows = ((int64_t(threadgroup_pos.y) * p.B + b) * p.Hk + hk) * p.kL;
      store_rows<float, D / W>(acc, dK_partial + rows * D + d0, D, row0, p.kL, at);
    } else {
      store_rows<T, D / W>(acc, dK + (b * p.d_k.b + hk * p.d_k.h) + d0, p.d_k.l, row0, p.kL, at);
    }
  }
}
