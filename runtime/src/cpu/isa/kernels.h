// The table of one instruction set. Include after everything else in an isa_*.cpp, which names the table.
#pragma once

#include "backward.h"
#include "forward.h"
#include "mask_gradient.h"

namespace flashrt::cpu {
namespace {

constexpr Kernels make_kernels(const char* name) {
  return {name,        forward_scratch, backward_scratch,     mask_gradient_scratch, forward_block,
          merge_block, delta_block,     backward_super_block, mask_gradient_tile};
}

}  // namespace
}  // namespace flashrt::cpu
