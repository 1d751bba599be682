// C entry points for tests and benchmarks of the CPU kernels, which need no array library.
#include <cstdio>
#include <exception>

#include "cpu/attention.h"

using flashrt::Problem;
using flashrt::cpu::Options;
using flashrt::cpu::Pass;
using flashrt::cpu::Tensors;

namespace {

template <typename F>
int guarded(char* message, int capacity, F f) {
  try {
    f();
    return 0;
  } catch (const std::exception& e) {
    std::snprintf(message, static_cast<size_t>(capacity), "%s", e.what());
    return 1;
  }
}

}  // namespace

extern "C" {

int cpu_forward(const Problem* p, const Tensors* t, const char* isa, int threads, char* message, int capacity) {
  return guarded(message, capacity, [&] { flashrt::cpu::forward(*p, *t, Options{isa, threads}); });
}

int cpu_backward(const Problem* p, const Tensors* t, const char* isa, int threads, char* message, int capacity) {
  return guarded(message, capacity, [&] { flashrt::cpu::backward(*p, *t, Options{isa, threads}); });
}

int64_t cpu_scratch_bytes(const Problem* p, int backward, int threads, const char* isa) {
  return flashrt::cpu::scratch_bytes(*p, backward ? Pass::backward : Pass::forward, threads, isa);
}

const char* cpu_best_isa() { return flashrt::cpu::best_isa(); }
int cpu_available_threads() { return flashrt::cpu::available_threads(); }
int64_t cpu_sizeof_problem() { return sizeof(Problem); }
int64_t cpu_sizeof_tensors() { return sizeof(Tensors); }
}
