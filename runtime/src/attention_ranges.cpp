// One attention as several primitives. mlx commits a command buffer between primitives and never within one, so this is
// what bounds the time for which a Mac's GPU does nothing else.
#include <algorithm>

#include "attention.h"

namespace flashrt {

namespace {

constexpr int kTile = 32;  ///< block masks are cut between tiles only

struct Range {
  int begin;
  int end;
};

/// Near-equal ranges of [0, length), cut at multiples of a tile.
std::vector<Range> cut(int length, int count) {
  const int tiles = (length + kTile - 1) / kTile;
  count = std::clamp(count, 1, std::max(tiles, 1));
  std::vector<Range> ranges;
  for (int i = 0; i < count; i++) {
    const auto at = [&](int64_t n) { return std::min(static_cast<int>(n * tiles / count) * kTile, length); };
    ranges.push_back({at(i), at(i + 1)});
  }
  return ranges;
}

mx::array part(const mx::array& a, int axis, Range range, mx::Stream s) {
  mx::Shape start(a.ndim(), 0), stop = a.shape();
  start[axis] = range.begin;
  stop[axis] = range.end;
  return mx::slice(a, start, stop, s);
}

/// A part along an axis that may be broadcast.
mx::array part_of_mask(const mx::array& a, int axis, Range range, mx::Stream s) {
  return a.shape(axis) == 1 ? a : part(a, axis, range, s);
}

Range tiles_of(Range range) { return {range.begin / kTile, (range.end + kTile - 1) / kTile}; }

/// The call's inputs with the diagonals of its rows spelled out where they count, so that a part keeps them.
struct Parts {
  Parts(const Arrays& inputs, const Options& options, const Layout& given, mx::Stream stream)
      : all(inputs), layout(given), s(stream) {
    const bool positions_count =
        options.causal || options.window_left >= 0 || options.window_right >= 0 || layout.has(Extra::alibi);
    if (!positions_count || layout.has(Extra::row_diagonals)) return;
    const int qL = all[0].shape(2), offset = all[1].shape(2) - qL;
    layout.add(Extra::row_diagonals);
    all.insert(all.begin() + layout.index(Extra::row_diagonals),
               mx::expand_dims(mx::arange(offset, offset + qL, 1, s), 0, s));
  }

  /// Inputs of a call over some of the rows; what follows the operands is per row too.
  Arrays rows(Range range) const {
    Arrays in = all;
    in[0] = part(in[0], 2, range, s);
    change(in, Extra::mask, [&](auto& a) { return part_of_mask(a, 2, range, s); });
    change(in, Extra::block_mask, [&](auto& a) { return part_of_mask(a, 2, tiles_of(range), s); });
    change(in, Extra::q_segments, [&](auto& a) { return part(a, 1, range, s); });
    change(in, Extra::row_diagonals, [&](auto& a) { return part(a, 1, range, s); });
    for (size_t i = layout.count(); i < in.size(); i++) in[i] = part(in[i], 2, range, s);
    return in;
  }

  /// Inputs of a call over some of the keys. Its O and LSE are those of all keys: right for a backward only.
  Arrays keys(Range range) const {
    Arrays in = all;
    in[1] = part(in[1], 2, range, s);
    in[2] = part(in[2], 2, range, s);
    change(in, Extra::mask, [&](auto& a) { return part_of_mask(a, 3, range, s); });
    change(in, Extra::block_mask, [&](auto& a) { return part_of_mask(a, 3, tiles_of(range), s); });
    change(in, Extra::k_segments, [&](auto& a) { return part(a, 1, range, s); });
    change(in, Extra::row_diagonals, [&](auto& a) { return mx::subtract(a, mx::array(range.begin), s); });
    return in;
  }

  template <typename F>
  void change(Arrays& in, Extra e, F f) const {
    if (layout.has(e)) in[layout.index(e)] = f(in[layout.index(e)]);
  }

  Arrays all;
  Layout layout;
  mx::Stream s;
};

/// Joins (B,H,L,D) parts along L with the memory order that they have, [B,L,H,D].
mx::array join_heads_inner(const Arrays& parts, mx::Stream s) {
  Arrays turned;
  for (auto& a : parts) turned.push_back(mx::swapaxes(a, 1, 2, s));
  return mx::swapaxes(mx::concatenate(turned, 1, s), 1, 2, s);
}

/// How many times the products of a forward the two halves of a backward have: S, dP, dQ, and S, dP, dK, dV.
int ranges_of_queries(int forward) { return (3 * forward + 1) / 2; }
int ranges_of_keys(int forward) { return 2 * forward; }

/// Takes a primitive's inputs and then its results, which other primitives have made in parts, and passes the results
/// on. It stands for the whole towards every transform: derivatives of a part are not parts of a derivative.
template <typename Whole>
class Joined : public Whole {
 public:
  template <typename... Args>
  explicit Joined(size_t count, Args&&... args) : Whole(std::forward<Args>(args)...), count_(count) {}

  void eval_cpu(const Arrays& inputs, Arrays& outputs) override { pass_on(inputs, outputs); }
  void eval_gpu(const Arrays& inputs, Arrays& outputs) override { pass_on(inputs, outputs); }

