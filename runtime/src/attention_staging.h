// Memory of a primitive's inputs and outputs on the CPU: layouts of outputs, copies of inputs that need one.
#pragma once

#include "attention.h"
#include "mlx/backend/cpu/encoder.h"

namespace flashrt {

/// Gives `out` (B,H,L,D) its memory as [B,L,H,D]: the transpose that follows attention in a model is then free.
void allocate_heads_inner(mx::array& out);

/// Gives a gradient the memory order of its operand.
void allocate_like(mx::array& out, const mx::array& operand);

void allocate_rows(mx::array& out);

/// Inputs as the kernels read them. Copies happen in the stream, before what is dispatched next.
class Staging {
 public:
  explicit Staging(mx::cpu::CommandEncoder& encoder) : encoder_(encoder) {}

  /// The array itself when its last axis is contiguous, else a row-contiguous copy.
  mx::array contiguous_last(const mx::array& a);

 private:
  mx::array copy(const mx::array& a);
  mx::cpu::CommandEncoder& encoder_;
};

}  // namespace flashrt
