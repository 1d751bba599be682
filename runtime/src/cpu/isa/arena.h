// A thread's scratch memory.
#pragma once

#include "simd.h"

namespace flashrt::cpu {
namespace {

/// Hands out 64-byte aligned pieces of a thread's scratch; from null it only counts.
struct Arena {
  char* base;
  int64_t used = 0;

  float* floats(int64_t n) {
    float* piece = base ? reinterpret_cast<float*>(base + used) : nullptr;
    used += round_up(n * 4, 64);
    return piece;
  }
};

}  // namespace
}  // namespace flashrt::cpu
