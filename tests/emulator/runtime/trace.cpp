// Trace mode: every load and store of a kernel comes through here.
//
// Kernels are compiled with the compiler's thread sanitizer instrumentation and linked to these functions instead of
// its runtime: it skips what cannot be shared, covers memcpy and memset, and keeps every access apart.
#include <link.h>
#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "extents.h"
#include "machine.h"
#include "race.h"

namespace emu {
namespace {

constexpr uint32_t kLocks = 1024;
constexpr uint32_t kKnownReports = 256;

/// What all workers of a launch share.
struct LaunchTrace {
  DeviceMemory* memory;
  uint64_t image_begin;
  uint64_t image_end;
  bool concurrent;
  std::atomic_flag locks[kLocks];
};

/// What one worker needs at every access.
struct Trace {
  Cell* cells = nullptr;     ///< one for each byte of the arena, of which coarser arrays use a part
  uint32_t first_epoch = 0;  ///< of this threadgroup
  uint32_t last_array = 0;
  LaunchTrace* launch = nullptr;
  uint64_t known[kKnownReports] = {};
};

inline Trace& trace_of(Worker& worker) { return *static_cast<Trace*>(worker.trace); }

enum Access { kRead, kWrite };

/// True once for each pair of places: a race in a hot loop is one report.
bool is_new(Trace& trace, uint32_t kind, uint64_t pc0, uint64_t pc1) {
  const uint64_t key = (pc0 * 0x9e3779b97f4a7c15u ^ pc1 * 0xc2b2ae3d27d4eb4fu) + kind + 1;
  uint64_t& slot = trace.known[(key >> 40) % kKnownReports];
  if (slot == key) return false;
  slot = key;
  return true;
}

const void* pointer(const Launch& launch, uint32_t pc) { return reinterpret_cast<void*>(launch.image_base + pc); }

[[noreturn]] __attribute__((noinline, cold)) void outside(Lane* lane, uint64_t address, uint64_t bytes, Access kind,
                                                          void* pc) {
  Worker& worker = *worker_of(lane);
  const DeviceMemory& memory = *trace_of(worker).launch->memory;
  const char* verb = kind == kRead ? "reads" : "writes";
  const uint64_t span = address - reinterpret_cast<uint64_t>(memory.base);
  if (span < memory.n * kExtentSpan) {
    const uint32_t i = uint32_t(span / kExtentSpan);
    const Extent& extent = memory.extents[i];
    fatal(lane, kFaultOutOfBounds, pc, nullptr,
          "out of bounds: thread %u %s %llu bytes at offset %lld of %s, buffer %u of %llu bytes, at $0", lane->thread,
          verb, static_cast<unsigned long long>(bytes),
          static_cast<long long>(address - reinterpret_cast<uint64_t>(memory.start(i))), extent.name, extent.slot,
          static_cast<unsigned long long>(extent.bytes));
  }
  const Threadgroup& tg = worker.threadgroup;
  const uint64_t offset = address - reinterpret_cast<uint64_t>(worker.arena);
  if (worker.arena != nullptr && offset < kArenaBytes) {
    const Array* nearest = nullptr;
    uint64_t distance = ~uint64_t(0);
    for (uint32_t i = 0; i < tg.n_arrays; ++i) {
      const Array& array = tg.arrays[i];
      const uint64_t away = offset >= array.offset ? offset - array.offset : array.offset - offset;
      if (array.bytes != 0 && away < distance) {
        distance = away;
        nearest = &array;
      }
    }
    fatal(lane, kFaultOutOfBounds, pc, nullptr,
          "out of bounds: thread %u %s %llu bytes at offset %lld of threadgroup array %s of %llu bytes, at $0",
          lane->thread, verb, static_cast<unsigned long long>(bytes),
          nearest == nullptr ? 0LL : static_cast<long long>(offset - nearest->offset),
          nearest == nullptr ? "(none)" : nearest->name,
          nearest == nullptr ? 0ULL : static_cast<unsigned long long>(nearest->bytes));
  }
  if (address < 4096) {
    fatal(lane, kFaultOutOfBounds, pc, nullptr,
          "out of bounds: thread %u %s through a null pointer at $0 (an absent argument?)", lane->thread, verb);
  }
  if (address - worker.stacks < uint64_t(kMaxThreads + 1) * kStackBytes) {
    fatal(lane, kFaultOutOfBounds, pc, nullptr,
          "out of bounds: thread %u %s private memory of another thread, or beyond its own, at $0", lane->thread, verb);
  }
  fatal(lane, kFaultOutOfBounds, pc, nullptr,
        "out of bounds: thread %u %s %llu bytes at an address of no buffer, at $0", lane->thread, verb,
        static_cast<unsigned long long>(bytes));
}

__attribute__((noinline, cold)) void report_race(Lane* lane, Actor earlier, uint32_t earlier_pc, Access first,
                                                 Access second, const Array& array, uint64_t granule, void* pc) {
  Worker& worker = *worker_of(lane);
  Launch& launch = *worker.launch;
  if (!is_new(trace_of(worker), kFaultRace, earlier_pc, reinterpret_cast<uint64_t>(pc))) return;
  report(&launch, kFaultRace, pointer(launch, earlier_pc), pc,
         "race on threadgroup array %s at byte %llu: thread %u %s it at $0, thread %u %s it at $1, no barrier between",
         array.name, static_cast<unsigned long long>(granule << array.shift), thread_of(earlier),
         first == kRead ? "reads" : "writes", lane->thread, second == kRead ? "reads" : "writes");
}

template <Access kind>
__attribute__((always_inline)) inline void threadgroup_access(Lane* lane, Worker& worker, Trace& trace, uint64_t offset,
                                                              uint64_t bytes, void* pc) {
  const Threadgroup& tg = worker.threadgroup;
  const Array* array = &tg.arrays[trace.last_array];
  if (__builtin_expect(offset - array->offset + bytes > array->bytes || offset < array->offset, 0)) {
    uint32_t i = 0;
    while (i < tg.n_arrays &&
           (offset < tg.arrays[i].offset || offset - tg.arrays[i].offset + bytes > tg.arrays[i].bytes)) {
      ++i;
    }
    if (i == tg.n_arrays) outside(lane, offset + reinterpret_cast<uint64_t>(worker.arena), bytes, kind, pc);
    trace.last_array = i;
  }
  (kind == kRead ? worker.counters.threadgroup_read_bytes : worker.counters.threadgroup_write_bytes) += bytes;
  const uint32_t epoch = worker.epoch;
  const Actor me = make_actor(lane->thread, lane->simdgroup->epoch);
  const uint32_t short_pc = uint32_t(reinterpret_cast<uint64_t>(pc) - worker.launch->image_base);
  array = &tg.arrays[trace.last_array];
  const uint64_t in_array = offset - array->offset;
  Cell* const cells = trace.cells + array->offset;
  const uint64_t last = (in_array + bytes - 1) >> array->shift;
  for (uint64_t i = in_array >> array->shift; i <= last; ++i) {
    Cell* const cell = cells + i;
    if (kind == kRead) {
      if (__builtin_expect(cell->written_epoch < trace.first_epoch, 0)) {
        if (is_new(trace, kFaultUninitialised, short_pc, 0)) {
          report(worker.launch, kFaultUninitialised, pc, nullptr,
                 "uninitialised read: thread %u reads byte %llu of threadgroup array %s at $0, which nobody wrote",
                 lane->thread, static_cast<unsigned long long>(i << array->shift), array->name);
        }
      }
      if (cell->epoch != epoch) {
        cell->epoch = epoch;
        cell->write = 0;
        cell->read[0] = me;
        cell->read[1] = 0;
        cell->read_pc[0] = short_pc;
        continue;
      }
      if (__builtin_expect(unordered(cell->write, me), 0)) {
        report_race(lane, cell->write, cell->write_pc, kWrite, kRead, *array, i, pc);
      }
      note_read(*cell, me, short_pc);
    } else {
      if (cell->epoch != epoch) {
        cell->epoch = epoch;
      } else {
        if (__builtin_expect(unordered(cell->write, me), 0)) {
          report_race(lane, cell->write, cell->write_pc, kWrite, kWrite, *array, i, pc);
        }
        for (int r = 0; r < 2; ++r) {
          if (__builtin_expect(unordered(cell->read[r], me), 0)) {
            report_race(lane, cell->read[r], cell->read_pc[r], kRead, kWrite, *array, i, pc);
          }
        }
      }
      cell->write = me;
      cell->write_pc = short_pc;
      cell->read[0] = cell->read[1] = 0;
      cell->written_epoch = epoch;
    }
  }
}

__attribute__((noinline, cold)) void report_device_race(Lane* lane, const Extent& extent, const GlobalActor& earlier,
                                                        Access first, Access second, uint64_t offset, void* pc) {
  Worker& worker = *worker_of(lane);
  Launch& launch = *worker.launch;
  if (!is_new(trace_of(worker), kFaultRace, earlier.pc, reinterpret_cast<uint64_t>(pc))) return;
  report(&launch, kFaultRace, pointer(launch, earlier.pc), pc,
         "race on %s (buffer %u) at byte %llu: thread %u of threadgroup %u %s it at $0, thread %u of threadgroup %llu "
         "%s it at $1, no barrier between",
         extent.name, extent.slot, static_cast<unsigned long long>(offset), thread_of(earlier.actor), earlier.group - 1,
         first == kRead ? "reads" : "writes", lane->thread, static_cast<unsigned long long>(worker.threadgroup.linear),
         second == kRead ? "reads" : "writes");
}

/// Races on memory that the launch writes somewhere.
template <Access kind>
void device_cells(Lane* lane, Worker& worker, LaunchTrace& shared, Extent& extent, uint64_t offset, uint64_t bytes,
                  void* pc) {
  const Threadgroup& tg = worker.threadgroup;
  GlobalActor me;
  me.group = uint32_t(tg.linear) + 1;
  me.epoch = tg.device_epoch;
  me.actor = make_actor(lane->thread, lane->simdgroup->device_epoch);
  me.pc = uint32_t(reinterpret_cast<uint64_t>(pc) - worker.launch->image_base);
  for (uint64_t i = offset >> extent.shift; i <= (offset + bytes - 1) >> extent.shift; ++i) {
    DeviceCell& cell = extent.cells[i];
    std::atomic_flag& lock = shared.locks[(i >> 4) % kLocks];
    if (shared.concurrent) {
      while (lock.test_and_set(std::memory_order_acquire)) {
      }
    }
    if (unordered(cell.write, me)) {
      report_device_race(lane, extent, cell.write, kWrite, kind, i << extent.shift, pc);
    }
    if (kind == kRead) {
      note_read(cell, me);
    } else {
      for (const GlobalActor& reader : cell.read) {
        if (unordered(reader, me)) report_device_race(lane, extent, reader, kRead, kWrite, i << extent.shift, pc);
      }
      cell.write = me;
      cell.read[0] = cell.read[1] = GlobalActor{};
    }
    if (shared.concurrent) lock.clear(std::memory_order_release);
  }
}

template <Access kind>
__attribute__((always_inline)) inline void access(uint64_t address, uint64_t bytes, void* pc) {
  Lane* lane = self();
  if (((address ^ reinterpret_cast<uint64_t>(lane)) & ~(kStackBytes - 1)) == 0) return;  // private memory
  Worker& worker = *worker_of(lane);
  Trace& trace = trace_of(worker);
  const uint64_t offset = address - reinterpret_cast<uint64_t>(worker.arena);
  if (offset < kArenaBytes) {
    threadgroup_access<kind>(lane, worker, trace, offset, bytes, pc);
    return;
  }
  LaunchTrace& shared = *trace.launch;
  DeviceMemory& memory = *shared.memory;
  const uint64_t span = address - reinterpret_cast<uint64_t>(memory.base);
  if (span < memory.n * kExtentSpan) {
    Extent& extent = memory.extents[span / kExtentSpan];
    const uint64_t at = span % kExtentSpan - kExtentSpan / 2;
    if (__builtin_expect(at >= extent.bytes || at + bytes > extent.bytes, 0)) outside(lane, address, bytes, kind, pc);
    if (kind == kWrite) {
      if (__builtin_expect(!extent.writable, 0)) {
        fatal(lane, kFaultOutOfBounds, pc, nullptr, "thread %u writes to %s, buffer %u, which is const, at $0",
              lane->thread, extent.name, extent.slot);
      }
      worker.counters.device_write_bytes += bytes;
    } else {
      (extent.constant ? worker.counters.constant_read_bytes : worker.counters.device_read_bytes) += bytes;
    }
    if (extent.writable) device_cells<kind>(lane, worker, shared, extent, at, bytes, pc);
    return;
  }
  const bool in_image = address >= shared.image_begin && address < shared.image_end;  // function constants, tables
  if (kind == kRead && (in_image || is_absent_argument(address))) return;
  outside(lane, address, bytes, kind, pc);
}

__attribute__((noinline, cold)) void misaligned(uint64_t address, uint64_t bytes, void* pc) {
  Lane* lane = self();
  fatal(lane, kFaultMisaligned, pc, nullptr, "misaligned: thread %u touches %llu bytes at %#llx, at $0", lane->thread,
        static_cast<unsigned long long>(bytes), static_cast<unsigned long long>(address));
}

int find_image(dl_phdr_info* info, size_t, void* data) {
  auto* launch = static_cast<Launch*>(data);
  auto* shared = static_cast<LaunchTrace*>(launch->trace);
  if (info->dlpi_addr != launch->image_base) return 0;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    if (info->dlpi_phdr[i].p_type != PT_LOAD) continue;
    const uint64_t end = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr + info->dlpi_phdr[i].p_memsz;
    if (end > shared->image_end) shared->image_end = end;
  }
  shared->image_begin = launch->image_base;
  return 1;
}

}  // namespace

