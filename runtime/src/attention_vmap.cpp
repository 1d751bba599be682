// vmap: the mapped axis becomes part of the batch, so that one launch still does all the work.
#include <algorithm>

#include "attention.h"

namespace flashrt {

namespace {

bool is_mapped(int axis) { return axis >= 0; }

int mapped_size(const Arrays& inputs, const std::vector<int>& axes) {
  for (size_t i = 0; i < axes.size(); i++) {
    if (is_mapped(axes[i])) return inputs[i].shape(axes[i]);
  }
  throw std::invalid_argument("[flashrt] vmap without a mapped operand");
}

/// Length of axis 0 as the mapped function sees it.
int batch_of(const mx::array& a, int axis) { return a.shape(axis == 0 ? 1 : 0); }

/// (N, b, ...) or an unmapped (b, ...) -> (N * B, ...); a view wherever strides allow.
mx::array fold(const mx::array& a, int axis, int N, int B, mx::Stream s) {
  auto front = is_mapped(axis) ? mx::moveaxis(a, axis, 0, s) : mx::expand_dims(a, 0, s);
  auto full = front.shape();
  full[0] = N;
  full[1] = B;
  return mx::flatten(mx::broadcast_to(front, full, s), 0, 1, s);
}

/// Entry n of the mapped axis; zeros of its shape where there is none.
mx::array entry(const mx::array& a, int axis, int n, mx::Stream s) {
  if (!is_mapped(axis)) return a;
  if (a.shape(axis) == 0) {
    auto shape = a.shape();
    shape.erase(shape.begin() + axis);
    return mx::zeros(shape, a.dtype(), s);
  }
  mx::Shape start(a.ndim(), 0), stop = a.shape();
  start[axis] = n;
  stop[axis] = n + 1;
  return mx::squeeze(mx::slice(a, start, stop, s), axis, s);
}

}  // namespace

bool AttentionBase::can_fold(const Arrays&, const std::vector<int>& axes) const {
  // Sinks are one per head for the whole batch.
  return !layout_.has(Extra::sinks) || !is_mapped(axes[layout_.index(Extra::sinks)]);
}

bool AttentionBackward::can_fold(const Arrays& inputs, const std::vector<int>& axes) const {
  if (!AttentionBase::can_fold(inputs, axes)) return false;
  if (!wants(Grad::mask)) return true;
  // Each mapped entry has its own dMask, which a mask that is shared over the batch would add up.
  const int at = layout_.index(Extra::mask);
  return is_mapped(axes[at]) && batch_of(inputs[at], axes[at]) == batch_of(inputs[0], axes[0]);
}

std::pair<Arrays, std::vector<int>> AttentionBase::vmap(const Arrays& inputs, const std::vector<int>& axes) {
  auto s = stream();
  const int N = mapped_size(inputs, axes);
  Arrays outputs;
  if (!can_fold(inputs, axes)) {
    std::vector<Arrays> parts;
    for (int n = 0; n < std::max(N, 1); n++) {  // once for the shapes, if for nothing else
      Arrays one;
      for (size_t i = 0; i < inputs.size(); i++) one.push_back(entry(inputs[i], axes[i], n, s));
      auto out = apply(one);
      parts.resize(out.size());
      for (size_t j = 0; j < out.size(); j++) parts[j].push_back(out[j]);
    }
    for (auto& part : parts) {
      auto all = mx::stack(part, 0, s);
      auto stop = all.shape();
      stop[0] = N;
      outputs.push_back(N == 0 ? mx::slice(all, mx::Shape(all.ndim(), 0), stop, s) : all);
    }
    return {outputs, std::vector<int>(outputs.size(), 0)};
  }

  const int B = batch_of(inputs[0], axes[0]);
  const int operands = layout_.count();
  Arrays folded;
  for (int i = 0; i < static_cast<int>(inputs.size()); i++) {
    const bool per_row = i < 3 || i >= operands;
    const bool shared = !is_mapped(axes[i]) &&
                        (inputs[i].shape(0) == 1 || (layout_.has(Extra::sinks) && i == layout_.index(Extra::sinks)));
    folded.push_back(!per_row && shared ? inputs[i] : fold(inputs[i], axes[i], N, B, s));
  }
  for (auto& out : apply(folded)) outputs.push_back(mx::unflatten(out, 0, {N, B}, s));
  return {outputs, std::vector<int>(outputs.size(), 0)};
}

}  // namespace flashrt
