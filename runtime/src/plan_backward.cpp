// Backward: delta first, then dQ and dK, dV, which do not depend on each other; where few threadgroups own keys, the
// query steps of dK and dV are split over grid.y and the f32 parts summed.
#include "plan_builder.h"

namespace flashrt {
namespace {

void launch_delta(PlanBuilder& builder, const Problem& p, const Buffer& delta, const Operand& o, const Operand& d_o) {
  const DeltaParams params = {
      .B = static_cast<int32_t>(p.B),
      .H = static_cast<int32_t>(p.H),
      .qL = static_cast<int32_t>(p.qL),
      .Dv = static_cast<int32_t>(p.Dv),
      .has_dlse = p.has_dlse,
      .pad = 0,
      .first_row = 0,
      .o = o.strides,
      .d_o = d_o.strides,
  };
  // Metal wants every slot bound: without a cotangent of the LSE its slot holds the LSE, which is not read.
  const Tensor d_lse = p.has_dlse ? Tensor::d_lse : Tensor::lse;
  builder.launch_helper(KernelKind::bwd_delta,
                        {writes(kBufHelperOut, delta), reads(kBufHelperIn0, o.buffer), reads(kBufHelperIn1, d_o.buffer),
                         reads(kBufHelperIn2, d_lse)},
                        params, &DeltaParams::first_row, p.B * p.H * p.qL, kRowsPerGroup);
}

/// dK or dV, as the kernel and the sum of its parts see it.
struct KeyGradient {
  Tensor output;
  bool wanted;
  int64_t width;
  int32_t slot;
  int32_t part_slot;
  Strides3 AttnParams::* strides;
  std::string_view name;
  Buffer parts{};
};

void bind_key_gradient(PlanBuilder& builder, const Problem& p, AttentionCall& call, KeyGradient& gradient,
                       int32_t n_splits) {
  const int64_t elements = p.B * p.Hk * p.kL * gradient.width;
  Buffer output = array_of(gradient.output);
  if (n_splits > 1) {
    gradient.parts = builder.temporary(gradient.name, n_splits * elements * int64_t{sizeof(float)});
    call.bindings.push_back(writes(gradient.part_slot, gradient.parts));
    output = gradient.parts;  // Metal wants every slot bound: the whole output's is not written
  } else if (!gradient.wanted) {
    // The kernel makes both gradients at once: one that nobody wants goes to scratch memory.
    output = builder.temporary(gradient.name, elements * size_of(p.dtype));
    call.params.*gradient.strides = {p.Hk * p.kL * gradient.width, p.kL * gradient.width, gradient.width};
  }
  call.bindings.push_back(writes(gradient.slot, output));
}

void launch_reduce(PlanBuilder& builder, const Problem& p, const AttnParams& attention, const KeyGradient& gradient,
                   int32_t n_splits) {
  const int64_t n = p.B * p.Hk * p.kL * gradient.width;
  const ReduceParams params = {
      .n = n,
      .first = 0,
      .H = static_cast<int32_t>(p.Hk),
      .L = static_cast<int32_t>(p.kL),
      .D = static_cast<int32_t>(gradient.width),
      .n_splits = n_splits,
      .out = attention.*gradient.strides,
  };
  builder.launch_helper(KernelKind::bwd_reduce,
                        {writes(kBufHelperOut, gradient.output), reads(kBufHelperIn0, gradient.parts)}, params,
                        &ReduceParams::first, n, kElementsPerGroup);
}

void launch_key_gradients(PlanBuilder& builder, const Problem& p, const KernelInfo& kernel, AttentionCall call,
                          std::span<KeyGradient> gradients, int32_t n_splits, const Ownership& owned) {
  for (KeyGradient& gradient : gradients) bind_key_gradient(builder, p, call, gradient, n_splits);
  builder.launch_tiled(kernel, std::move(call), owned, n_splits);
}

/// dQ and, in the same kernel, the gradient of the additive mask.
void launch_query_gradient(PlanBuilder& builder, const Problem& p, const Operation& operation, const KernelInfo& kernel,
                           AttentionCall call) {
  const int64_t kv_bytes = p.kL * (p.D + p.Dv) * size_of(p.dtype);
  const Ownership owned = {p.H, p.qL, kernel.bq, ceil_div(kv_bytes, p.H / p.Hk)};
  Buffer d_q = array_of(Tensor::d_q);
  if (!operation.d_q) {
    d_q = builder.temporary("d_q", p.B * p.H * p.qL * p.D * size_of(p.dtype));
    call.params.d_q = {p.H * p.qL * p.D, p.qL * p.D, p.D};
  }
  call.bindings.push_back(writes(kBufDQ, d_q));
  if (!operation.d_mask) return builder.launch_tiled(kernel, std::move(call), owned, 1);

  builder.fill_d_mask();
  call.constants.has_dmask = true;
  call.params.d_mask = operation.d_mask_strides;
  call.bindings.push_back(writes(kBufDMask, Tensor::d_mask));
  const bool batches_share = p.B > 1 && operation.d_mask_strides.b == 0;
  const bool heads_share = p.H > 1 && operation.d_mask_strides.h == 0;
  if (!batches_share && !heads_share) return builder.launch_tiled(kernel, std::move(call), owned, 1);

  // The kernel adds without atomics: what shares elements of the mask runs in turn.
  const int64_t together = heads_share ? 1 : p.H;
  call.params.heads_per_group = static_cast<int32_t>(together);
  for (int64_t h = 0; h < p.H; h += together) {
    for (int64_t b = 0; b < p.B; ++b) {
      const bool first = h == 0 && b == 0;
      if (!first && (b == 0 || batches_share)) builder.next_stage();
      builder.launch_heads(kernel, call, owned, b * p.H + h, together);
    }
  }
}

}  // namespace

Plan plan_backward(const Problem& p, const Operation& operation, const Device& device) {
  PlanBuilder builder(p, operation, device);
  const bool query_side = operation.d_q || operation.d_mask;
  const bool key_side = operation.d_k || operation.d_v;
  if (!query_side && !key_side) return builder.finish();
  const Strides4& d_mask = operation.d_mask_strides;
  if (operation.d_mask && ((d_mask.q == 0 && p.qL > 1) || (d_mask.k == 0 && p.kL > 1))) {
    throw Unsupported{Unsupported::Reason::mask_gradient,
                      "the gradient of a mask that is broadcast along rows or keys"};
  }
  const KernelInfo& dq_kernel = builder.tiled_kernel(KernelKind::bwd_dq, operation.dq_kernel);
  const KernelInfo& dkv_kernel = builder.tiled_kernel(KernelKind::bwd_dkv, operation.dkv_kernel);

  AttentionCall call = builder.prepare();
  const Operand o = builder.operand(Tensor::o, p.o, operation.last.o, {p.H, p.qL, p.Dv});
  const Operand d_o = builder.operand(Tensor::d_o, p.d_o, operation.last.d_o, {p.H, p.qL, p.Dv});
  const Buffer delta = builder.temporary("delta", p.B * p.H * p.qL * int64_t{sizeof(float)});
  call.params.o = o.strides;
  call.params.d_o = d_o.strides;
  call.bindings.insert(call.bindings.end(),
                       {reads(kBufLse, Tensor::lse), reads(kBufDO, d_o.buffer), reads(kBufDelta, delta)});
  builder.next_stage();
  launch_delta(builder, p, delta, o, d_o);
  builder.next_stage();

  const int64_t group = p.H / p.Hk;
  const Ownership keys = {p.Hk, p.kL, dkv_kernel.bk, group * p.qL * (p.D + p.Dv) * size_of(p.dtype)};
  const int64_t steps = group * builder.visible_steps(p.qL, dkv_kernel.bq, dkv_kernel.bk);
  const int32_t n_splits = builder.splits(dkv_kernel, keys, steps);
  KeyGradient gradients[] = {
      {Tensor::d_k, operation.d_k, p.D, kBufDK, kBufDKPartial, &AttnParams::d_k, "d_k"},
      {Tensor::d_v, operation.d_v, p.Dv, kBufDV, kBufDVPartial, &AttnParams::d_v, "d_v"},
  };
  // The longer one first: dQ fills the GPU where dK and dV end.
  if (key_side) launch_key_gradients(builder, p, dkv_kernel, call, gradients, n_splits, keys);
  if (query_side) launch_query_gradient(builder, p, operation, dq_kernel, call);
  if (!key_side || n_splits == 1) return builder.finish();

  builder.next_stage();
  for (const KeyGradient& gradient : gradients) {
    if (gradient.wanted) launch_reduce(builder, p, call.params, gradient, n_splits);
  }
  return builder.finish();
}

}  // namespace flashrt
