// Rendezvous of a simdgroup's lanes. The last arriver computes for all and runs on; the others find their results.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "machine.h"

#define EMU_CALLER __builtin_return_address(0)

namespace emu {
namespace {

const char* name_of(uint32_t operation) {
  switch (operation) {
    case kOpMma:
      return "simdgroup matrix multiply";
    case kOpShuffle:
      return "simd shuffle";
    case kOpReduce:
      return "simd reduction";
    case kOpSimdgroupBarrier:
      return "simdgroup_barrier";
    case kOpThreadgroupBarrier:
      return "threadgroup_barrier";
    default:
      return "nothing";
  }
}

/// The rare part of an arrival: someone is at another place, or was missing before.
__attribute__((noinline)) void check_arrival(Lane* lane, Simdgroup& group, uint32_t operation, uint32_t detail,
                                             void* pc) {
  if (group.finished != 0) {
    fatal(lane, kFaultMissingLanes, pc, nullptr, "%u lanes of simdgroup %u have ended before the %s at $0",
          group.finished, group.index, name_of(operation));
  }
  if (group.operation != operation || group.detail != detail) {
    fatal(lane, kFaultDivergence, group.pc, pc,
          "lanes of simdgroup %u are at different collectives: %s at $0 and %s at $1 (thread %u)", group.index,
          name_of(group.operation), name_of(operation), lane->thread);
  }
  if (group.idle_barriers != lane->idle_barriers) {
    fatal(lane, kFaultDivergence, group.pc, nullptr,
          "lanes of simdgroup %u have passed different numbers of simdgroup barriers (%u and %u) when they meet at $0",
          group.index, group.idle_barriers, lane->idle_barriers);
  }
  if (group.pc != pc) {  // the compiler may have copied one statement: lines decide, later
    report(worker_of(lane)->launch, kFaultSameStatement, group.pc, pc,
           "lanes of simdgroup %u are at different statements: %s at $0 and at $1", group.index, name_of(operation));
  }
}

/// True for the last arriver, which has to compute and call release(); false after everything is done.
inline bool arrive(Lane* lane, Simdgroup& group, uint32_t operation, uint32_t detail, void* pc) {
  if (group.arrived == 0) {
    group.operation = operation;
    group.detail = detail;
    group.pc = pc;
    group.idle_barriers = lane->idle_barriers;
    if (group.finished != 0) check_arrival(lane, group, operation, detail, pc);
  } else if (group.pc != pc || group.operation != operation || group.detail != detail ||
             group.idle_barriers != lane->idle_barriers) {
    check_arrival(lane, group, operation, detail, pc);
  }
  lane->idle_barriers = 0;
  if (++group.arrived == group.size) return true;
  switch_lane(lane, lane->next);
  return false;
}

inline void release(Simdgroup& group) {
  group.arrived = 0;
  ++group.round;
}

/// d = a * b + c in f32, k ascending.
void multiply_accumulate(const float* a, const float* b, const float* c, float* d) {
  for (int row = 0; row < 8; ++row) {
    float sum[8];
    for (int col = 0; col < 8; ++col) sum[col] = c[row * 8 + col];
    for (int k = 0; k < 8; ++k) {
      const float factor = a[row * 8 + k];
      for (int col = 0; col < 8; ++col) sum[col] = __builtin_fmaf(factor, b[k * 8 + col], sum[col]);
    }
    for (int col = 0; col < 8; ++col) d[row * 8 + col] = sum[col];
  }
}

inline emu_pair multiply_accumulate(emu_pair a, emu_pair b, emu_pair c, bool row_major, void* pc) {
  Lane* lane = self();
  Simdgroup& group = *lane->simdgroup;
  const uint32_t at = row_major ? lane->fragment_row_major : lane->fragment;
  memcpy(group.a + at, &a, sizeof a);
  memcpy(group.b + at, &b, sizeof b);
  memcpy(group.c + at, &c, sizeof c);
  if (arrive(lane, group, kOpMma, row_major, pc)) {
    if (group.size != kSimdWidth) {
      fatal(lane, kFaultMissingLanes, pc, nullptr, "simdgroup matrix multiply at $0 by a simdgroup of %u lanes",
            group.size);
    }
    multiply_accumulate(group.a, group.b, group.c, group.d);
    ++worker_of(lane)->counters.mma;
    release(group);
  }
  emu_pair d;
  memcpy(&d, group.d + at, sizeof d);
  return d;
}

template <class T>
T combine(emu_reduction what, T x, T y) {
  switch (what) {
    case kEmuProduct:
      return T(x * y);
    case kEmuMin:
      return y < x || x != x ? y : x;
    case kEmuMax:
      return y > x || x != x ? y : x;
    case kEmuSum:
    case kEmuInclusiveSum:
      return T(x + y);
    default:
      break;
  }
  if constexpr (std::is_integral_v<T>) return T(what == kEmuAnd ? (x & y) : (x | y));
  return x;
}

template <class T>
void reduce(emu_reduction what, const uint64_t* in, uint64_t* out, uint32_t n) {
  T values[kSimdWidth];
  for (uint32_t i = 0; i < n; ++i) memcpy(&values[i], &in[i], sizeof(T));
  if (what == kEmuInclusiveSum) {
    for (uint32_t i = 1; i < n; ++i) values[i] = T(values[i] + values[i - 1]);
  } else {  // a tree, as hardware would; every lane gets the same bits
    for (uint32_t step = 1; step < n; step *= 2) {
      for (uint32_t i = 0; i + step < n; i += 2 * step) values[i] = combine(what, values[i], values[i + step]);
    }
    for (uint32_t i = 1; i < n; ++i) values[i] = values[0];
  }
  for (uint32_t i = 0; i < n; ++i) {
    out[i] = 0;
    memcpy(&out[i], &values[i], sizeof(T));
  }
}

void reduce(emu_reduction what, emu_type type, const uint64_t* in, uint64_t* out, uint32_t n) {
  switch (type) {
    case kEmuF32:
      return reduce<float>(what, in, out, n);
    case kEmuF16:
      return reduce<_Float16>(what, in, out, n);
    case kEmuI32:
      return reduce<int32_t>(what, in, out, n);
    case kEmuU32:
      return reduce<uint32_t>(what, in, out, n);
    case kEmuI64:
      return reduce<int64_t>(what, in, out, n);
    case kEmuU64:
      return reduce<uint64_t>(what, in, out, n);
  }
}

/// A whole simdgroup has come to a threadgroup barrier; `lane` speaks for it.
void arrive_at_threadgroup_barrier(Lane* lane, Simdgroup& group, uint32_t memory, void* pc) {
  Threadgroup& tg = *group.threadgroup;
  if (tg.finished != 0) {
    fatal(lane, kFaultMissingLanes, pc, nullptr, "%u simdgroups have ended before the threadgroup barrier at $0",
          tg.finished);
  }
  if (tg.arrived == 0) {
    tg.pc = pc;
    tg.memory = memory;
    tg.first_simdgroup = group.index;
  } else {
    if (tg.memory != memory) {
      fatal(lane, kFaultDivergence, tg.pc, pc,
            "simdgroups %u and %u are at threadgroup barriers of different memory flags, $0 and $1", tg.first_simdgroup,
            group.index);
    }
    if (tg.pc != pc) {
      report(tg.worker->launch, kFaultSameStatement, tg.pc, pc,
             "simdgroups %u and %u are at different threadgroup barriers, $0 and $1", tg.first_simdgroup, group.index);
    }
  }
  if (++tg.arrived < tg.n_simdgroups) {
    group.blocked = true;
    group.resume = lane;
    leave_simdgroup(lane);
    return;
  }
  tg.arrived = 0;
  if (memory & kEmuMemoryThreadgroup) ++tg.worker->epoch;
  if (memory & kEmuMemoryDevice) ++tg.device_epoch;
  for (uint32_t i = 0; i < tg.n_simdgroups; ++i) tg.worker->simdgroups[i].blocked = false;
}

}  // namespace
}  // namespace emu

