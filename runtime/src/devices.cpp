#include "devices.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <iterator>

namespace flashrt {
namespace {

// Core counts are Apple's published ones. System level cache sizes are public measurements of M1 and M2; nothing is
// published for later generations, which are taken to have at least as much. Phones share generations with Macs.
constexpr DeviceClass kDeviceClasses[] = {
    {13, 'p', 4, 8}, {13, 'g', 16, 8}, {13, 's', 32, 24}, {13, 'd', 64, 96},  // M1 8, Pro 16, Max 32, Ultra 64
    {14, 'p', 5, 8}, {14, 'g', 19, 8}, {14, 's', 38, 24}, {14, 'd', 76, 96},  // M2 10, Pro 19, Max 38, Ultra 76
    {15, 'p', 6, 8}, {15, 'g', 18, 8}, {15, 's', 40, 24}, {15, 'd', 80, 96},  // M3 10, Pro 18, Max 40, Ultra 80
    {16, 'p', 6, 8}, {16, 'g', 20, 8}, {16, 's', 40, 24}, {16, 'd', 80, 96},  // M4 10, Pro 20, Max 40
    {17, 'p', 6, 8}, {17, 'g', 20, 8}, {17, 's', 40, 24}, {17, 'd', 80, 96},  // M5 10, Pro 20, Max 40
};

constexpr std::string_view kPrefix = "applegpu_g";

// Per core, public measurements: about 60 KB of threadgroup memory, and a register file that holds 192 KiB of live
// values, handed out to 128 threads at a time and to at most 3072.
constexpr int64_t kThreadgroupBytesPerCore = 61440;
constexpr int64_t kRegisterBytesPerCore = 196608;
constexpr int64_t kMaxThreadsPerCore = 3072;
constexpr int64_t kThreadGranule = 128;

}  // namespace

std::span<const DeviceClass> device_classes() { return kDeviceClasses; }

Device device_of(std::string_view architecture) {
  Device device{.architecture = std::string(architecture)};
  if (!architecture.starts_with(kPrefix)) return device;
  const std::string_view rest = architecture.substr(kPrefix.size());
  int32_t generation = 0;
  const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), generation);
  if (error != std::errc{} || rest.data() + rest.size() - end != 1) return device;

  const int32_t newest = std::prev(std::end(kDeviceClasses))->generation;
  const auto row = std::ranges::find_if(kDeviceClasses, [&](const DeviceClass& c) {
    return c.generation == std::min(generation, newest) && c.size == *end;
  });
  if (row == std::end(kDeviceClasses)) return device;
  device.generation = generation;
  device.cores = row->cores;
  device.slc_bytes = int64_t{row->slc_mib} << 20;
  device.known = true;
  return device;
}

int64_t threadgroups_per_core(const KernelInfo& kernel) {
  const int64_t granules = kRegisterBytesPerCore / (std::max(kernel.live_bytes, 1) * kThreadGranule);
  const int64_t threads = std::min(kMaxThreadsPerCore, granules * kThreadGranule);
  const int64_t by_memory = kThreadgroupBytesPerCore / std::max(kernel.threadgroup_bytes, 1);
  return std::max<int64_t>(1, std::min(by_memory, threads / kernel.threads));
}

}  // namespace flashrt
