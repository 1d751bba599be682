#include "attention_composed.h"

#include <limits>

namespace flashrt {

namespace {

constexpr int kTile = 32;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

mx::array full_scalar(double value, mx::Dtype dtype) { return mx::array(value, dtype); }

/// (..., n) ids of batch rows as (B,1,...): ready to compare inside (B,H,qL,kL).
mx::array as_rows(const mx::array& ids, mx::Stream s) { return mx::expand_dims(ids, {1, 3}, s); }
mx::array as_keys(const mx::array& ids, mx::Stream s) { return mx::expand_dims(ids, {1, 2}, s); }

/// One entry per 32x32 tile -> one entry per score.
mx::array expand_tiles(const mx::array& tiles, int qL, int kL, mx::Stream s) {
  auto rows = mx::repeat(mx::astype(tiles, mx::bool_, s), kTile, 2, s);
  auto full = mx::repeat(rows, kTile, 3, s);
  auto stop = full.shape();
  stop[2] = qL;
  stop[3] = kL;
  return mx::slice(full, {0, 0, 0, 0}, stop, s);
}

/// a @ b, and zeros where there are no scores: for an empty result MLX's CPU product copies a strided operand to memory
/// that it frees before the copy runs, and so do the products of its derivatives.
mx::array product(const mx::array& a, const mx::array& b, bool has_scores, const mx::Shape& shape, mx::Stream s) {
  return has_scores ? mx::reshape(mx::matmul(a, b, s), shape, s) : mx::zeros(shape, a.dtype(), s);
}

class Scores {
 public:
  Scores(const Arrays& in, const Options& options, const Layout& layout, mx::Stream stream)
      : in_(in), options_(options), layout_(layout), s_(stream) {}

  /// softcap(scale * q.k) + ALiBi + additive mask, and what hides keys.
  mx::array logits(const mx::array& raw, mx::Dtype dtype) {
    auto x = mx::multiply(raw, full_scalar(options_.scale, dtype), s_);
    if (options_.softcap > 0) {
      auto cap = full_scalar(options_.softcap, dtype);
      x = mx::multiply(mx::tanh(mx::divide(x, cap, s_), s_), cap, s_);
    }
    if (auto* alibi = layout_.find(in_, Extra::alibi)) {
      auto slopes = mx::astype(mx::expand_dims(*alibi, {2, 3}, s_), dtype, s_);
      auto distance = mx::astype(mx::abs(mx::subtract(keys(), diagonals(), s_), s_), dtype, s_);
      x = mx::subtract(x, mx::multiply(slopes, distance, s_), s_);
    }
    if (auto* mask = layout_.find(in_, Extra::mask)) {
      if (mask->dtype() == mx::bool_) {
        hide_unless(*mask);
      } else {
        auto additive = mx::astype(*mask, dtype, s_);
        hide_unless(mx::not_equal(additive, full_scalar(-kInfinity, dtype), s_));
        x = mx::add(x, additive, s_);
      }
    }
    if (options_.causal) hide_unless(mx::less_equal(keys(), diagonals(), s_));
    if (options_.window_right >= 0) {
      hide_unless(mx::less_equal(mx::subtract(keys(), diagonals(), s_), mx::array(options_.window_right), s_));
    }
    if (options_.window_left >= 0) {
      hide_unless(mx::less_equal(mx::subtract(diagonals(), keys(), s_), mx::array(options_.window_left), s_));
    }
    if (layout_.has(Extra::q_segments)) {
      auto& q = in_[layout_.index(Extra::q_segments)];
      auto& k = in_[layout_.index(Extra::k_segments)];
      hide_unless(mx::equal(as_rows(q, s_), as_keys(k, s_), s_));
    }
    if (auto* tiles = layout_.find(in_, Extra::block_mask)) hide_unless(expand_tiles(*tiles, qL(), kL(), s_));
    return x;
  }

  const std::optional<mx::array>& visible() const { return visible_; }

 private:
  int qL() const { return in_[0].shape(2); }
  int kL() const { return in_[1].shape(2); }

  mx::array keys() { return mx::reshape(mx::arange(0, kL(), s_), {1, 1, 1, kL()}, s_); }