void trace_begin_launch(Launch* launch) {
  auto* shared = new LaunchTrace{};
  launch->trace = shared;
  shared->concurrent = launch->threads > 1;
  dl_iterate_phdr(find_image, launch);
  shared->memory = place_buffers(launch);
}

void trace_end_launch(Launch* launch) {
  auto* shared = static_cast<LaunchTrace*>(launch->trace);
  take_back(launch, shared->memory);
  delete shared;
  launch->trace = nullptr;
}

void trace_begin_threadgroup(Worker& worker) {
  if (worker.trace == nullptr) {
    auto* trace = new Trace;
    void* raw = mmap(nullptr, kArenaBytes * sizeof(Cell), PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (raw == MAP_FAILED) {
      perror("emulator: shadow memory");
      abort();
    }
    trace->cells = static_cast<Cell*>(raw);
    worker.trace = trace;
  }
  Trace& trace = trace_of(worker);
  trace.launch = static_cast<LaunchTrace*>(worker.launch->trace);
  trace.first_epoch = worker.epoch;
  trace.last_array = 0;
}

void trace_begin_worker(Worker& worker) {
  if (worker.trace != nullptr) memset(trace_of(worker).known, 0, sizeof trace_of(worker).known);
}

}  // namespace emu

using namespace emu;

