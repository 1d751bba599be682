#include "attention_problem.h"

namespace flashrt {

namespace {

/// An axis of length one is read at one place only, whatever its stride says.
int64_t stride_of(const mx::array& a, int axis) { return a.shape(axis) == 1 ? 0 : a.strides(axis); }

}  // namespace

Strides4 broadcast_strides(const mx::array& a) {
  return {stride_of(a, 0), stride_of(a, 1), stride_of(a, 2), stride_of(a, 3)};
}

Dtype problem_dtype(mx::Dtype dtype) {
  if (dtype == mx::float16) return Dtype::float16;
  if (dtype == mx::bfloat16) return Dtype::bfloat16;
  if (dtype == mx::float32) return Dtype::float32;
  throw UnsupportedError("[flashrt] kernels take float16, bfloat16 and float32");
}

Strides3 strides_of(const mx::array& a) { return {a.strides(0), a.strides(1), a.strides(2)}; }

Problem problem_of(const Arrays& in, const Options& options, const Layout& layout) {
  const auto &q = in[0], &k = in[1], &v = in[2];
  Problem p;
  p.dtype = problem_dtype(q.dtype());
  p.B = q.shape(0);
  p.H = q.shape(1);
  p.Hk = k.shape(1);
  p.qL = q.shape(2);
  p.kL = k.shape(2);
  p.D = q.shape(3);
  p.Dv = v.shape(3);
  p.q_off = p.kL - p.qL;
  p.scale = options.scale;
  p.softcap = options.softcap;
  p.causal = options.causal;
  p.window_left = options.window_left;
  p.window_right = options.window_right;
  p.q = strides_of(q);
  p.k = strides_of(k);
  p.v = strides_of(v);

  if (auto* mask = layout.find(in, Extra::mask)) {
    p.mask = broadcast_strides(*mask);
    p.mask_kind = mask->dtype() == mx::bool_     ? MaskKind::boolean
                  : mask->dtype() == q.dtype()   ? MaskKind::in_dtype
                  : mask->dtype() == mx::float32 ? MaskKind::in_f32
                                                 : throw UnsupportedError("[flashrt] mask dtype");
  }
  if (auto* tiles = layout.find(in, Extra::block_mask)) {
    p.has_block_mask = true;
    p.block_mask = broadcast_strides(*tiles);
  }
  if (auto* slopes = layout.find(in, Extra::alibi)) {
    p.has_alibi = true;
    p.alibi_b = stride_of(*slopes, 0);
    p.alibi_h = stride_of(*slopes, 1);
  }
  if (layout.has(Extra::q_segments)) {
    p.has_segments = true;
    p.q_segments_b = stride_of(*layout.find(in, Extra::q_segments), 0);
    p.k_segments_b = stride_of(*layout.find(in, Extra::k_segments), 0);
  }
  if (auto* diagonals = layout.find(in, Extra::row_diagonals)) {
    p.has_row_diagonals = true;
    p.row_diagonals_b = stride_of(*diagonals, 0);
  }
  p.has_sinks = layout.has(Extra::sinks);
  return p;
}

}  // namespace flashrt
