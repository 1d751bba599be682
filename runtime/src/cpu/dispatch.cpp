#include "dispatch.h"

#include <atomic>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace flashrt::cpu {

extern const Kernels kBaselineKernels;
#if defined(__x86_64__)
extern const Kernels kAvx2Kernels;
extern const Kernels kAvx512Kernels;
extern const Kernels kAvx512Bf16Kernels;
#endif

namespace {

/// Best first; the baseline is always there.
std::vector<const Kernels*> supported_kernels() {
  std::vector<const Kernels*> found;
#if defined(__x86_64__)
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
  if (avx512 && __builtin_cpu_supports("avx512bf16")) found.push_back(&kAvx512Bf16Kernels);
  if (avx512) found.push_back(&kAvx512Kernels);
  if (avx2) found.push_back(&kAvx2Kernels);
#endif
  found.push_back(&kBaselineKernels);
  return found;
}

std::atomic<const Kernels*> preferred{nullptr};

}  // namespace

const Kernels& select_kernels(const char* isa) {
  static const std::vector<const Kernels*> supported = supported_kernels();
  if (isa == nullptr) {
    const Kernels* kernels = preferred;
    return kernels != nullptr ? *kernels : *supported.front();
  }
  std::string names;
  for (const Kernels* kernels : supported) {
    if (std::string_view(isa) == kernels->name) return *kernels;
    names += (names.empty() ? "" : ", ") + std::string(kernels->name);
  }
  throw std::invalid_argument("isa='" + std::string(isa) + "' is not available here; this CPU runs " + names);
}

void prefer_isa(const char* isa) { preferred = isa == nullptr ? nullptr : &select_kernels(isa); }

const char* best_isa() { return select_kernels(nullptr).name; }

}  // namespace flashrt::cpu
