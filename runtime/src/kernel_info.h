// The compiled-in table of generated kernels, one row per generated/*.metal, made from generated/registry.inc.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "problem.h"

namespace flashrt {

enum class KernelKind : int32_t {
  fwd,
  bwd_dq,
  bwd_dkv,
  bwd_delta,
  bwd_reduce,
  fwd_merge,
  pack,
  tile_map,
  row_bounds,
};

/// What a kernel's file is generated for; `none` where a kernel touches no tensor of the problem's dtype.
enum class KernelDtype : int32_t { float16, bfloat16, float32, none };

/// How the simdgroups of one row group share its work.
enum class KernelSplit : int32_t { none, role, split_d, role_split_d };

struct KernelInfo {
  std::string_view name;  ///< also the function's name in the metallib
  KernelKind kind;
  KernelDtype dtype;
  int32_t d;   ///< width of q and k; 0 for helper kernels
  int32_t dv;  ///< width of v
  int32_t bq;
  int32_t bk;
  int32_t wm;  ///< row groups per threadgroup
  int32_t wn;  ///< simdgroups per row group
  KernelSplit split;
  int32_t rank;     ///< 0: the default of its (kind, dtype, d, dv); others are candidates for a tuner
  int32_t threads;  ///< per threadgroup
  int32_t threadgroup_bytes;
  int32_t live_bytes;  ///< estimated register bytes per lane
};

/// Every row of the registry, in its order.
std::span<const KernelInfo> kernels();

/// The kernel with these attributes, or nullptr.
const KernelInfo* find_kernel(KernelKind kind, KernelDtype dtype, int64_t d = 0, int64_t dv = 0, int32_t rank = 0);

/// The kernel with this name, or nullptr.
const KernelInfo* find_kernel(std::string_view name);

KernelDtype kernel_dtype(Dtype dtype);

std::string_view to_string(KernelKind kind);
std::string_view to_string(KernelDtype dtype);
std::string_view to_string(KernelSplit split);

}  // namespace flashrt
