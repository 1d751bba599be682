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

/// The kernel makes both gradients at once: one that nobody wants goes to scratch memory.
void bind_key_gradient(
    PlanBuilder& builder, const Problem& p, AttentionCall& call, KeyGradient& gradient, int32_t n_splits) {
  const int64_t elements = p.B * p.Hk * p.kL * gradient.width;
  if (n_splits > 1) {
    gradient.parts = builder.temporary(gradient.name, n_splits * elements * int64_t{sizeof(float)});
    call.bindings.push_back(writes(gradient.part_slot, gradient.parts));
  } else if (gradient.wanted) {
    call.bindings.push_back(writes(gradient.slot, gradient.output));
  } else {
    call.bindings.push_back(writes(gradient.slot, builder.temporary(gradient.name, elements * size_of(p.dtype))));
    call.params.*gradient.strides = {p.Hk * p.kL * gradient.width, p.kL * gradient.width, gradient.width};
  }
}

void launch_reduce(PlanBuilder& builder,
                   const Problem& p,
                   const AttnParams& attention,
                   const KeyGradient& gradient,
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

}  // namespace

Plan plan_backward(const Problem& p, const Operation& operation, const Device& device) {
  PlanBuilder builder(p, operation, device);
  const bool d_kv = operation.d_k || operation.d_v;
  const KernelInfo* d_q_kernel =
      operation.d_q ? &builder.tiled_kernel(KernelKind::bwd_dq, operation.dq_kernel) : nullptr;
  const KernelInfo* d_kv_kernel = d_kv ? &builder.tiled_kernel(KernelKind::bwd_dkv, operation.dkv_kernel) : nullptr;

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

  if (d_q_kernel != nullptr) {
    const int64_t kv_bytes = p.kL * (p.D + p.Dv) * size_of(p.dtype);
    AttentionCall d_q = call;
    d_q.bindings.push_back(writes(kBufDQ, Tensor::d_q));
    builder.launch_tiled(*d_q_kernel, d_q, {p.H, p.qL, d_q_kernel->bq, ceil_div(kv_bytes, p.H / p.Hk)}, 1);
  }
  if (d_kv_kernel == nullptr) return builder.finish();

  const int64_t group = p.H / p.Hk;
  const KernelInfo& kernel = *d_kv_kernel;
  const Ownership owned = {p.Hk, p.kL, kernel.bk, group * p.qL * (p.D + p.Dv) * size_of(p.dtype)};
  const int64_t steps = group * builder.visible_steps(p.qL, kernel.bq, kernel.bk);
  const int32_t n_splits = builder.splits(kernel, owned, steps);
  KeyGradient gradients[] = {
      {Tensor::d_k, operation.d_k, p.D, kBufDK, kBufDKPartial, &AttnParams::d_k, "d_k"},
      {Tensor::d_v, operation.d_v, p.Dv, kBufDV, kBufDVPartial, &AttnParams::d_v, "d_v"},
  };
  for (KeyGradient& gradient : gradients) bind_key_gradient(builder, p, call, gradient, n_splits);
  builder.launch_tiled(kernel, call, owned, n_splits);
  if (n_splits == 1) return builder.finish();

  builder.next_stage();
  for (const KeyGradient& gradient : gradients) {
    if (gradient.wanted) launch_reduce(builder, p, call.params, gradient, n_splits);
  }
  return builder.finish();
}

}  // namespace flashrt
