// Threadgroup memory: arrays with wide gaps between them in one arena, filled with NaN for every threadgroup.
#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "machine.h"

#if defined(EMU_ASAN)
#include <sanitizer/asan_interface.h>
#endif

namespace emu {
namespace {

void map_arena(Worker& worker) {
  void* raw = mmap(nullptr, kArenaBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (raw == MAP_FAILED) {
    perror("emulator: threadgroup memory");
    abort();
  }
  worker.arena = static_cast<char*>(raw);
}

}  // namespace
}  // namespace emu

using namespace emu;

extern "C" void* emu_threadgroup_array(emu_u32 id, const char* name, emu_u64 size, emu_u64 element_size,
                                       emu_u64 alignment) {
  Lane* lane = self();
  Threadgroup& tg = *lane->simdgroup->threadgroup;
  Worker& worker = *tg.worker;
  const void* pc = __builtin_return_address(0);
  if (id >= kMaxArrays) {
    fatal(lane, kFaultSetup, pc, nullptr, "threadgroup array %s at $0: more than %u arrays", name, kMaxArrays);
  }
  if (id >= tg.n_arrays) {
    for (uint32_t i = tg.n_arrays; i <= id; ++i) tg.arrays[i] = Array{};
    tg.n_arrays = id + 1;
  }
  Array& array = tg.arrays[id];
  if (array.bytes == 0) {
    if (worker.arena == nullptr) map_arena(worker);
    const uint64_t align = alignment < 16 ? 16 : alignment;
    tg.array_bytes = (tg.array_bytes + align - 1) / align * align + size;
    if (tg.array_bytes > kThreadgroupLimit) {
      fatal(lane, kFaultThreadgroupLimit, pc, nullptr,
            "threadgroup array %s at $0 brings threadgroup memory to %llu bytes, the limit is %llu", name,
            static_cast<unsigned long long>(tg.array_bytes), static_cast<unsigned long long>(kThreadgroupLimit));
    }
    const uint64_t start = (tg.arena_used + kArenaGap + align - 1) / align * align;
    array.name = name;
    array.offset = start;
    array.bytes = size;
    array.shift = element_size % 2 == 0 ? 1 : 0;  // a lane's smallest access; coarser would see races that are none
    tg.arena_used = start + size;
#if defined(EMU_ASAN)
    __asan_poison_memory_region(worker.arena + start - kArenaGap, size + 2 * kArenaGap);
    __asan_unpoison_memory_region(worker.arena + start, size);
#endif
    memset(worker.arena + start, 0xff, size);  // NaN in every float type
  }
  return worker.arena + array.offset;
}
