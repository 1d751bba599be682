// eval_cpu of the primitives: strides become known here, kernels run in the stream.
#include "attention_problem.h"
#include "attention_staging.h"
#include "cpu/attention.h"
#include "mlx/backend/cpu/encoder.h"

namespace flashrt {

namespace {

/// Operands whose layout the kernels can read, and the problem and pointers that describe them.
struct CpuCall {
  Arrays inputs;
  Problem problem;
  cpu::Tensors tensors;
};

CpuCall stage(const Arrays& inputs, const Options& options, const Layout& layout, Staging& staging) {
  Arrays in(inputs.begin(), inputs.begin() + layout.count());
  for (int i = 0; i < 3; i++) in[i] = staging.contiguous_last(in[i]);

  CpuCall call{in, problem_of(in, options, layout), {}};
  auto pointer = [&]<typename T>(Extra e, const T*& to) {
    if (auto* a = layout.find(in, e)) to = a->data<T>();
  };
  auto& t = call.tensors;
  t.q = in[0].data<void>();
  t.k = in[1].data<void>();
  t.v = in[2].data<void>();
  if (auto* mask = layout.find(in, Extra::mask)) t.mask = mask->data<void>();
  pointer(Extra::sinks, t.sinks);
  pointer(Extra::alibi, t.alibi);
  pointer(Extra::block_mask, t.block_mask);
  pointer(Extra::q_segments, t.q_segments);
  pointer(Extra::k_segments, t.k_segments);
  pointer(Extra::row_diagonals, t.row_diagonals);
  return call;
}

}  // namespace

void Attention::eval_cpu(const Arrays& inputs, Arrays& outputs) {
  auto& encoder = mx::cpu::get_command_encoder(stream());
  Staging staging(encoder);
  auto call = stage(inputs, options_, layout_, staging);
  allocate_heads_inner(outputs[0]);
  allocate_rows(outputs[1]);
  call.problem.o = strides_of(outputs[0]);
  call.tensors.o = outputs[0].data<void>();
  call.tensors.lse = outputs[1].data<float>();
  encoder.dispatch([problem = call.problem, tensors = call.tensors] { cpu::forward(problem, tensors); });
}

void AttentionBackward::eval_cpu(const Arrays& inputs, Arrays& outputs) {
  auto& encoder = mx::cpu::get_command_encoder(stream());
  Staging staging(encoder);
  auto call = stage(inputs, options_, layout_, staging);
  auto& p = call.problem;
  auto& t = call.tensors;

  auto rows = inputs.begin() + layout_.count();
  auto o = staging.contiguous_last(rows[0]);
  auto d_o = staging.contiguous_last(rows[2]);
  p.o = strides_of(o);
  p.d_o = strides_of(d_o);
  t.o = const_cast<void*>(o.data<void>());
  t.lse = const_cast<float*>(rows[1].data<float>());
  t.d_o = d_o.data<void>();
  if (options_.lse_is_used) {
    p.has_dlse = true;
    t.d_lse = rows[3].data<float>();
  }

  size_t next = 0;
  auto output = [&](Grad g) -> mx::array* {
    if (!wants(g)) return nullptr;
    auto& out = outputs[next++];
    allocate_like(out, inputs[operand(layout_, g)]);
    return &out;
  };
  auto gradient = [&](Grad g, void*& pointer, Strides3& strides) {
    if (auto* out = output(g)) {
      pointer = out->data<void>();
      strides = strides_of(*out);
    }
  };
  gradient(Grad::q, t.d_q, p.d_q);
  gradient(Grad::k, t.d_k, p.d_k);
  gradient(Grad::v, t.d_v, p.d_v);
  if (auto* out = output(Grad::mask)) {
    t.d_mask = out->data<float>();
    t.d_mask_strides = broadcast_strides(*out);
  }
  encoder.dispatch([problem = p, tensors = t] { cpu::backward(problem, tensors); });
}

}  // namespace flashrt