  /// The results of a primitive of this class, made with `args`, over `inputs`.
  template <typename Primitive, typename... Args>
  static Arrays join(Arrays inputs, const Arrays& results, mx::Stream s, Args&&... args) {
    auto primitive = std::make_shared<Primitive>(inputs.size(), s, std::forward<Args>(args)...);
    std::vector<mx::Shape> shapes;
    std::vector<mx::Dtype> dtypes;
    for (auto& result : results) {
      shapes.push_back(result.shape());
      dtypes.push_back(result.dtype());
      inputs.push_back(mx::stop_gradient(result, s));
    }
    return mx::array::make_arrays(shapes, dtypes, primitive, inputs);
  }

 protected:
  Arrays fallback(const Arrays& inputs) override { return Whole::fallback(own(inputs)); }
  /// A vmap makes one primitive of it again.
  Arrays apply(Arrays inputs) override { return Whole::apply(own(inputs)); }

 private:
  Arrays own(const Arrays& inputs) const { return Arrays(inputs.begin(), inputs.begin() + count_); }
  void pass_on(const Arrays& inputs, Arrays& outputs) const {
    for (size_t i = 0; i < outputs.size(); i++) outputs[i].copy_shared_buffer(inputs[count_ + i]);
  }
  size_t count_;
};

class BackwardInRanges : public Joined<AttentionBackward> {
 public:
  using Joined::Joined;
  const char* name() const override { return "JoinedFlashAttentionBackward"; }
};

class ForwardInRanges : public Joined<Attention> {
 public:
  ForwardInRanges(size_t count, mx::Stream s, const Options& options, const Layout& layout, int ranges)
      : Joined(count, s, options, layout), ranges_(ranges) {}
  const char* name() const override { return "JoinedFlashAttention"; }
  bool is_equivalent(const mx::Primitive& other) const override {
    return Attention::is_equivalent(other) && ranges_ == static_cast<const ForwardInRanges&>(other).ranges_;
  }

 protected:
  Arrays gradients(const Wanted& wanted, const Arrays& primals, const Arrays& cotangents,
                   const Arrays& outputs) override;

 private:
  int ranges_;
};

}  // namespace

std::pair<mx::array, mx::array> attention_in_ranges(const Operands& operands, const Options& given, mx::Stream s,
                                                    int ranges) {
  auto [inputs, layout] = flatten(operands, s);
  auto options = given;
  options.lse_is_used |= layout.has(Extra::sinks);
  const Parts parts(inputs, options, layout, s);
  Arrays os, lses;
  for (auto range : cut(inputs[0].shape(2), ranges)) {
    auto out = Attention::make(s, options, parts.layout, parts.rows(range));
    os.push_back(out[0]);
    lses.push_back(out[1]);
  }
  auto out = ForwardInRanges::join<ForwardInRanges>(inputs, {join_heads_inner(os, s), mx::concatenate(lses, 2, s)}, s,
                                                    options, layout, ranges);
  return {out[0], out[1]};
}

/// Every element of a gradient comes from one primitive: dQ over ranges of rows, dK and dV over ranges of keys.
Arrays ForwardInRanges::gradients(const Wanted& wanted, const Arrays& primals, const Arrays& cotangents,
                                  const Arrays& outputs) {
  auto s = stream();
  const auto at = [](Grad g) { return static_cast<int>(g); };
  Arrays inputs(primals.begin(), primals.begin() + layout_.count());
  inputs.insert(inputs.end(), {outputs[0], outputs[1], cotangents[0]});
  if (options_.lse_is_used) inputs.push_back(cotangents[1]);
  const Parts parts(inputs, options_, layout_, s);

  std::array<Arrays, kGrads> found;
  const auto collect = [&](Wanted some, Arrays in) {
    size_t next = 0;
    auto out = AttentionBackward::make(s, options_, parts.layout, some, std::move(in));
    for (int g = 0; g < kGrads; g++) {
      if (some[g]) found[g].push_back(out[next++]);
    }
  };
  const Wanted by_rows{wanted[at(Grad::q)], false, false, wanted[at(Grad::mask)]};
  if (by_rows[at(Grad::q)] || by_rows[at(Grad::mask)]) {
    for (auto range : cut(inputs[0].shape(2), ranges_of_queries(ranges_))) collect(by_rows, parts.rows(range));
  }
  const Wanted by_keys{false, wanted[at(Grad::k)], wanted[at(Grad::v)], false};
  if (by_keys[at(Grad::k)] || by_keys[at(Grad::v)]) {
    for (auto range : cut(inputs[1].shape(2), ranges_of_keys(ranges_))) collect(by_keys, parts.keys(range));
  }

  Arrays result;
  for (auto g : {Grad::q, Grad::k, Grad::v}) {
    if (wanted[at(g)]) result.push_back(join_heads_inner(found[at(g)], s));
  }
  if (wanted[at(Grad::mask)]) {
    const auto& pieces = found[at(Grad::mask)];
    // Where the mask broadcasts its rows, every part has a share of the sum.
    auto sum = [&] { return mx::sum(mx::stack(pieces, 0, s), 0, false, s); };
    result.push_back(primals[layout_.index(Extra::mask)].shape(2) == 1 ? sum() : mx::concatenate(pieces, 2, s));
  }
  return BackwardInRanges::join<BackwardInRanges>(inputs, result, s, options_, layout_, wanted);
}

}  // namespace flashrt
