// Forward: one launch, or the keys split over grid.y and the parts joined by their LSE.
#include "plan_builder.h"

namespace flashrt {

Plan plan_forward(const Problem& p, const Operation& operation, const Device& device) {
  PlanBuilder builder(p, operation, device);
  const KernelInfo& kernel = builder.tiled_kernel(KernelKind::fwd, operation.fwd_kernel);
  AttentionCall call = builder.prepare();
  call.constants.has_sinks = p.has_sinks;
  if (p.has_sinks) call.bindings.push_back(reads(kBufSinks, Tensor::sinks));

  const int64_t kv_bytes = p.kL * (p.D + p.Dv) * size_of(p.dtype);
  const Ownership owned = {p.H, p.qL, kernel.bq, ceil_div(kv_bytes, p.H / p.Hk)};
  const int32_t n_splits = builder.splits(kernel, owned, builder.visible_steps(p.kL, kernel.bk, kernel.bq));
  builder.next_stage();
  if (n_splits == 1) {
    call.bindings.insert(call.bindings.end(), {writes(kBufO, Tensor::o), writes(kBufLse, Tensor::lse)});
    builder.launch_tiled(kernel, call, owned, n_splits);
    return builder.finish();
  }

  const int64_t rows = p.B * p.H * p.qL;
  const Buffer o_parts = builder.temporary("o_partial", n_splits * rows * p.Dv * int64_t{sizeof(float)});
  const Buffer lse_parts = builder.temporary("lse_partial", n_splits * rows * int64_t{sizeof(float)});
  // Metal wants every slot bound: those of the whole outputs hold the parts, and are not written.
  call.bindings.insert(call.bindings.end(), {writes(kBufOPartial, o_parts), writes(kBufLsePartial, lse_parts),
                                             writes(kBufO, o_parts), writes(kBufLse, lse_parts)});
  builder.launch_tiled(kernel, call, owned, n_splits);

  builder.next_stage();
  const MergeParams params = {
      .B = static_cast<int32_t>(p.B),
      .H = static_cast<int32_t>(p.H),
      .qL = static_cast<int32_t>(p.qL),
      .Dv = static_cast<int32_t>(p.Dv),
      .n_splits = n_splits,
      .pad = 0,
      .first_row = 0,
      .o = p.o,
  };
  builder.launch_helper(KernelKind::fwd_merge,
                        {writes(kBufHelperOut, Tensor::o), reads(kBufHelperIn0, o_parts),
                         reads(kBufHelperIn1, lse_parts), writes(kBufHelperIn2, Tensor::lse)},
                        params, &MergeParams::first_row, rows, kRowsPerGroup);
  return builder.finish();
}

}  // namespace flashrt
