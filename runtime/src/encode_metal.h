// Carries a plan out on a Mac's GPU through mlx's command encoder. Apple only.
#pragma once

#include <array>
#include <filesystem>
#include <stdexcept>

#include "mlx/array.h"
#include "mlx/device.h"
#include "mlx/stream.h"
#include "plan.h"

namespace flashrt {

/// The metallib with the kernels is absent, or was built from other kernels than this module.
class MetallibError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The arrays a plan names, by Tensor; nullptr where the call has none. Outputs are already allocated.
class CallArrays {
 public:
  void set(Tensor tensor, const mlx::core::array& array) { arrays_[index(tensor)] = &array; }
  const mlx::core::array* get(Tensor tensor) const { return arrays_[index(tensor)]; }

 private:
  static size_t index(Tensor tensor) { return static_cast<size_t>(tensor); }
  std::array<const mlx::core::array*, static_cast<size_t>(Tensor::temporary)> arrays_{};
};

/// What plan() needs to know about this GPU.
Device metal_device(mlx::core::Device device);

/// Where the kernels are looked for: FLASHRT_METALLIB_DIR, else the directory of this module.
std::filesystem::path metallib_path();

/// Encodes the plan's launches into the stream's command buffer. Call from eval_gpu.
void encode_metal(const Plan& plan, const CallArrays& arrays, const mlx::core::Stream& stream);

}  // namespace flashrt
