// Race detection on one granule of memory: who wrote it last, and two of its readers.
//
// Two accesses of different threads, one of them a write, are ordered only by a barrier between them that orders this
// memory: of the threadgroup (`epoch` differs), or of their common simdgroup (its own count, in Actor, differs).
#pragma once

#include <cstdint>

namespace emu {

/// A thread and its simdgroup's barrier count: 10 bits and 22 bits; 0 is nobody.
using Actor = uint32_t;

inline Actor make_actor(uint32_t thread, uint32_t simdgroup_epoch) { return (simdgroup_epoch + 1) << 10 | thread; }
inline uint32_t thread_of(Actor a) { return a & 1023; }
inline bool same_simdgroup(Actor a, Actor b) { return ((a ^ b) & 0x3e0) == 0; }
inline bool same_simdgroup_epoch(Actor a, Actor b) { return ((a ^ b) >> 10) == 0; }

/// Both within one epoch of one threadgroup.
inline bool unordered(Actor earlier, Actor later) {
  if (earlier == 0 || thread_of(earlier) == thread_of(later)) return false;
  return !same_simdgroup(earlier, later) || same_simdgroup_epoch(earlier, later);
}

/// State of one granule of threadgroup memory, all of it from `epoch` but for written_epoch.
struct alignas(32) Cell {
  uint32_t epoch;
  Actor write;
  Actor read[2];
  uint32_t write_pc;
  uint32_t read_pc[2];
  uint32_t written_epoch;  ///< of the last write; older than the threadgroup's first epoch: never in this threadgroup
};

/// Two readers are enough: either they are of two simdgroups, and then any write races with one of them, or all
/// readers are of one simdgroup, and then only those since its last barrier matter, of which two differ from a writer
/// in at least one.
inline void note_read(Cell& cell, Actor me, uint32_t pc) {
  if (cell.read[0] == me || cell.read[1] == me) return;
  if (cell.read[0] == 0) {
    cell.read[0] = me;
    cell.read_pc[0] = pc;
    return;
  }
  if (same_simdgroup(cell.read[0], me)) {
    if (cell.read[1] != 0 && !same_simdgroup(cell.read[0], cell.read[1])) return;
    if (!same_simdgroup_epoch(cell.read[0], me)) {
      cell.read[0] = me;
      cell.read_pc[0] = pc;
      cell.read[1] = 0;
      return;
    }
    if (cell.read[1] != 0) return;
  } else if (cell.read[1] != 0 && !same_simdgroup(cell.read[0], cell.read[1])) {
    return;
  }
  cell.read[1] = me;
  cell.read_pc[1] = pc;
}

/// A thread of the whole launch. Zero-initialised: nobody.
struct GlobalActor {
  uint32_t group;  ///< threadgroup + 1
  uint32_t epoch;  ///< of that threadgroup
  Actor actor;
  uint32_t pc;
};

/// State of one granule of device memory during one launch.
struct DeviceCell {
  GlobalActor write;
  GlobalActor read[2];
};

/// Nothing orders two threadgroups of a launch.
inline bool unordered(const GlobalActor& earlier, const GlobalActor& later) {
  if (earlier.group == 0) return false;
  if (earlier.group != later.group) return true;
  return earlier.epoch == later.epoch && unordered(earlier.actor, later.actor);
}

/// As above, with threadgroups in the place of simdgroups first.
inline void note_read(DeviceCell& cell, const GlobalActor& me) {
  GlobalActor& first = cell.read[0];
  GlobalActor& second = cell.read[1];
  if (second.group != 0 && second.group != first.group) return;
  if (first.group == 0 || (first.group == me.group && first.epoch != me.epoch)) {
    first = me;
    second = GlobalActor{};
    return;
  }
  if (first.group != me.group) {
    second = me;
    return;
  }
  if (first.actor == me.actor || second.actor == me.actor) return;
  if (same_simdgroup(first.actor, me.actor)) {
    if (second.group != 0 && !same_simdgroup(first.actor, second.actor)) return;
    if (!same_simdgroup_epoch(first.actor, me.actor)) {
      first = me;
      second = GlobalActor{};
      return;
    }
    if (second.group != 0) return;
  } else if (second.group != 0 && !same_simdgroup(first.actor, second.actor)) {
    return;
  }
  second = me;
}

}  // namespace emu
