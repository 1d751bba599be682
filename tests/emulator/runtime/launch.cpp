// Runs a grid: binds arguments and function constants, spreads threadgroups over OS threads, collects faults.
#include "launch.h"

#include <dlfcn.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <thread>

#include "machine.h"

namespace emu {
namespace {

alignas(64) char absent_argument[4096];

std::mutex report_mutex;
std::mutex pool_mutex;
std::vector<std::unique_ptr<Worker>> pool;  // stacks are costly to map: kept from launch to launch

std::unique_ptr<Worker> take_worker() {
  const std::lock_guard<std::mutex> lock(pool_mutex);
  if (pool.empty()) return std::make_unique<Worker>();
  std::unique_ptr<Worker> worker = std::move(pool.back());
  pool.pop_back();
  return worker;
}

void give_back_worker(std::unique_ptr<Worker> worker) {
  const std::lock_guard<std::mutex> lock(pool_mutex);
  pool.push_back(std::move(worker));
}

uint64_t offset_of(const Launch* launch, const void* pc) {
  // One less: the address after a call may already belong to the next line.
  return pc == nullptr ? 0 : reinterpret_cast<uint64_t>(pc) - 1 - launch->image_base;
}

void vreport(Launch* launch, FaultKind kind, bool is_fatal, const void* pc0, const void* pc1, const char* format,
             va_list arguments) {
  const std::lock_guard<std::mutex> lock(report_mutex);
  const uint64_t at0 = offset_of(launch, pc0), at1 = offset_of(launch, pc1);
  for (uint32_t i = 0; i < launch->n_faults && !is_fatal; ++i) {
    const Fault& known = launch->faults[i];
    if (known.kind == kind && known.pc[0] == at0 && known.pc[1] == at1) return;
  }
  if (launch->n_faults == kMaxFaults) {
    ++launch->faults_dropped;
    if (!is_fatal) return;
    --launch->n_faults;
  }
  Fault& fault = launch->faults[launch->n_faults++];
  fault.kind = kind;
  fault.fatal = is_fatal;
  fault.pc[0] = at0;
  fault.pc[1] = at1;
  vsnprintf(fault.text, sizeof fault.text, format, arguments);
}

void setup_fault(Launch* launch, FaultKind kind, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vreport(launch, kind, true, nullptr, nullptr, format, arguments);
  va_end(arguments);
}

bool set_constants(Launch* launch) {
  bool good = true;
  for (auto* entry = launch->module->constants; entry != launch->module->constants_end; ++entry) {
    emu_constant* c = *entry;
    c->is_set = false;
    for (uint32_t i = 0; i < launch->n_constants; ++i) {
      if (launch->constant_index[i] != c->index) continue;
      memcpy(c->value, &launch->constant_value[i], c->size);  // little endian
      c->is_set = true;
    }
    if (!c->is_set) {
      setup_fault(launch, kFaultConstant, "function constant %s (index %d) is read by the source but not set", c->name,
                  c->index);
      good = false;
    }
  }
  return good;
}

bool bind(Launch* launch) {
  const emu_kernel& kernel = *launch->kernel;
  bool good = true;
  for (uint32_t i = 0; i < kernel.n_params; ++i) {
    const emu_param& param = kernel.params[i];
    if (param.source != kEmuBuffer) continue;
    if (param.index < 0 || param.index >= int(kMaxBuffers)) {
      setup_fault(launch, kFaultSetup, "argument %s: buffer index %d is not in 0..%u", param.name, param.index,
                  kMaxBuffers - 1);
      good = false;
      continue;
    }
    Buffer& buffer = launch->buffers[param.index];
    if (param.gate != nullptr && !param.gate()) {
      // C++ takes references to be readable and may read an absent one early, without using what it read.
      launch->arguments[param.index] = kernel.types[i].is_pointer ? nullptr : absent_argument;
      continue;
    }
    if (!buffer.bound) {
      setup_fault(launch, kFaultUnbound, "argument %s: buffer %d is not bound%s%s", param.name, param.index,
                  param.gate_text ? " though it is present, by function constant " : "",
                  param.gate_text ? param.gate_text : "");
      good = false;
      continue;
    }
    if (!kernel.types[i].is_pointer && buffer.bytes - buffer.offset < kernel.types[i].size) {
      setup_fault(launch, kFaultOutOfBounds, "argument %s: buffer %d holds %llu bytes, its type needs %u", param.name,
                  param.index, static_cast<unsigned long long>(buffer.bytes - buffer.offset), kernel.types[i].size);
      good = false;
    }
    if (!kernel.types[i].is_const) buffer.writable = 1;
    launch->arguments[param.index] = static_cast<char*>(buffer.base) + buffer.offset;
  }
  return good;
}

bool check_group(Launch* launch) {
  const uint64_t threads = uint64_t(launch->group[0]) * launch->group[1] * launch->group[2];
  const uint64_t limit = launch->kernel->max_threads != 0 ? launch->kernel->max_threads : kMaxThreads;
  if (threads == 0 || threads > limit || threads > kMaxThreads) {
    setup_fault(launch, kFaultSetup, "threadgroup of %llu threads: 1 to %llu are allowed",
                static_cast<unsigned long long>(threads),
                static_cast<unsigned long long>(std::min<uint64_t>(limit, kMaxThreads)));
    return false;
  }
  return true;
}

void add(Counters& sum, const Counters& part) {
  const uint64_t most = std::max(sum.threadgroup_memory_bytes, part.threadgroup_memory_bytes);
  auto* to = reinterpret_cast<uint64_t*>(&sum);
  auto* from = reinterpret_cast<const uint64_t*>(&part);
  for (size_t i = 0; i < sizeof sum / sizeof *to; ++i) to[i] += from[i];
  sum.threadgroup_memory_bytes = most;
}

void work(Launch* launch, Worker* worker) {
#if !defined(EMU_ASAN)  // which reports crashes itself
  const CrashGuard guard(*worker);
#endif
  const uint64_t n_threadgroups = uint64_t(launch->grid[0]) * launch->grid[1] * launch->grid[2];
  while (!launch->stop.load(std::memory_order_relaxed)) {
    uint64_t next = launch->next_threadgroup.fetch_add(1, std::memory_order_relaxed);
    if (next >= n_threadgroups) return;
    if (launch->shuffled && (launch->seed & 1)) next = n_threadgroups - 1 - next;
    run_threadgroup(*worker, next);
  }
}

}  // namespace

bool is_absent_argument(uint64_t address) {
  return address - reinterpret_cast<uint64_t>(absent_argument) < sizeof absent_argument;
}

void fatal(Lane* lane, FaultKind kind, const void* pc0, const void* pc1, const char* format, ...) {
  Worker& worker = *worker_of(lane);
  va_list arguments;
  va_start(arguments, format);
  vreport(worker.launch, kind, true, pc0, pc1, format, arguments);
  va_end(arguments);
  worker.launch->stop.store(1);
  switch_lane(lane, &worker.main);  // its lanes are never continued
  abort();
}

void report(Launch* launch, FaultKind kind, const void* pc0, const void* pc1, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vreport(launch, kind, false, pc0, pc1, format, arguments);
  va_end(arguments);
}

}  // namespace emu

