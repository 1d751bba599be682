// Aligned memory of one call.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

namespace flashrt::cpu {

inline int64_t round_to_line(int64_t bytes) { return (bytes + 63) / 64 * 64; }

struct FreeScratch {
  void operator()(char* p) const { std::free(p); }
};
using Scratch = std::unique_ptr<char[], FreeScratch>;

inline Scratch allocate_scratch(int64_t bytes) {
  void* p = std::aligned_alloc(64, static_cast<size_t>(round_to_line(bytes > 0 ? bytes : 1)));
  if (p == nullptr) throw std::bad_alloc();
  return Scratch(static_cast<char*>(p));
}

/// Threads worth waking: about four million multiply-adds each, so that tiny calls stay on the caller's.
inline int threads_for(int64_t multiply_adds, int limit) {
  const int64_t useful = 1 + multiply_adds / (int64_t{1} << 22);
  return static_cast<int>(useful < limit ? useful : limit);
}

}  // namespace flashrt::cpu
