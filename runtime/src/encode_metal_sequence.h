// The order of calls that carries a plan out, without Metal: the encoder of a Mac and the recorder of the tests are
// two sinks of the same sequence.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "plan.h"

namespace flashrt {

/// What carrying out a plan asks of a GPU command encoder.
class CommandSink {
 public:
  virtual ~CommandSink() = default;

  /// Makes Plan::temporaries[index] and keeps it until the GPU is done with it.
  virtual void allocate(int32_t index, const Temporary& temporary) = 0;
  /// Sets a whole output, which no launch of this plan writes.
  virtual void fill(const Fill& fill) = 0;
  /// Launches between these two do not depend on each other and need no barrier between them.
  virtual void begin_concurrent() = 0;
  virtual void end_concurrent() = 0;
  /// `specialised_name` is another for every other set of constants.
  virtual void set_kernel(const KernelInfo& kernel, std::span<const Constant> constants,
                          const std::string& specialised_name) = 0;
  virtual void bind_input(int32_t slot, const Buffer& buffer) = 0;
  virtual void bind_output(int32_t slot, const Buffer& buffer) = 0;
  virtual void set_params(int32_t slot, std::span<const std::byte> params) = 0;
  virtual void dispatch(const Extent& grid, const Extent& group) = 0;
};

/// Carries the plan out on the sink.
void encode(const Plan& plan, CommandSink& sink);

/// The kernel's name with every constant's value in it, the key of a pipeline cache.
std::string specialised_name(const KernelInfo& kernel, std::span<const Constant> constants);

}  // namespace flashrt
