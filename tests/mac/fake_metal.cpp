// Defines the few functions of libmlx and of the Objective-C run time that encode_metal.cpp calls; arrays and their
// memory are the real ones of this machine's mlx.
#include "fake_metal.h"

#include <pybind11/stl.h>

#include <Metal/Metal.hpp>
#include <map>
#include <memory>
#include <stdexcept>

#include "mlx/allocator.h"
#include "mlx/backend/metal/device.h"

namespace py = pybind11;

namespace {

py::list& recorded = *new py::list();  // never destroyed: the interpreter may be gone before it is
std::vector<std::string> library_functions;

template <class... Args>
void record(Args&&... args) {
  recorded.append(py::make_tuple(std::forward<Args>(args)...));
}

py::tuple memory_of(mlx::core::array a) {
  if (a.buffer().ptr() == nullptr) throw std::logic_error("an array without memory is bound");
  return py::make_tuple(reinterpret_cast<uintptr_t>(a.buffer().raw_ptr()), a.data_size() * a.itemsize(), a.offset());
}

// Objects of Metal are addresses that only the functions below give a meaning.
int library_object, functions_object, encoder_object, pipeline_object;

void* message(void* self, const std::string& name, uintptr_t first, uintptr_t second, uintptr_t third) {
  if (self == nullptr) return nullptr;
  if (self == &library_object && name == "functionNames") return &functions_object;
  if (self == &functions_object && name == "count") return reinterpret_cast<void*>(library_functions.size());
  if (self == &functions_object && name == "objectAtIndex:") return &library_functions.at(first);
  if (name == "UTF8String") return static_cast<std::string*>(self)->data();
  if (self == &encoder_object && name == "setComputePipelineState:") return nullptr;
  if (self == &encoder_object && name == "setBytes:length:atIndex:") {
    record("set_params", third, py::bytes(reinterpret_cast<const char*>(first), second));
    return nullptr;
  }
  throw std::logic_error("unexpected message " + name);
}

SEL selector(const char* name) { return reinterpret_cast<SEL>(const_cast<char*>(name)); }

}  // namespace

namespace fake {

void start(const std::vector<std::string>& functions) {
  recorded = py::list();
  library_functions = functions;
}

py::list calls() { return recorded; }

}  // namespace fake

extern "C" {
// metal-cpp casts it to the type of each message; integers and pointers arrive alike.
void objc_msgSend() __attribute__((alias("fake_message")));
void objc_msgSend_stret() __attribute__((alias("fake_message")));
void objc_msgSend_fpret() __attribute__((alias("fake_message")));
void* fake_message(void* self, SEL selector, uintptr_t first, uintptr_t second, uintptr_t third) {
  return message(self, reinterpret_cast<const char*>(selector), first, second, third);
}
}

// Only these messages can be sent.
namespace NS::Private::Selector {
SEL s_krelease = selector("release");
SEL s_kcount = selector("count");
SEL s_kobjectAtIndex_ = selector("objectAtIndex:");
SEL s_kUTF8String = selector("UTF8String");
}  // namespace NS::Private::Selector
namespace MTL::Private::Selector {
SEL s_kfunctionNames = selector("functionNames");
SEL s_ksetBytes_length_atIndex_ = selector("setBytes:length:atIndex:");
SEL s_ksetComputePipelineState_ = selector("setComputePipelineState:");
}  // namespace MTL::Private::Selector

namespace mlx::core::metal {

ResidencySets::ResidencySets(MTL::Device*) {}
ResidencySets::~ResidencySets() = default;
Device::Device() : residency_sets_(nullptr), arch_("applegpu_g15s") {}
Device::~Device() = default;

MTL::Library* Device::get_library(const std::string& name, const std::string& path) {
  record("get_library", name, path);
  return reinterpret_cast<MTL::Library*>(&library_object);
}

MTL::ComputePipelineState* Device::get_kernel(const std::string& base_name, MTL::Library* library,
                                              const std::string& hash_name, const MTLFCList& constants,
                                              const std::vector<MTL::Function*>&) {
  if (library != reinterpret_cast<MTL::Library*>(&library_object)) throw std::logic_error("another library");
  std::map<NS::UInteger, bool> values;
  for (const auto& [value, type, index] : constants) {
    if (type != MTL::DataTypeBool) throw std::logic_error("a constant that is no bool");
    values[index] = *static_cast<const bool*>(value);
  }
  record("set_kernel", base_name, values, hash_name);
  return reinterpret_cast<MTL::ComputePipelineState*>(&pipeline_object);
}

CommandEncoder::CommandEncoder(Device& device, int, ResidencySets& sets) : device_(device), residency_sets_(sets) {}
CommandEncoder::~CommandEncoder() = default;

MTL::ComputeCommandEncoder* CommandEncoder::get_command_encoder() {
  return reinterpret_cast<MTL::ComputeCommandEncoder*>(&encoder_object);
}

void CommandEncoder::set_input_array(const array& a, int index, int64_t offset) {
  if (offset != 0) throw std::logic_error("an offset that no plan asks for");
  record("bind_input", index, memory_of(a));
}

void CommandEncoder::set_output_array(array& a, int index, int64_t offset) {
  if (offset != 0) throw std::logic_error("an offset that no plan asks for");
  record("bind_output", index, memory_of(a));
}

void CommandEncoder::add_temporary(array a) {
  record("allocate", temporaries_.size(), memory_of(a));
  temporaries_.push_back(std::move(a));  // keeps the memory, as the real one does until the GPU is done
}

void CommandEncoder::dispatch_threadgroups(MTL::Size grid, MTL::Size group) {
  record("dispatch", py::make_tuple(grid.width, grid.height, grid.depth),
         py::make_tuple(group.width, group.height, group.depth), concurrent_);
}

Device& device(mlx::core::Device) {
  static Device the_device;
  return the_device;
}

CommandEncoder& get_command_encoder(Stream) {
  static std::unique_ptr<CommandEncoder> encoder;
  Device& d = device(mlx::core::Device::gpu);
  encoder = std::make_unique<CommandEncoder>(d, 0, d.residency_sets());
  return *encoder;
}

}  // namespace mlx::core::metal