  /// Key position at which each row stands.
  mx::array diagonals() {
    if (auto* rows = layout_.find(in_, Extra::row_diagonals)) return as_rows(*rows, s_);
    auto offset = kL() - qL();
    return mx::reshape(mx::arange(offset, offset + qL(), s_), {1, 1, qL(), 1}, s_);
  }

  void hide_unless(const mx::array& condition) {
    visible_ = visible_ ? mx::logical_and(*visible_, condition, s_) : condition;
  }

  const Arrays& in_;
  const Options& options_;
  const Layout& layout_;
  mx::Stream s_;
  std::optional<mx::array> visible_;
};

}  // namespace

Arrays composed_attention(const Arrays& in, const Options& options, const Layout& layout, mx::Stream s) {
  const auto& q = in[0];
  const int B = q.shape(0), H = q.shape(1), qL = q.shape(2), D = q.shape(3);
  const int Hk = in[1].shape(1), kL = in[1].shape(2), Dv = in[2].shape(3);
  const auto dtype = q.dtype() == mx::float64 ? mx::float64 : mx::float32;
  const auto zero = full_scalar(0.0, dtype);

  // Query heads of one group share a key head: (B,Hk,G,...) against (B,Hk,1,...).
  auto qf = mx::reshape(mx::astype(q, dtype, s), {B, Hk, H / Hk, qL, D}, s);
  auto kf = mx::expand_dims(mx::astype(in[1], dtype, s), 2, s);
  auto vf = mx::expand_dims(mx::astype(in[2], dtype, s), 2, s);
  const bool has_scores = q.size() > 0 && kL > 0;
  auto raw = product(qf, mx::swapaxes(kf, -1, -2, s), has_scores, {B, H, qL, kL}, s);

  Scores scores(in, options, layout, s);
  auto x = scores.logits(raw, dtype);
  const auto& visible = scores.visible();

  std::optional<mx::array> sinks;
  if (auto* given = layout.find(in, Extra::sinks)) {
    sinks = mx::reshape(mx::astype(*given, dtype, s), {1, H, 1, 1}, s);
  }
  // The largest visible logit, zero for a row without any. It cancels in every output: no derivative goes through it.
  auto shift = mx::full({B, H, qL, 1}, full_scalar(-kInfinity, dtype), s);
  if (kL > 0) shift = mx::max(visible ? mx::where(*visible, x, full_scalar(-kInfinity, dtype), s) : x, -1, true, s);
  if (sinks) shift = mx::maximum(shift, *sinks, s);
  shift = mx::where(mx::equal(shift, full_scalar(-kInfinity, dtype), s), zero, shift, s);
  shift = mx::stop_gradient(shift, s);

  // Hidden logits are replaced before exp as well as after, so that neither value nor derivative overflows there.
  if (visible) x = mx::where(*visible, x, shift, s);
  auto p = mx::exp(mx::subtract(x, shift, s), s);
  if (visible) p = mx::where(*visible, p, zero, s);
  auto l = mx::sum(p, -1, true, s);
  if (sinks) l = mx::add(l, mx::exp(mx::subtract(*sinks, shift, s), s), s);
  auto alive = mx::greater(l, zero, s);
  l = mx::where(alive, l, full_scalar(1.0, dtype), s);

  auto weights = mx::reshape(mx::divide(p, l, s), {B, Hk, H / Hk, qL, kL}, s);
  auto o = mx::astype(product(weights, vf, has_scores, {B, H, qL, Dv}, s), q.dtype(), s);
  auto lse = mx::where(alive, mx::add(shift, mx::log(l, s), s), full_scalar(-kInfinity, dtype), s);
  return {o, mx::squeeze(lse, -1, s)};
}

Arrays composed_forward(const Arrays& in, const Options& options, const Layout& layout, mx::Stream s) {
  auto out = composed_attention(in, options, layout, s);
  auto lse = mx::astype(out[1], mx::float32, s);
  // A row of lowest-finite masks is finite in natural logs and would overflow in log2.
  constexpr float kLimit = std::numeric_limits<float>::max() * kLn2;
  auto alive = mx::greater_equal(lse, mx::array(-std::numeric_limits<float>::max()), s);
  auto bounded = mx::clip(lse, mx::array(-kLimit), mx::array(kLimit), s);
  out[1] = mx::where(alive, mx::multiply(bounded, mx::array(kLog2e), s), lse, s);
  return out;
}

}  // namespace flashrt
