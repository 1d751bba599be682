#include "attention.h"

#include <algorithm>
#include <limits>
#include <sstream>

#include "attention_composed.h"

namespace flashrt {

namespace {

constexpr int kRowInputs = 3;  ///< O, LSE2, dO follow the operands of a backward

[[noreturn]] void bad_shape(const char* what, const mx::Shape& shape, const mx::Shape& expected) {
  std::ostringstream message;
  message << "[flashrt] " << what << " has shape " << shape << ", expected one broadcastable to " << expected;
  throw std::invalid_argument(message.str());
}

void expect_broadcastable(const char* what, const mx::array* a, const mx::Shape& full) {
  if (a == nullptr) return;
  bool fits = a->ndim() == full.size();
  for (size_t i = 0; fits && i < full.size(); i++) fits = a->shape(i) == full[i] || a->shape(i) == 1;
  if (!fits) bad_shape(what, a->shape(), full);
}

void expect_shape(const char* what, const mx::array* a, const mx::Shape& full) {
  if (a != nullptr && a->shape() != full) bad_shape(what, a->shape(), full);
}

/// What Python has checked already, again in short: a shapeless graph meets new shapes without Python.
void check_shapes(const Arrays& in, const Layout& layout) {
  for (int i = 0; i < 3; i++) {
    if (in[i].ndim() != 4) throw std::invalid_argument("[flashrt] q, k and v must have rank 4");
  }
  const auto &q = in[0], &k = in[1], &v = in[2];
  const int B = q.shape(0), H = q.shape(1), qL = q.shape(2), D = q.shape(3), Hk = k.shape(1), kL = k.shape(2);
  if (Hk == 0 || H % Hk != 0) throw std::invalid_argument("[flashrt] the heads of q must be a multiple of those of k");
  expect_shape("k", &k, {B, Hk, kL, D});
  expect_shape("v", &v, {B, Hk, kL, v.shape(3)});
  expect_broadcastable("mask", layout.find(in, Extra::mask), {B, H, qL, kL});
  expect_shape("sinks", layout.find(in, Extra::sinks), {H});
  expect_broadcastable("alibi_slopes", layout.find(in, Extra::alibi), {B, H});
  expect_broadcastable("block_mask", layout.find(in, Extra::block_mask), {B, H, (qL + 31) / 32, (kL + 31) / 32});
  auto rows = [&](Extra e, const char* what, int length) {
    auto* a = layout.find(in, e);
    if (a != nullptr && (a->ndim() != 2 || a->shape(1) != length || (a->shape(0) != 1 && a->shape(0) != B))) {
      bad_shape(what, a->shape(), {B, length});
    }
  };
  rows(Extra::q_segments, "segment_ids of q", qL);
  rows(Extra::k_segments, "segment_ids of k", kL);
  rows(Extra::row_diagonals, "row diagonals", qL);
}

/// Small operands that kernels index without strides. No copy where they are contiguous already.
void make_contiguous(Arrays& inputs, const Layout& layout, mx::Stream s) {
  for (auto e : {Extra::sinks, Extra::q_segments, Extra::k_segments, Extra::row_diagonals}) {
    if (layout.has(e)) inputs[layout.index(e)] = mx::contiguous(inputs[layout.index(e)], false, s);
  }
  const size_t lse = layout.count() + 1, d_lse = layout.count() + kRowInputs;
  for (size_t i : {lse, d_lse}) {
    if (i < inputs.size()) inputs[i] = mx::contiguous(inputs[i], false, s);
  }
}

/// On the GPU dMask has all rows and keys: what the mask broadcasts there is broadcast, and summed, by the graph.
mx::array mask_for(const mx::array& mask, int qL, int kL, mx::Stream s) {
  if (s.device == mx::Device::cpu || mask.dtype() == mx::bool_) return mask;
  return mx::broadcast_to(mask, {mask.shape(0), mask.shape(1), qL, kL}, s);
}

mx::Shape o_shape(const Arrays& in) { return {in[0].shape(0), in[0].shape(1), in[0].shape(2), in[2].shape(3)}; }
mx::Shape lse_shape(const Arrays& in) { return {in[0].shape(0), in[0].shape(1), in[0].shape(2)}; }

/// dSinks = -sum over batch and rows of P_sink * delta, where delta = rowsum(dO * O) - dLSE.
mx::array sinks_gradient(const mx::array& sinks, const Arrays& outputs, const Arrays& cotangents, bool lse_is_used,
                         mx::Stream s) {
  const auto& lse2 = outputs[1];
  auto product = mx::multiply(mx::astype(cotangents[0], mx::float32, s), mx::astype(outputs[0], mx::float32, s), s);
  auto delta = mx::sum(product, -1, false, s);
  if (lse_is_used) delta = mx::subtract(delta, mx::multiply(cotangents[1], mx::array(kLog2e), s), s);
  // A sink is part of its rows' LSE, so a row with LSE = -inf has a sink of -inf: its weight is zero, not NaN.
  auto alive = mx::greater_equal(lse2, mx::array(-std::numeric_limits<float>::max()), s);
  auto exponent = mx::subtract(mx::multiply(mx::expand_dims(sinks, 1, s), mx::array(kLog2e), s), lse2, s);
  auto weight = mx::exp(mx::multiply(mx::where(alive, exponent, mx::array(0.0f), s), mx::array(kLn2), s), s);
  weight = mx::where(alive, weight, mx::array(0.0f), s);
  return mx::negative(mx::sum(mx::multiply(weight, delta, s), std::vector<int>{0, 2}, false, s), s);
}

/// Makes a list of derivatives zero or typed errors where an operand has none.
mx::array derivative_of_extra(const Arrays& primals, const Layout& layout, int index, mx::Stream s) {
  if (layout.has(Extra::alibi) && index == layout.index(Extra::alibi)) {
    throw UnsupportedError(
        "[flashrt] alibi_slopes has no gradient here; supported: q, k, v, an additive mask, sinks. "
        "Pass the bias as an additive mask= to train it, or use impl='reference'.");
  }
  return mx::zeros_like(primals[index], s);  // bool and integer operands: steps, flat almost everywhere
}

}  // namespace

std::pair<Arrays, Layout> flatten(const Operands& operands, mx::Stream s) {
  Arrays inputs{operands.q, operands.k, operands.v};
  Layout layout;
  for (int i = 0; i < kExtras; i++) {
    const auto& extra = operands.extras[i];
    if (!extra) continue;
    const auto e = static_cast<Extra>(i);
    layout.add(e);
    switch (e) {
      case Extra::mask:
      case Extra::block_mask:
        inputs.push_back(*extra);
        break;
      case Extra::sinks:
      case Extra::alibi:
        inputs.push_back(mx::astype(*extra, mx::float32, s));
        break;
      default:
        inputs.push_back(mx::astype(*extra, mx::int32, s));
    }
  }
  check_shapes(inputs, layout);
  if (layout.has(Extra::mask)) {
    auto& mask = inputs[layout.index(Extra::mask)];
    mask = mask_for(mask, inputs[0].shape(2), inputs[1].shape(2), s);
  }
  make_contiguous(inputs, layout, s);
  return {std::move(inputs), layout};
}

std::pair<mx::array, mx::array> attention(const Operands& operands, const Options& options, mx::Stream stream) {
  auto [inputs, layout] = flatten(operands, stream);
  auto primitive_options = options;
  // The gradient of the sinks is made of the LSE, so its own derivative goes through it.
  primitive_options.lse_is_used |= layout.has(Extra::sinks);
  auto out = Attention::make(stream, primitive_options, layout, std::move(inputs));
  return {out[0], out[1]};
}

std::pair<mx::array, mx::array> composed(const Operands& operands, const Options& options, mx::Stream stream) {
  auto [inputs, layout] = flatten(operands, stream);
  auto out = composed_attention(inputs, options, layout, stream);
  return {out[0], out[1]};
}

Arrays AttentionBase::jvp(const Arrays& primals, const Arrays& tangents, const std::vector<int>& argnums) {
  auto along = [&](const Arrays& moving) {
    Arrays inputs = primals;
    for (size_t i = 0; i < argnums.size(); i++) inputs[argnums[i]] = moving[i];
    return fallback(inputs);
  };
  Arrays points;
  for (int index : argnums) points.push_back(primals[index]);
  return mx::jvp(along, points, tangents).second;
}

// Attention

Arrays Attention::vjp(const Arrays& primals, const Arrays& cotangents, const std::vector<int>& argnums,
                      const Arrays& outputs) {
  auto s = stream();
  const auto* mask = layout_.find(primals, Extra::mask);
  const bool additive = mask != nullptr && mask->dtype() != mx::bool_;
  Wanted wanted{};
  auto grad_of = [&](int index) -> std::optional<Grad> {
    if (index < 3) return static_cast<Grad>(index);
    if (additive && index == layout_.index(Extra::mask)) return Grad::mask;
    return std::nullopt;
  };
  for (int index : argnums) {
    if (auto g = grad_of(index)) wanted[static_cast<int>(*g)] = true;
  }
  Arrays found;
  if (std::find(wanted.begin(), wanted.end(), true) != wanted.end()) {
    found = gradients(wanted, primals, cotangents, outputs);
  }

  Arrays result;
  for (int index : argnums) {
    if (auto g = grad_of(index)) {
      const auto& gradient = found[std::count(wanted.begin(), wanted.begin() + static_cast<int>(*g), true)];
      result.push_back(mx::astype(gradient, primals[index].dtype(), s));
    } else if (layout_.has(Extra::sinks) && index == layout_.index(Extra::sinks)) {
      result.push_back(sinks_gradient(primals[index], outputs, cotangents, options_.lse_is_used, s));
    } else {
      result.push_back(derivative_of_extra(primals, layout_, index, s));
    }
  }
  return result;
}

Arrays Attention::gradients(const Wanted& wanted, const Arrays& primals, const Arrays& cotangents,
                            const Arrays& outputs) {
  Arrays inputs(primals.begin(), primals.begin() + layout_.count());
  inputs.insert(inputs.end(), {outputs[0], outputs[1], cotangents[0]});
  if (options_.lse_is_used) inputs.push_back(cotangents[1]);
  return AttentionBackward::make(stream(), options_, layout_, wanted, std::move(inputs));
}

Arrays Attention::fallback(const Arrays& inputs) { return composed_forward(inputs, options_, layout_, stream()); }

Arrays Attention::apply(Arrays inputs) { return make(stream(), options_, layout_, std::move(inputs)); }

Arrays Attention::make(mx::Stream stream, const Options& options, const Layout& layout, Arrays inputs) {
  make_contiguous(inputs, layout, stream);
  return mx::array::make_arrays({o_shape(inputs), lse_shape(inputs)}, {inputs[0].dtype(), mx::float32},
                                std::make_shared<Attention>(stream, options, layout), inputs);
}

std::vector<mx::Shape> Attention::output_shapes(const Arrays& inputs) {
  check_shapes(inputs, layout_);
  return {o_shape(inputs), lse_shape(inputs)};
}

bool Attention::is_equivalent(const mx::Primitive& other) const {
  const auto& o = static_cast<const Attention&>(other);
  return options_ == o.options_ && layout_ == o.layout_;
}

// AttentionBackward

Arrays AttentionBackward::fallback(const Arrays& inputs) {
  Arrays points;
  std::vector<int> indices;
  for (int g = 0; g < kGrads; g++) {
    if (!wanted_[g]) continue;
    indices.push_back(operand(layout_, static_cast<Grad>(g)));
    points.push_back(inputs[indices.back()]);
  }
  const int n = layout_.count();
  auto forward = [&](const Arrays& moving) {
    Arrays operands(inputs.begin(), inputs.begin() + n);
    for (size_t i = 0; i < indices.size(); i++) operands[indices[i]] = moving[i];
    auto out = composed_forward(operands, options_, layout_, stream());
    if (!options_.lse_is_used) out.pop_back();
    return out;
  };
  auto gradients = mx::vjp(forward, points, Arrays(inputs.begin() + n + kRowInputs - 1, inputs.end())).second;
  if (wants(Grad::mask)) gradients.back() = mx::astype(gradients.back(), mx::float32, stream());
  return gradients;
}

Arrays AttentionBackward::vjp(const Arrays& primals, const Arrays& cotangents, const std::vector<int>& argnums,
                              const Arrays&) {
  auto s = stream();
  const int n = layout_.count();
  Arrays points;
  std::vector<int> indices;
  for (int index : argnums) {
    // Integers, bools and slopes aside, everything but O and LSE2 moves the gradients.
    const bool rows = index == n || index == n + 1;
    const bool moves =
        index < 3 || index > n + 1 || (!rows && mx::issubdtype(primals[index].dtype(), mx::floating) && index < n);
    if (moves) {
      indices.push_back(index);
      points.push_back(primals[index]);
    }
  }
  Arrays derivatives;
  if (!indices.empty()) {
    auto gradients = [&](const Arrays& moving) {
      Arrays inputs = primals;
      for (size_t i = 0; i < indices.size(); i++) inputs[indices[i]] = moving[i];
      return fallback(inputs);
    };
    derivatives = mx::vjp(gradients, points, cotangents).second;
  }
  Arrays result;
  for (int index : argnums) {
    auto at = std::find(indices.begin(), indices.end(), index);
    result.push_back(at == indices.end() ? mx::zeros_like(primals[index], s)
                                         : derivatives[std::distance(indices.begin(), at)]);
  }
  return result;
}

Arrays AttentionBackward::apply(Arrays inputs) { return make(stream(), options_, layout_, wanted_, std::move(inputs)); }

Arrays AttentionBackward::make(mx::Stream stream, const Options& options, const Layout& layout, const Wanted& wanted,
                               Arrays inputs) {
  make_contiguous(inputs, layout, stream);
  auto primitive = std::make_shared<AttentionBackward>(stream, options, layout, wanted);
  std::vector<mx::Dtype> dtypes;
  for (int g = 0; g < kGrads; g++) {
    if (!wanted[g]) continue;
    dtypes.push_back(gradient_dtype(inputs[operand(layout, static_cast<Grad>(g))], static_cast<Grad>(g)));
  }
  return mx::array::make_arrays(primitive->output_shapes(inputs), dtypes, primitive, inputs);
}

std::vector<mx::Shape> AttentionBackward::output_shapes(const Arrays& inputs) {
  check_shapes(inputs, layout_);
  std::vector<mx::Shape> shapes;
  for (int g = 0; g < kGrads; g++) {
    if (wanted_[g]) shapes.push_back(inputs[operand(layout_, static_cast<Grad>(g))].shape());
  }
  return shapes;
}

bool AttentionBackward::is_equivalent(const mx::Primitive& other) const {
  const auto& o = static_cast<const AttentionBackward&>(other);
  return options_ == o.options_ && layout_ == o.layout_ && wanted_ == o.wanted_;
}

}  // namespace flashrt