using namespace emu;

extern "C" {

emu_pair emu_multiply_accumulate(emu_pair a, emu_pair b, emu_pair c) {
  return multiply_accumulate(a, b, c, false, EMU_CALLER);
}

emu_pair emu_multiply_accumulate_row_major(emu_pair a, emu_pair b, emu_pair c) {
  return multiply_accumulate(a, b, c, true, EMU_CALLER);
}

emu_u64 emu_shuffle(emu_shuffle_kind kind, emu_u64 bits, emu_u32 by) {
  Lane* lane = self();
  Simdgroup& group = *lane->simdgroup;
  const uint64_t* slots = group.slots[group.round & 1];
  group.slots[group.round & 1][lane->index] = bits;
  if (arrive(lane, group, kOpShuffle, kind, EMU_CALLER)) {
    ++worker_of(lane)->counters.shuffles;
    release(group);
  }
  uint32_t from = by;
  if (kind == kEmuXor) from = lane->index ^ by;
  if (kind == kEmuUp) from = lane->index < by ? lane->index : lane->index - by;
  if (kind == kEmuDown) from = lane->index + by >= group.size ? lane->index : lane->index + by;
  if (from >= group.size) {
    fatal(lane, kFaultOutOfBounds, EMU_CALLER, nullptr, "simd shuffle at $0: thread %u reads lane %u of %u",
          lane->thread, from, group.size);
  }
  return slots[from];
}

emu_u64 emu_reduce(emu_reduction what, emu_type type, emu_u64 bits) {
  Lane* lane = self();
  Simdgroup& group = *lane->simdgroup;
  uint64_t* slots = group.slots[group.round & 1];
  slots[lane->index] = bits;
  if (arrive(lane, group, kOpReduce, what * 16 + type, EMU_CALLER)) {
    reduce(what, type, slots, group.results, group.size);
    ++worker_of(lane)->counters.reductions;
    release(group);
  }
  return group.results[lane->index];
}

void emu_barrier(emu_barrier_scope scope, emu_u32 memory) {
  Lane* lane = self();
  Simdgroup& group = *lane->simdgroup;
  if (scope == kEmuSimdgroupScope) {
    if (memory == kEmuMemoryNone) {  // nothing to wait for; the next collective compares the counts
      ++lane->idle_barriers;
      if (lane->index == 0) ++worker_of(lane)->counters.simdgroup_barriers;
      return;
    }
    if (arrive(lane, group, kOpSimdgroupBarrier, memory, EMU_CALLER)) {
      if (memory & kEmuMemoryThreadgroup) ++group.epoch;
      if (memory & kEmuMemoryDevice) ++group.device_epoch;
      ++worker_of(lane)->counters.simdgroup_barriers;
      release(group);
    }
    return;
  }
  if (arrive(lane, group, kOpThreadgroupBarrier, memory, EMU_CALLER)) {
    ++worker_of(lane)->counters.threadgroup_barriers;
    release(group);
    arrive_at_threadgroup_barrier(lane, group, memory, EMU_CALLER);
  }
}

emu_u32 emu_lane_index() { return self()->index; }

float emu_exp2(float x) {
  ++worker_of(self())->counters.exp2;
  return exp2f(x);
}

}  // extern "C"
