// The kernels for any CPU of the target: SSE2 on x86-64, NEON on arm64; compiled with the flags of ../sources.cmake.
#include "kernels.h"

namespace flashrt::cpu {

extern __attribute__((visibility("hidden"))) const Kernels kBaselineKernels;
#if defined(__aarch64__)
const Kernels kBaselineKernels = make_kernels("neon");
#else
const Kernels kBaselineKernels = make_kernels("baseline");
#endif

}  // namespace flashrt::cpu
