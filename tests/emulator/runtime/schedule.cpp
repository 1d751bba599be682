// Which lane runs next: within a simdgroup the ring of unfinished lanes, between simdgroups whoever is not blocked.
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <utility>

#include "machine.h"

namespace emu {
namespace {

uint64_t next_random(uint64_t& state) {  // splitmix64
  uint64_t z = (state += 0x9e3779b97f4a7c15u);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

void shuffle(Worker& worker, uint32_t* items, uint32_t n) {
  for (uint32_t i = n; i > 1; --i) std::swap(items[i - 1], items[next_random(worker.random) % i]);
}

void set_up_simdgroup(Worker& worker, Simdgroup& group, uint32_t index, uint32_t n_threads) {
  const uint32_t first = index * kSimdWidth;
  const uint32_t size = n_threads - first < kSimdWidth ? n_threads - first : kSimdWidth;
  uint32_t order[kSimdWidth];
  std::iota(order, order + size, 0);
  if (worker.launch->shuffled) shuffle(worker, order, size);
  group.arrived = group.finished = group.round = 0;
  group.idle_barriers = 0;
  group.epoch = group.device_epoch = 0;
  group.blocked = false;
  group.size = size;
  group.index = index;
  group.threadgroup = &worker.threadgroup;
  for (uint32_t i = 0; i < size; ++i) {
    const uint64_t region = worker.stacks + (first + i) * kStackBytes;
    Lane* lane = lane_of_region(region);
    lane->simdgroup = &group;
    lane->worker = &worker;
    lane->index = i;
    lane->thread = first + i;
    lane->fragment = (((i >> 4) << 2) | ((i >> 1) & 3)) * 8 + ((((i >> 3) & 1) << 2) | ((i & 1) << 1));
    lane->fragment_row_major = 2 * i;
    lane->idle_barriers = 0;
    prepare_lane(lane, region);
    group.lanes[i] = lane;
  }
  for (uint32_t i = 0; i < size; ++i) {
    Lane* lane = group.lanes[order[i]];
    lane->next = group.lanes[order[(i + 1) % size]];
    lane->next->previous = lane;
  }
  group.resume = group.lanes[order[0]];
}

}  // namespace

void run_threadgroup(Worker& worker, uint64_t linear) {
  Launch& launch = *worker.launch;
  Threadgroup& tg = worker.threadgroup;
  const uint32_t n_threads = launch.group[0] * launch.group[1] * launch.group[2];
  tg.worker = &worker;
  tg.linear = linear;
  tg.position[0] = linear % launch.grid[0];
  tg.position[1] = linear / launch.grid[0] % launch.grid[1];
  tg.position[2] = linear / launch.grid[0] / launch.grid[1];
  tg.n_simdgroups = (n_threads + kSimdWidth - 1) / kSimdWidth;
  tg.arrived = tg.finished = 0;
  tg.device_epoch = 0;
  ++worker.epoch;
  tg.arena_used = tg.array_bytes = 0;
  tg.n_arrays = 0;
  tg.thread.buffers = launch.arguments;
  for (int i = 0; i < 3; ++i) {
    tg.thread.threadgroup[i] = tg.position[i];
    tg.thread.threadgroups[i] = launch.grid[i];
    tg.thread.threads[i] = launch.group[i];
  }
  if (worker.simdgroups.size() < tg.n_simdgroups) worker.simdgroups.resize(tg.n_simdgroups);
  worker.order.resize(tg.n_simdgroups);
  std::iota(worker.order.begin(), worker.order.end(), 0);
  worker.random = launch.seed + linear * 0x2545f4914f6cdd1du;
  if (launch.shuffled) shuffle(worker, worker.order.data(), tg.n_simdgroups);
  for (uint32_t i = 0; i < tg.n_simdgroups; ++i) set_up_simdgroup(worker, worker.simdgroups[i], i, n_threads);
  trace_begin_threadgroup(worker);
  switch_lane(&worker.main, worker.simdgroups[worker.order[0]].resume);
  if (tg.array_bytes > worker.counters.threadgroup_memory_bytes) {
    worker.counters.threadgroup_memory_bytes = tg.array_bytes;
  }
}

void leave_simdgroup(Lane* lane) {
  Worker& worker = *worker_of(lane);
  for (uint32_t i : worker.order) {
    Simdgroup& group = worker.simdgroups[i];
    if (!group.blocked && group.finished < group.size) {
      switch_lane(lane, group.resume);
      return;
    }
  }
  switch_lane(lane, &worker.main);
}

void finish_lane(Lane* lane) {
  Simdgroup& group = *lane->simdgroup;
  Threadgroup& tg = *group.threadgroup;
  if (group.arrived != 0) {
    fatal(lane, kFaultMissingLanes, group.pc, nullptr, "thread %u has ended while %u lanes of its simdgroup wait at $0",
          lane->thread, group.arrived);
  }
  ++group.finished;
  if (group.finished < group.size) {
    lane->previous->next = lane->next;
    lane->next->previous = lane->previous;
    switch_lane(lane, lane->next);
    abort();
  }
  if (tg.arrived != 0) {
    fatal(lane, kFaultMissingLanes, tg.pc, nullptr,
          "simdgroup %u has ended while %u others wait at the threadgroup barrier at $0", group.index, tg.arrived);
  }
  ++tg.finished;
  leave_simdgroup(lane);
  abort();
}

}  // namespace emu
