#include "encode_metal.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "encode_metal_sequence.h"
#include "mlx/allocator.h"
#include "mlx/backend/metal/device.h"

namespace flashrt {
namespace {

namespace mx = mlx::core;
using mlx::core::metal::CommandEncoder;

constexpr const char* kLibraryName = "flashrt";
constexpr const char* kLibraryFile = "flashrt.metallib";
// The build gives the metallib a function whose name carries a digest of the ABI and of the registry, and gives the
// same digest to this file: what was built apart does not run together.
#ifndef FLASHRT_KERNELS_TAG
#error "FLASHRT_KERNELS_TAG must be the tag that runtime/metal/stamp.metal is compiled with"
#endif
#define FLASHRT_TEXT(x) #x
#define FLASHRT_STAMP(tag) FLASHRT_TEXT(flashrt_kernels_##tag)
#define FLASHRT_STAMP_OF(tag) FLASHRT_STAMP(tag)
constexpr const char* kStamp = FLASHRT_STAMP_OF(FLASHRT_KERNELS_TAG);

constexpr const char* kDirectoryVariable = "FLASHRT_METALLIB_DIR";

// Scratch arrays are shaped in rows of this many floats: one axis would pass 2^31 elements first.
constexpr int64_t kScratchRow = 1024;

std::filesystem::path module_directory() {
  Dl_info info;
  if (dladdr(reinterpret_cast<const void*>(&module_directory), &info) == 0 || info.dli_fname == nullptr) {
    throw MetallibError("flashrt cannot tell where its own module was loaded from");
  }
  return std::filesystem::path(info.dli_fname).parent_path();
}

std::string how_to_fix() {
  return std::string("reinstall flashrt, or set ") + kDirectoryVariable + " to the directory of a " + kLibraryFile +
         " that was built together with this module";
}

/// Whether the metallib was built from this module's registry and ABI.
void check_library(MTL::Library& library, const std::filesystem::path& path) {
  std::unordered_set<std::string> names;
  const NS::Array* functions = library.functionNames();
  for (NS::UInteger i = 0; i < functions->count(); ++i) {
    names.insert(functions->object<NS::String>(i)->utf8String());
  }
  const auto require = [&](std::string_view name, const char* why) {
    if (names.contains(std::string(name))) return;
    throw MetallibError(path.string() + " " + why + ": it has no function " + std::string(name) + "; " + how_to_fix());
  };
  require(kStamp, "was built for another version of flashrt");
  for (const KernelInfo& kernel : kernels()) require(kernel.name, "was built from other kernels than this module");
}

MTL::Library* kernel_library(mx::metal::Device& device) {
  static std::mutex mutex;
  static MTL::Library* library = nullptr;
  const std::lock_guard lock(mutex);
  if (library == nullptr) {
    const std::filesystem::path path = metallib_path();
    if (!std::filesystem::exists(path)) {
      throw MetallibError("flashrt's Metal kernels are missing: " + path.string() + " does not exist; " + how_to_fix());
    }
    MTL::Library* loaded = device.get_library(kLibraryName, path.string());
    check_library(*loaded, path);
    library = loaded;
  }
  return library;
}

class MetalSink : public CommandSink {
 public:
  MetalSink(mx::metal::Device& device, CommandEncoder& encoder, MTL::Library* library, const CallArrays& arrays)
      : device_(device), encoder_(encoder), library_(library), arrays_(arrays) {}

  void allocate(int32_t, const Temporary& temporary) override {
    const int64_t rows = (temporary.bytes + kScratchRow * 4 - 1) / (kScratchRow * 4);
    mx::array scratch({static_cast<int>(rows), static_cast<int>(kScratchRow)}, mx::float32, nullptr, {});
    scratch.set_data(mx::allocator::malloc(scratch.nbytes()));
    encoder_.add_temporary(scratch);
    temporaries_.push_back(std::move(scratch));
  }

  void fill(const Fill& fill) override {
    // Outputs are fresh memory that CPU and GPU share: nothing on the GPU uses it yet.
    mx::array output = array_of(fill.tensor);
    if (fill.value == FillValue::zero) {
      std::memset(output.data<char>(), 0, fill.bytes);
    } else {
      std::fill_n(output.data<float>(), fill.bytes / sizeof(float), -std::numeric_limits<float>::infinity());
    }
  }

  void begin_concurrent() override { concurrent_.emplace(encoder_); }
  void end_concurrent() override { concurrent_.reset(); }

  void set_kernel(const KernelInfo& kernel, std::span<const Constant> constants,
                  const std::string& specialised_name) override {
    mx::metal::MTLFCList values;
    for (const Constant& constant : constants) {
      values.emplace_back(&constant.value, MTL::DataType::DataTypeBool, constant.index);
    }
    encoder_.set_compute_pipeline_state(
        device_.get_kernel(std::string(kernel.name), library_, specialised_name, values));
  }

  void bind_input(int32_t slot, const Buffer& buffer) override { encoder_.set_input_array(array_of(buffer), slot); }

  void bind_output(int32_t slot, const Buffer& buffer) override {
    mx::array output = array_of(buffer);
    encoder_.set_output_array(output, slot);
  }

  void set_params(int32_t slot, std::span<const std::byte> params) override {
    encoder_.set_bytes(params.data(), static_cast<int>(params.size()), slot);
  }

  void dispatch(const Extent& grid, const Extent& group) override {
    encoder_.dispatch_threadgroups(size_of(grid), size_of(group));
  }

 private:
  static MTL::Size size_of(const Extent& extent) { return MTL::Size(extent[0], extent[1], extent[2]); }

  const mx::array& array_of(Tensor tensor) const {
    const mx::array* array = arrays_.get(tensor);
    if (array == nullptr) throw std::logic_error("the plan reads " + std::string(to_string(tensor)) + ", not given");
    return *array;
  }

  const mx::array& array_of(const Buffer& buffer) const {
    return buffer.tensor == Tensor::temporary ? temporaries_.at(buffer.temporary) : array_of(buffer.tensor);
  }

  mx::metal::Device& device_;
  CommandEncoder& encoder_;
  MTL::Library* library_;
  const CallArrays& arrays_;
  std::vector<mx::array> temporaries_;
  std::optional<CommandEncoder::ConcurrentContext> concurrent_;
};

}  // namespace

Device metal_device(mx::Device device) { return device_of(mx::metal::device(device).get_architecture()); }

std::filesystem::path metallib_path() {
  const char* directory = std::getenv(kDirectoryVariable);
  if (directory == nullptr) return module_directory() / kLibraryFile;
  if (!std::filesystem::is_directory(directory)) {
    throw MetallibError(std::string(kDirectoryVariable) + "='" + directory + "' is not a directory");
  }
  return std::filesystem::path(directory) / kLibraryFile;
}

void encode_metal(const Plan& plan, const CallArrays& arrays, const mx::Stream& stream) {
  mx::metal::Device& device = mx::metal::device(stream.device);
  CommandEncoder& encoder = mx::metal::get_command_encoder(stream);
  MetalSink sink(device, encoder, kernel_library(device), arrays);
  encode(plan, sink);
}

}  // namespace flashrt
