// What the plan needs to know about a GPU. Metal tells its architecture name, but neither its core count nor its
// cache sizes, so those come from a table.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "kernel_info.h"

namespace flashrt {

/// One row of the table: every Mac whose architecture has this generation and class.
struct DeviceClass {
  int32_t generation;  ///< 13: M1, 14: M2, 15: M3, 16: M4, 17: M5
  char size;           ///< 'p' phone, 'g' base and Pro, 's' Max, 'd' Ultra
  int32_t cores;       ///< of the class's largest chip: an idle core costs more than a split too many
  int32_t slc_mib;     ///< of the class's smallest chip: an overfull cache costs more than a group too small
};

struct Device {
  std::string architecture;  ///< as Metal names it, for instance "applegpu_g13s"
  int32_t generation = 0;
  int32_t cores = 8;
  int64_t slc_bytes = int64_t{8} << 20;
  bool known = false;  ///< false: not in the table, the smallest Mac is assumed

  /// Threadgroups of one launch, so that thread positions of the widest group (256) stay below 2^31.
  int64_t max_threadgroups = int64_t{1} << 23;
};

std::span<const DeviceClass> device_classes();

/// The device with this architecture name. A generation newer than the table is taken for its newest one.
Device device_of(std::string_view architecture);

/// Threadgroups of this kernel that one core holds at a time.
int64_t threadgroups_per_core(const KernelInfo& kernel);

}  // namespace flashrt
