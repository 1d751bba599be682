// eval_gpu of the primitives on a Mac: plan, allocate, encode.
#include "attention_problem.h"
#include "attention_staging.h"
#include "encode_metal.h"

namespace flashrt {

namespace {

int64_t last_stride(const mx::array& a) { return a.shape(-1) == 1 ? 1 : a.strides(-1); }

struct MetalCall {
  Problem problem;
  Operation operation;
  CallArrays arrays;
};

MetalCall describe(const Arrays& in, const Options& options, const Layout& layout) {
  MetalCall call{problem_of(in, options, layout), {}, {}};
  call.operation.last.q = last_stride(in[0]);
  call.operation.last.k = last_stride(in[1]);
  call.operation.last.v = last_stride(in[2]);
  call.arrays.set(Tensor::q, in[0]);
  call.arrays.set(Tensor::k, in[1]);
  call.arrays.set(Tensor::v, in[2]);
  constexpr Tensor kTensors[kExtras] = {Tensor::mask,         Tensor::sinks,      Tensor::alibi,
                                        Tensor::block_mask,   Tensor::q_segments, Tensor::k_segments,
                                        Tensor::row_diagonals};
  for (int i = 0; i < kExtras; i++) {
    if (auto* a = layout.find(in, static_cast<Extra>(i))) call.arrays.set(kTensors[i], *a);
  }
  return call;
}

void run(const MetalCall& call, const mx::Stream& stream) {
  auto result = plan(call.problem, call.operation, metal_device(stream.device));
  if (auto* no_plan = std::get_if<Unsupported>(&result)) {
    throw UnsupportedError("[flashrt] no Metal kernels for " + no_plan->detail + "; use impl='reference'");
  }
  encode_metal(std::get<Plan>(result), call.arrays, stream);
}

}  // namespace

void Attention::eval_gpu(const Arrays& inputs, Arrays& outputs) {
  auto call = describe(inputs, options_, layout_);
  allocate_heads_inner(outputs[0]);
  allocate_rows(outputs[1]);
  call.problem.o = strides_of(outputs[0]);
  call.arrays.set(Tensor::o, outputs[0]);
  call.arrays.set(Tensor::lse, outputs[1]);
  run(call, stream());
}

void AttentionBackward::eval_gpu(const Arrays& inputs, Arrays& outputs) {
  auto call = describe(inputs, options_, layout_);
  auto& p = call.problem;
  auto& operation = call.operation;
  operation.kind = OperationKind::backward;

  auto rows = inputs.begin() + layout_.count();
  p.o = strides_of(rows[0]);
  p.d_o = strides_of(rows[2]);
  operation.last.o = last_stride(rows[0]);
  operation.last.d_o = last_stride(rows[2]);
  call.arrays.set(Tensor::o, rows[0]);
  call.arrays.set(Tensor::lse, rows[1]);
  call.arrays.set(Tensor::d_o, rows[2]);
  if (options_.lse_is_used) {
    p.has_dlse = true;
    call.arrays.set(Tensor::d_lse, rows[3]);
  }

  size_t next = 0;
  auto gradient = [&](Grad g, Tensor tensor, bool& wanted) -> const mx::array* {
    wanted = wants(g);
    if (!wanted) return nullptr;
    auto& out = outputs[next++];
    allocate_like(out, inputs[operand(layout_, g)]);
    call.arrays.set(tensor, out);
    return &out;
  };
  if (auto* out = gradient(Grad::q, Tensor::d_q, operation.d_q)) p.d_q = strides_of(*out);
  if (auto* out = gradient(Grad::k, Tensor::d_k, operation.d_k)) p.d_k = strides_of(*out);
  if (auto* out = gradient(Grad::v, Tensor::d_v, operation.d_v)) p.d_v = strides_of(*out);
  if (auto* out = gradient(Grad::mask, Tensor::d_mask, operation.d_mask)) {
    operation.d_mask_strides = broadcast_strides(*out);
  }
  run(call, stream());
}

}  // namespace flashrt