#define EMU_HOOK extern "C" __attribute__((visibility("default"))) void
#define EMU_PC __builtin_return_address(0)
#define EMU_ACCESS_HOOKS(bytes)                                                                      \
  EMU_HOOK __tsan_read##bytes(uint64_t address) {                                                    \
    access<kRead>(address, bytes, EMU_PC);                                                           \
    if (address % bytes != 0) misaligned(address, bytes, EMU_PC);                                    \
  }                                                                                                  \
  EMU_HOOK __tsan_write##bytes(uint64_t address) {                                                   \
    access<kWrite>(address, bytes, EMU_PC);                                                          \
    if (address % bytes != 0) misaligned(address, bytes, EMU_PC);                                    \
  }                                                                                                  \
  EMU_HOOK __tsan_unaligned_read##bytes(uint64_t address) { access<kRead>(address, bytes, EMU_PC); } \
  EMU_HOOK __tsan_unaligned_write##bytes(uint64_t address) { access<kWrite>(address, bytes, EMU_PC); }
EMU_ACCESS_HOOKS(1)
EMU_ACCESS_HOOKS(2)
EMU_ACCESS_HOOKS(4)
EMU_ACCESS_HOOKS(8)
EMU_ACCESS_HOOKS(16)

extern "C" __attribute__((visibility("default"))) void* __tsan_memcpy(void* to, const void* from, uint64_t bytes) {
  if (bytes != 0) {
    access<kRead>(reinterpret_cast<uint64_t>(from), bytes, EMU_PC);
    access<kWrite>(reinterpret_cast<uint64_t>(to), bytes, EMU_PC);
  }
  return memcpy(to, from, bytes);
}

extern "C" __attribute__((visibility("default"))) void* __tsan_memmove(void* to, const void* from, uint64_t bytes) {
  if (bytes != 0) {
    access<kRead>(reinterpret_cast<uint64_t>(from), bytes, EMU_PC);
    access<kWrite>(reinterpret_cast<uint64_t>(to), bytes, EMU_PC);
  }
  return memmove(to, from, bytes);
}

extern "C" __attribute__((visibility("default"))) void* __tsan_memset(void* to, int value, uint64_t bytes) {
  if (bytes != 0) access<kWrite>(reinterpret_cast<uint64_t>(to), bytes, EMU_PC);
  return memset(to, value, bytes);
}

EMU_HOOK __tsan_init() {}
