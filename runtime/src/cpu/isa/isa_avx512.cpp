// The kernels for AVX-512 F, DQ, BW and VL; compiled with the flags of ../sources.cmake.
#include "kernels.h"

namespace flashrt::cpu {

extern __attribute__((visibility("hidden"))) const Kernels kAvx512Kernels;
const Kernels kAvx512Kernels = make_kernels("avx512");

}  // namespace flashrt::cpu
