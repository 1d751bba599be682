#include "encode_metal_sequence.h"

#include <algorithm>

namespace flashrt {

std::string specialised_name(const KernelInfo& kernel, std::span<const Constant> constants) {
  std::string name(kernel.name);
  if (constants.empty()) return name;
  name += "_fc_";
  for (const Constant& constant : constants) name += constant.value ? 't' : 'n';
  return name;
}

namespace {

void encode(const Launch& launch, CommandSink& sink) {
  sink.set_kernel(*launch.kernel, launch.constants, specialised_name(*launch.kernel, launch.constants));
  for (const Binding& binding : launch.bindings) {
    if (binding.write) {
      sink.bind_output(binding.slot, binding.buffer);
    } else {
      sink.bind_input(binding.slot, binding.buffer);
    }
  }
  sink.set_params(launch.params_slot, launch.params);
  sink.dispatch(launch.grid, launch.group);
}

}  // namespace

void encode(const Plan& plan, CommandSink& sink) {
  for (size_t i = 0; i < plan.temporaries.size(); ++i) sink.allocate(static_cast<int32_t>(i), plan.temporaries[i]);
  for (const Fill& fill : plan.fills) sink.fill(fill);

  auto launch = plan.launches.begin();
  while (launch != plan.launches.end()) {
    const auto stage_end = std::find_if(launch, plan.launches.end(),
                                        [stage = launch->stage](const Launch& other) { return other.stage != stage; });
    const bool concurrent = stage_end - launch > 1;
    if (concurrent) sink.begin_concurrent();
    for (; launch != stage_end; ++launch) encode(*launch, sink);
    if (concurrent) sink.end_concurrent();
  }
}

}  // namespace flashrt
