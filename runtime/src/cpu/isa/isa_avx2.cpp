// The kernels for AVX2, FMA and F16C; compiled with the flags of ../sources.cmake.
#include "kernels.h"

namespace flashrt::cpu {

extern __attribute__((visibility("hidden"))) const Kernels kAvx2Kernels;
const Kernels kAvx2Kernels = make_kernels("avx2");

}  // namespace flashrt::cpu
