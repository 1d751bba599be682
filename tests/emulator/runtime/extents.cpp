#include "extents.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <vector>

namespace emu {
namespace {

std::mutex pool_mutex;
std::vector<std::unique_ptr<DeviceMemory>> pool;  // mapped pages are kept from launch to launch

void* map(uint64_t bytes, int protection) {
  void* raw = mmap(nullptr, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (raw == MAP_FAILED) {
    perror("emulator: device memory");
    abort();
  }
  return raw;
}

std::unique_ptr<DeviceMemory> take_memory() {
  const std::lock_guard<std::mutex> lock(pool_mutex);
  if (!pool.empty()) {
    std::unique_ptr<DeviceMemory> memory = std::move(pool.back());
    pool.pop_back();
    return memory;
  }
  auto memory = std::make_unique<DeviceMemory>();
  memory->base = static_cast<char*>(map(kMaxExtents * kExtentSpan, PROT_NONE));
  return memory;
}

/// Joins overlapping buffers: what one slot writes another may read.
void find_extents(const Launch* launch, DeviceMemory* memory) {
  memory->n = 0;
  std::vector<uint32_t> slots;
  for (uint32_t i = 0; i < kMaxBuffers; ++i) {
    if (launch->buffers[i].bound) slots.push_back(i);
  }
  std::sort(slots.begin(), slots.end(),
            [&](uint32_t x, uint32_t y) { return launch->buffers[x].base < launch->buffers[y].base; });
  for (uint32_t slot : slots) {
    const Buffer& buffer = launch->buffers[slot];
    char* base = static_cast<char*>(buffer.base);
    Extent* last = memory->n == 0 ? nullptr : &memory->extents[memory->n - 1];
    if (last != nullptr && base < last->original + last->bytes) {
      last->bytes = std::max<uint64_t>(last->bytes, base + buffer.bytes - last->original);
      last->writable = last->writable || buffer.writable;
      continue;
    }
    memory->extents[memory->n++] = Extent{base, buffer.bytes, slot, buffer.writable != 0, true, 2, nullptr, ""};
  }
}

Extent* extent_of(DeviceMemory* memory, const void* base) {
  for (uint32_t i = memory->n; i-- > 0;) {
    if (memory->extents[i].original <= base) return &memory->extents[i];
  }
  return nullptr;
}

uint64_t cell_bytes(const Extent& extent) { return ((extent.bytes >> extent.shift) + 1) * sizeof(DeviceCell); }

}  // namespace

DeviceMemory* place_buffers(Launch* launch) {
  DeviceMemory* memory = take_memory().release();
  find_extents(launch, memory);
  const emu_kernel& kernel = *launch->kernel;
  for (uint32_t i = 0; i < kernel.n_params; ++i) {
    const emu_param& param = kernel.params[i];
    if (param.source != kEmuBuffer || !launch->buffers[param.index].bound) continue;
    const Buffer& buffer = launch->buffers[param.index];
    Extent* extent = extent_of(memory, buffer.base);
    if (int(extent->slot) == param.index) extent->name = param.name;
    if (param.space == kEmuDevice) extent->constant = false;
    const uint32_t size = kernel.types[i].size;
    extent->shift = std::min<uint32_t>(extent->shift, size % 4 == 0 ? 2 : size % 2 == 0 ? 1 : 0);
  }
  for (uint32_t i = 0; i < memory->n; ++i) {
    Extent& extent = memory->extents[i];
    const uint64_t needed = (extent.bytes + 4095) / 4096 * 4096;
    if (needed > kExtentSpan / 2) {
      fprintf(stderr, "emulator: a buffer of %llu bytes is too large to trace\n",
              static_cast<unsigned long long>(extent.bytes));
      abort();
    }
    if (needed > memory->mapped[i]) {
      if (mprotect(memory->start(i), needed, PROT_READ | PROT_WRITE) != 0) {
        perror("emulator: device memory");
        abort();
      }
      memory->mapped[i] = needed;
    }
    if (extent.bytes != 0) memcpy(memory->start(i), extent.original, extent.bytes);
    if (extent.writable) extent.cells = static_cast<DeviceCell*>(map(cell_bytes(extent), PROT_READ | PROT_WRITE));
  }
  for (uint32_t i = 0; i < kernel.n_params; ++i) {
    const emu_param& param = kernel.params[i];
    if (param.source != kEmuBuffer || !launch->buffers[param.index].bound) continue;
    if (param.gate != nullptr && !param.gate()) continue;
    const Buffer& buffer = launch->buffers[param.index];
    const Extent* extent = extent_of(memory, buffer.base);
    launch->arguments[param.index] = memory->start(uint32_t(extent - memory->extents)) +
                                     (static_cast<char*>(buffer.base) - extent->original) + buffer.offset;
  }
  return memory;
}

void take_back(Launch* launch, DeviceMemory* memory) {
  (void)launch;
  for (uint32_t i = 0; i < memory->n; ++i) {
    Extent& extent = memory->extents[i];
    if (!extent.writable) continue;
    if (extent.bytes != 0) memcpy(extent.original, memory->start(i), extent.bytes);
    munmap(extent.cells, cell_bytes(extent));
    extent.cells = nullptr;
  }
  const std::lock_guard<std::mutex> lock(pool_mutex);
  pool.emplace_back(memory);
}

}  // namespace emu
