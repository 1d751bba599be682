// Attention on the CPU: forward and backward for every option of Problem, in O(L) memory and on all cores.
//
// Rules that hold for both calls: scores, P, dS and every sum are f32 whatever the dtype; a key is hidden by predicate
// and never by magnitude; the bits of a result depend on the problem and the instruction set, not on the thread count.
#pragma once

#include <cstdint>

#include "problem.h"

namespace flashrt::cpu {

/// Operands of one call. Their shapes and strides are the Problem's; an option that is off leaves its pointer unread.
struct Tensors {
  const void* q = nullptr;
  const void* k = nullptr;
  const void* v = nullptr;
  const void* mask = nullptr;           ///< bytes, dtype or f32: Problem::mask_kind
  const float* sinks = nullptr;         ///< (H), natural-log logits
  const float* alibi = nullptr;         ///< slopes
  const uint8_t* block_mask = nullptr;  ///< one byte per 32x32 tile of scores, zero hides it
  const int32_t* q_segments = nullptr;
  const int32_t* k_segments = nullptr;
  const int32_t* row_diagonals = nullptr;  ///< key position of each query row's diagonal

  // Written by forward, read by backward.
  void* o = nullptr;
  float* lse = nullptr;  ///< f32 (B,H,qL) contiguous, log2 domain, sinks included; -inf for a row that sees nothing

  // Backward only.
  const void* d_o = nullptr;
  const float* d_lse = nullptr;  ///< cotangent of the log2-domain LSE, laid out like it: Problem::has_dlse
  void* d_q = nullptr;           ///< null: not wanted, and its work is skipped; so for the next three
  void* d_k = nullptr;
  void* d_v = nullptr;
  float* d_mask = nullptr;    ///< f32
  Strides4 d_mask_strides{};  ///< the gradient is summed over axes with stride 0
};

/// How to run a call; the defaults are what users get, tests and benchmarks choose.
struct Options {
  const char* isa =
      nullptr;      ///< "baseline", "avx2", "avx512", "avx512_bf16" or "neon"; null picks the best this CPU has
  int threads = 0;  ///< upper bound; 0: as many as the process may run on
};

/// Writes O and LSE. Throws std::invalid_argument for an unknown or unavailable isa, std::bad_alloc without scratch.
void forward(const Problem& problem, const Tensors& tensors, const Options& options = {});

/// Writes those of dQ, dK, dV, dMask that are not null, each element exactly once.
void backward(const Problem& problem, const Tensors& tensors, const Options& options = {});

enum class Pass { forward, backward };

/// Bytes of scratch that a call allocates on top of its outputs; freed when it returns.
int64_t scratch_bytes(const Problem& problem, Pass pass, int threads, const char* isa = nullptr);

/// Threads that a call uses when Options::threads is 0.
int available_threads();

/// Name of the instruction set that a call uses when Options::isa is null.
const char* best_isa();

/// Makes an instruction set what the whole process uses when Options::isa is null; null: again the best this CPU has.
/// For benchmarks, which compare libraries at one level. Throws like forward().
void prefer_isa(const char* isa);

}  // namespace flashrt::cpu
