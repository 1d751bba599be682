// The kernels for AVX-512 with products of bfloat16 pairs; compiled with the flags of ../sources.cmake.
#include "kernels.h"

namespace flashrt::cpu {

extern __attribute__((visibility("hidden"))) const Kernels kAvx512Bf16Kernels;
const Kernels kAvx512Bf16Kernels = make_kernels("avx512_bf16");

}  // namespace flashrt::cpu
