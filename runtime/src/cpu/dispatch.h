// Which instruction sets are built in, and which of them this CPU runs.
#pragma once

#include "job.h"

namespace flashrt::cpu {

/// The kernels named `isa`, the best ones for null. Throws std::invalid_argument if not built in or not supported.
const Kernels& select_kernels(const char* isa);

}  // namespace flashrt::cpu
