// The emulated machine: lanes are fibers, 32 of them make a simdgroup, simdgroups a threadgroup.
//
// One OS thread (Worker) runs one threadgroup at a time and switches between its lanes at collectives only.
#pragma once

#include <signal.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include "interface.h"
#include "launch.h"

namespace emu {

constexpr uint32_t kSimdWidth = 32;
constexpr uint32_t kMaxThreads = 1024;
constexpr uint64_t kThreadgroupLimit = 32768;

struct Simdgroup;
struct Threadgroup;
struct Worker;

/// Lives at the bottom of its own stack region, so that a stack pointer is enough to find it.
struct Lane {
  void* sp;
  Lane* next;  ///< the simdgroup's ring of unfinished lanes
  Lane* previous;
  Simdgroup* simdgroup;
  Worker* worker;
  uint32_t index;     ///< in the simdgroup
  uint32_t thread;    ///< in the threadgroup
  uint32_t fragment;  ///< offset of its pair in an 8x8 matrix
  uint32_t fragment_row_major;
  uint32_t idle_barriers;  ///< simdgroup barriers that order no memory, since the last collective
};
static_assert(sizeof(Lane) <= 64, "a Lane is one cache line");

// Stack regions are aligned to their size. The Lane sits at an offset that differs from region to region: at equal
// offsets the lanes of a simdgroup would compete for one cache set.
constexpr uint64_t kStackBytes = 256 * 1024;
constexpr uint64_t kStackPage = 4096;

inline Lane* lane_of_region(uint64_t base) {
  const uint64_t colour = (base / kStackBytes) % 32;
  return reinterpret_cast<Lane*>(base + colour * 128);
}

inline Lane* self() {
  uint64_t sp;
  asm("movq %%rsp, %0" : "=r"(sp));
  return lane_of_region(sp & ~(kStackBytes - 1));
}

enum Operation : uint32_t { kOpNone, kOpMma, kOpShuffle, kOpReduce, kOpSimdgroupBarrier, kOpThreadgroupBarrier };

struct Simdgroup {
  uint32_t arrived;
  uint32_t size;  ///< lanes launched; all of them must come to every collective
  uint32_t finished;
  uint32_t operation;  ///< what the first arriver came to, and where
  uint32_t detail;
  uint32_t idle_barriers;
  void* pc;
  uint32_t round;  ///< completed collectives
  uint32_t index;
  bool blocked;           ///< at a threadgroup barrier
  uint32_t epoch;         ///< barriers passed that order threadgroup memory
  uint32_t device_epoch;  ///< and device memory
  Threadgroup* threadgroup;
  Lane* resume;
  Lane* lanes[kSimdWidth];
  alignas(64) float a[64];
  float b[64];
  float c[64];
  float d[64];
  uint64_t slots[2][kSimdWidth];  ///< by parity of round: a fast lane must not overwrite what a slow one still reads
  uint64_t results[kSimdWidth];
};

struct Array {
  const char* name = nullptr;
  uint64_t offset = 0;  ///< in the arena
  uint64_t bytes = 0;
  uint32_t shift = 0;  ///< log2 of the granule in which trace mode looks at it
};

constexpr uint32_t kMaxArrays = 32;
constexpr uint64_t kArenaGap = 32768;  ///< between arrays: an overrun meets no other array
constexpr uint64_t kArenaBytes = 2 * 1024 * 1024;

struct Threadgroup {
  Worker* worker;
  uint32_t position[3];
  uint64_t linear;
  uint32_t n_simdgroups;
  uint32_t arrived;  ///< simdgroups at the current threadgroup barrier
  uint32_t finished;
  uint32_t memory;
  uint32_t first_simdgroup;
  void* pc;
  uint32_t device_epoch;
  uint64_t arena_used;   ///< with gaps
  uint64_t array_bytes;  ///< without
  uint32_t n_arrays;
  Array arrays[kMaxArrays];
  emu_thread thread;  ///< argument sources that all lanes share
};

struct Worker {
  Lane main;  ///< the OS thread's own stack
  Launch* launch = nullptr;
  Threadgroup threadgroup;
  std::vector<Simdgroup> simdgroups;
  std::vector<uint32_t> order;
  uint64_t stacks = 0;  ///< kMaxThreads regions
  uint32_t n_stacks = 0;
  char* arena = nullptr;
  uint64_t random = 0;
  uint32_t epoch = 0;  ///< new with every threadgroup and every barrier that orders threadgroup memory
  Counters counters;
  void* trace = nullptr;  ///< trace.cpp's own state
};

inline Worker* worker_of(const Lane* lane) { return lane->worker; }

/// Saves the caller in `from` and continues `to`.
extern "C" void emu_switch(Lane* from, Lane* to);
#if defined(EMU_ASAN)
void switch_lane(Lane* from, Lane* to);  // tells AddressSanitizer which stack it is on
void arrive_on_stack();
#else
inline void switch_lane(Lane* from, Lane* to) { emu_switch(from, to); }
inline void arrive_on_stack() {}
#endif

/// Makes `lane` start at emu_lane_main with an empty stack.
void prepare_lane(Lane* lane, uint64_t region);
extern "C" void emu_lane_main();

void ensure_stacks(Worker& worker, uint32_t n);
void run_threadgroup(Worker& worker, uint64_t linear);

/// Called by a lane whose kernel has returned.
[[noreturn]] void finish_lane(Lane* lane);

/// Goes on with another simdgroup of the threadgroup, or with the worker when none can run.
void leave_simdgroup(Lane* lane);

// Faults. `text` may name the two places as $0 and $1; the launcher writes file and line there.
[[noreturn]] void fatal(Lane* lane, FaultKind kind, const void* pc0, const void* pc1, const char* format, ...);
void report(Launch* launch, FaultKind kind, const void* pc0, const void* pc1, const char* format, ...);

// While a launch runs, crashes of its lanes are faults. catch_crashes() serves the process, a CrashGuard the OS thread
// that runs a worker.
void catch_crashes();
class CrashGuard {
 public:
  explicit CrashGuard(const Worker& worker);
  ~CrashGuard();
  CrashGuard(const CrashGuard&) = delete;

 private:
  void* stack_;
  stack_t before_;
  uint32_t slot_;
};

// Trace mode's hooks; empty in the others.
void trace_begin_launch(Launch* launch);
void trace_end_launch(Launch* launch);
void trace_begin_threadgroup(Worker& worker);
void trace_begin_worker(Worker& worker);

/// Whether an address is what absent references point to.
bool is_absent_argument(uint64_t address);

}  // namespace emu
