#include "kernel_info.h"

#include <algorithm>
#include <array>

namespace flashrt {
namespace {

#define FLASHRT_KERNEL(name, kind, dtype, d, dv, bq, bk, wm, wn, split, rank, threads, threadgroup_bytes, live_bytes) \
  KernelInfo{#name, KernelKind::kind, KernelDtype::dtype, d,         dv, bq, bk, wm, wn, KernelSplit::split,          \
             rank,  threads,          threadgroup_bytes,  live_bytes},
constexpr std::array kKernels = {
#include "registry.inc"
};
#undef FLASHRT_KERNEL

constexpr bool names_differ() {
  for (size_t i = 0; i < kKernels.size(); ++i)
    for (size_t j = 0; j < i; ++j)
      if (kKernels[i].name == kKernels[j].name) return false;
  return true;
}
static_assert(names_differ(), "the registry has no name twice");
static_assert(std::ranges::all_of(kKernels, [](const KernelInfo& k) { return k.threads == 32 * k.wm * k.wn; }),
              "a threadgroup is wm * wn simdgroups");

}  // namespace

std::span<const KernelInfo> kernels() { return kKernels; }

const KernelInfo* find_kernel(KernelKind kind, KernelDtype dtype, int64_t d, int64_t dv, int32_t rank) {
  const auto found = std::ranges::find_if(kKernels, [&](const KernelInfo& k) {
    return k.kind == kind && k.dtype == dtype && k.d == d && k.dv == dv && k.rank == rank;
  });
  return found == kKernels.end() ? nullptr : &*found;
}

const KernelInfo* find_kernel(std::string_view name) {
  const auto found = std::ranges::find(kKernels, name, &KernelInfo::name);
  return found == kKernels.end() ? nullptr : &*found;
}

KernelDtype kernel_dtype(Dtype dtype) {
  switch (dtype) {
    case Dtype::float16:
      return KernelDtype::float16;
    case Dtype::bfloat16:
      return KernelDtype::bfloat16;
    case Dtype::float32:
      return KernelDtype::float32;
  }
  return KernelDtype::none;
}

std::string_view to_string(KernelKind kind) {
  constexpr std::string_view names[] = {"fwd",       "bwd_dq", "bwd_dkv",  "bwd_delta", "bwd_reduce",
                                        "fwd_merge", "pack",   "tile_map", "row_bounds"};
  return names[static_cast<int32_t>(kind)];
}

std::string_view to_string(KernelDtype dtype) {
  constexpr std::string_view names[] = {"float16", "bfloat16", "float32", "none"};
  return names[static_cast<int32_t>(dtype)];
}

std::string_view to_string(KernelSplit split) {
  constexpr std::string_view names[] = {"none", "role", "split_d", "role_split_d"};
  return names[static_cast<int32_t>(split)];
}

}  // namespace flashrt
