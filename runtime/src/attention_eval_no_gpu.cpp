// eval_gpu of the primitives in a build without Metal.
#include "attention.h"

namespace flashrt {

namespace {

[[noreturn]] void no_gpu_route() {
  throw UnsupportedError(
      "[flashrt] impl='kernel' has no GPU kernels in this build (they are Metal's); "
      "use impl='auto', impl='mlx', or stream=mx.cpu.");
}

}  // namespace

void Attention::eval_gpu(const Arrays&, Arrays&) { no_gpu_route(); }
void AttentionBackward::eval_gpu(const Arrays&, Arrays&) { no_gpu_route(); }

}  // namespace flashrt
