// The compiled-in table of where mx.fast is predicted to be faster, from the registry's FLASHRT_ROUTE rows.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace flashrt {

/// For calls that mx.fast means the same by: flashrt's kernels where min_l <= L < max_l, L the longer of queries and
/// keys, and wherever mx.fast would hold `score_bytes` or more in scores; else mx.fast.
struct RouteInfo {
  std::string_view gpu;  ///< "simd", or "nax": with the matrix units that MLX uses
  int32_t d, dv;
  std::string_view dtype;
  std::string_view mask;  ///< "causal" or "full"
  int64_t min_l, max_l;
  int64_t mlx_tile;  ///< edge of the score tiles that mx.fast holds
  int64_t score_bytes;
};

std::span<const RouteInfo> routes();

}  // namespace flashrt
