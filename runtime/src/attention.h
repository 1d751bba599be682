// Attention and its gradient as MLX primitives: lazy, differentiable, vectorisable.
//
// Everything here builds graphs. What a device does with them is in attention_eval.cpp.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

#include "mlx/mlx.h"
#include "mlx/primitives.h"

namespace flashrt {

namespace mx = mlx::core;

using Arrays = std::vector<mx::array>;

/// A request that is well formed and not supported here; Python sees flashrt.UnsupportedError.
class UnsupportedError : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

/// What a call asks for beyond its arrays.
struct Options {
  float scale = 1.0f;
  float softcap = 0.0f;  ///< 0: off
  bool causal = false;
  int window_left = -1;      ///< keys before the diagonal that stay visible; -1: all
  int window_right = -1;     ///< keys after it; -1: all
  bool lse_is_used = false;  ///< somebody may differentiate the LSE: its cotangent counts

  bool operator==(const Options&) const = default;
};

/// Operands that a call may leave out, in the order in which the primitives take them after q, k, v.
enum class Extra : uint8_t { mask, sinks, alibi, block_mask, q_segments, k_segments, row_diagonals };
inline constexpr int kExtras = 7;

/// Which extras a primitive's inputs hold, and where.
class Layout {
 public:
  void add(Extra e) { present_ |= bit(e); }
  bool has(Extra e) const { return (present_ & bit(e)) != 0; }
  /// Position among the inputs; the extra must be present.
  int index(Extra e) const { return 3 + std::popcount(static_cast<unsigned>(present_ & (bit(e) - 1))); }
  /// Operands of the forward: q, k, v and the extras.
  int count() const { return 3 + std::popcount(static_cast<unsigned>(present_)); }
  const mx::array* find(const Arrays& inputs, Extra e) const { return has(e) ? &inputs[index(e)] : nullptr; }

  bool operator==(const Layout&) const = default;

 private:
  static constexpr int bit(Extra e) { return 1 << static_cast<int>(e); }
  int present_ = 0;
};

/// Gradients that an AttentionBackward returns, in this order.
enum class Grad : uint8_t { q, k, v, mask };
inline constexpr int kGrads = 4;
using Wanted = std::array<bool, kGrads>;

/// Operands by name. Masks and block masks have rank 4, each axis of length one or the full one.
struct Operands {
  mx::array q, k, v;
  std::array<std::optional<mx::array>, kExtras> extras{};
};

/// The inputs of a primitive: operands in order, small ones in the dtype and layout that kernels take.
std::pair<Arrays, Layout> flatten(const Operands& operands, mx::Stream stream);

/// (O in q's dtype, LSE f32 (B,H,qL) in the log2 domain). q, k and v share a dtype.
std::pair<mx::array, mx::array> attention(const Operands& operands, const Options& options, mx::Stream stream);

/// The same as several primitives over ranges of queries, and of keys in the backward, so that none of them keeps a
/// GPU busy for long.
std::pair<mx::array, mx::array> attention_in_ranges(const Operands& operands, const Options& options, mx::Stream stream,
                                                    int ranges);

/// The same from MLX's own operations, holding the scores: (O, natural-log LSE), any float dtype, f32 inside (f64 for
/// f64). The oracle, and what second derivatives and jvp go through.
std::pair<mx::array, mx::array> composed(const Operands& operands, const Options& options, mx::Stream stream);

/// What both primitives share: options, layout, and derivatives taken through a composed fallback.
class AttentionBase : public mx::Primitive {
 public:
  AttentionBase(mx::Stream stream, const Options& options, const Layout& layout)
      : mx::Primitive(stream), options_(options), layout_(layout) {}

  std::vector<mx::array> jvp(const Arrays& primals, const Arrays& tangents, const std::vector<int>& argnums) override;
  std::pair<Arrays, std::vector<int>> vmap(const Arrays& inputs, const std::vector<int>& axes) override;

 protected:
  /// The primitive's outputs from MLX's own operations.
  virtual Arrays fallback(const Arrays& inputs) = 0;
  /// The primitive itself over inputs whose mapped axis is folded into the batch.
  virtual Arrays apply(Arrays inputs) = 0;
  /// False where the outputs of one batch entry would mix mapped entries.
  virtual bool can_fold(const Arrays& inputs, const std::vector<int>& axes) const;

  Options options_;
  Layout layout_;
};

/// q, k, v, extras -> O, LSE2.
class Attention : public AttentionBase {
 public:
  using AttentionBase::AttentionBase;

  void eval_cpu(const Arrays& inputs, Arrays& outputs) override;
  void eval_gpu(const Arrays& inputs, Arrays& outputs) override;
  std::vector<mx::array> vjp(const Arrays& primals, const Arrays& cotangents, const std::vector<int>& argnums,
                             const Arrays& outputs) override;
  std::vector<mx::Shape> output_shapes(const Arrays& inputs) override;
  bool is_equivalent(const mx::Primitive& other) const override;
  const char* name() const override { return "FlashAttention"; }

  /// The primitive's outputs over these inputs.
  static Arrays make(mx::Stream stream, const Options& options, const Layout& layout, Arrays inputs);

 protected:
  /// The wanted gradients, in order.
  virtual Arrays gradients(const Wanted& wanted, const Arrays& primals, const Arrays& cotangents,
                           const Arrays& outputs);
  Arrays fallback(const Arrays& inputs) override;
  Arrays apply(Arrays inputs) override;
};

/// q, k, v, extras, O, LSE2, dO [, dLSE2] -> the wanted ones of dQ, dK, dV, dMask (f32).
///
/// Its derivatives are those of the whole map from q, k, v and the mask to the gradients: O and LSE2 count as functions
/// of them, so the derivative towards O and LSE2 themselves is zero.
class AttentionBackward : public AttentionBase {
 public:
  AttentionBackward(mx::Stream stream, const Options& options, const Layout& layout, const Wanted& wanted)
      : AttentionBase(stream, options, layout), wanted_(wanted) {}

  void eval_cpu(const Arrays& inputs, Arrays& outputs) override;
  void eval_gpu(const Arrays& inputs, Arrays& outputs) override;
  std::vector<mx::array> vjp(const Arrays& primals, const Arrays& cotangents, const std::vector<int>& argnums,
                             const Arrays& outputs) override;
  std::vector<mx::Shape> output_shapes(const Arrays& inputs) override;
  bool is_equivalent(const mx::Primitive& other) const override;
  const char* name() const override { return "FlashAttentionBackward"; }

  /// The primitive's outputs over these inputs.
  static Arrays make(mx::Stream stream, const Options& options, const Layout& layout, const Wanted& wanted,
                     Arrays inputs);

  /// The operand that a gradient belongs to.
  static int operand(const Layout& layout, Grad g) {
    return g == Grad::mask ? layout.index(Extra::mask) : static_cast<int>(g);
  }
  /// dMask adds over the axes that the mask broadcasts, so it stays f32 until all is added.
  static mx::Dtype gradient_dtype(const mx::array& operand, Grad g) {
    return g == Grad::mask ? mx::float32 : operand.dtype();
  }

 protected:
  Arrays fallback(const Arrays& inputs) override;
  Arrays apply(Arrays inputs) override;
  bool can_fold(const Arrays& inputs, const std::vector<int>& axes) const override;

 private:
  bool wants(Grad g) const { return wanted_[static_cast<int>(g)]; }
  Wanted wanted_;
};

}  // namespace flashrt
