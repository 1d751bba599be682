// Device memory of a traced launch: every buffer moves to a place of its own, far from all others.
//
// An address then tells its buffer, and an access that misses its buffer meets nothing else.
#pragma once

#include <atomic>
#include <cstdint>

#include "launch.h"
#include "race.h"

namespace emu {

constexpr uint64_t kExtentSpan = uint64_t(1) << 34;  ///< address space of one extent; its bytes start in the middle
constexpr uint32_t kMaxExtents = kMaxBuffers;

/// One or more overlapping buffers.
struct Extent {
  char* original;
  uint64_t bytes;
  uint32_t slot;  ///< of its first buffer
  bool writable;
  bool constant;      ///< in constant memory only
  uint32_t shift;     ///< log2 of the granule in which races are found
  DeviceCell* cells;  ///< null when read-only
  const char* name;
};

struct DeviceMemory {
  char* base = nullptr;  ///< kMaxExtents spans
  uint64_t mapped[kMaxExtents] = {};
  Extent extents[kMaxExtents];
  uint32_t n = 0;

  char* start(uint32_t i) const { return base + i * kExtentSpan + kExtentSpan / 2; }
};

/// Copies the bound buffers in and redirects launch->arguments.
DeviceMemory* place_buffers(Launch* launch);
/// Copies what kernels may have written back.
void take_back(Launch* launch, DeviceMemory* memory);

}  // namespace emu
