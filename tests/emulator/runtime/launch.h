// What a launch is asked for and what it reports; mirrored in native.py.
#pragma once

#include <atomic>
#include <cstdint>

#include "interface.h"

namespace emu {

constexpr uint32_t kMaxBuffers = 31;
constexpr uint32_t kMaxConstants = 64;
constexpr uint32_t kMaxFaults = 64;
constexpr uint32_t kFaultText = 480;

enum FaultKind : uint32_t {
  kFaultSetup,             ///< bad arguments
  kFaultConstant,          ///< function constant not set
  kFaultUnbound,           ///< buffer not bound
  kFaultDivergence,        ///< lanes at different collectives
  kFaultMissingLanes,      ///< lanes or simdgroups that never come
  kFaultThreadgroupLimit,  ///< more than 32 KB of threadgroup memory
  kFaultOutOfBounds,
  kFaultUninitialised,
  kFaultRace,
  kFaultMisaligned,
  kFaultSameStatement,  ///< not a fault if both places turn out to be one statement
  kFaultCrash,          ///< unmapped memory, stack overflow
};

struct Fault {
  FaultKind kind;
  uint32_t fatal;
  uint64_t pc[2];  ///< offsets in the kernel library, 0: none
  char text[kFaultText];
};

struct Buffer {
  void* base;
  uint64_t bytes;
  uint64_t offset;
  uint32_t bound;
  uint32_t writable;  ///< derived from the kernel's arguments
};

struct Counters {
  uint64_t mma;
  uint64_t device_read_bytes;
  uint64_t device_write_bytes;
  uint64_t constant_read_bytes;
  uint64_t threadgroup_read_bytes;
  uint64_t threadgroup_write_bytes;
  uint64_t threadgroup_barriers;  ///< arrivals of simdgroups
  uint64_t simdgroup_barriers;
  uint64_t shuffles;    ///< per simdgroup
  uint64_t reductions;  ///< per simdgroup
  uint64_t exp2;        ///< per lane
  uint64_t threadgroup_memory_bytes;
};

struct Launch {
  emu_module* module;
  const emu_kernel* kernel;
  uint32_t grid[3];
  uint32_t group[3];
  Buffer buffers[kMaxBuffers];
  uint32_t n_constants;
  int32_t constant_index[kMaxConstants];
  int64_t constant_value[kMaxConstants];
  uint32_t threads;
  uint32_t shuffled;
  uint64_t seed;

  Counters counters;
  uint32_t n_faults;
  uint32_t faults_dropped;
  Fault faults[kMaxFaults];

  // The runtime's own.
  void* arguments[kMaxBuffers];
  std::atomic<uint64_t> next_threadgroup;
  std::atomic<uint32_t> stop;
  uint64_t image_base;
  void* trace;
};

}  // namespace emu

#pragma GCC visibility push(default)
extern "C" {
/// Sizes, so that the mirror can check itself.
uint64_t emu_launch_bytes();
/// Runs launch->kernel over the grid; 0 when nothing fatal happened.
int emu_run(emu::Launch* launch);
const emu_kernel* emu_find_kernel(const emu_module* module, const char* name);
}
#pragma GCC visibility pop