using namespace emu;

extern "C" {

uint64_t emu_launch_bytes() { return sizeof(Launch); }

const emu_kernel* emu_find_kernel(const emu_module* module, const char* name) {
  for (auto* kernel = module->kernels; kernel != module->kernels_end; ++kernel) {
    if (strcmp((*kernel)->name, name) == 0) return *kernel;
  }
  return nullptr;
}

int emu_run(Launch* launch) {
  Dl_info image;
  if (dladdr(launch->module, &image) != 0) launch->image_base = reinterpret_cast<uint64_t>(image.dli_fbase);
  if (!check_group(launch) || !set_constants(launch) || !bind(launch)) return 1;
  trace_begin_launch(launch);
  const uint32_t n_workers = std::max<uint32_t>(1, launch->threads);
  const uint32_t n_threads = launch->group[0] * launch->group[1] * launch->group[2];
  std::vector<std::unique_ptr<Worker>> workers;
  std::vector<std::thread> threads;
  for (uint32_t i = 0; i < n_workers; ++i) {
    workers.push_back(take_worker());
    workers[i]->launch = launch;
    workers[i]->main.worker = workers[i].get();
    workers[i]->counters = Counters{};
    trace_begin_worker(*workers[i]);
    ensure_stacks(*workers[i], n_threads);
  }
#if !defined(EMU_ASAN)
  catch_crashes();
#endif
  for (uint32_t i = 1; i < n_workers; ++i) threads.emplace_back(work, launch, workers[i].get());
  work(launch, workers[0].get());
  for (std::thread& thread : threads) thread
    .join();
  for (std::unique_ptr<Worker>& worker : workers) {
    add(launch->counters, worker->counters);
    give_back_worker(std::move(worker));
  }
  trace_end_launch(launch);
  return launch->stop.load() ? 1 : 0;
}

}  // extern "C"
