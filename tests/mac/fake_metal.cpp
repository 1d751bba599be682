// A Mac's command encoder that writes down what it is asked for, so that encode_metal.cpp itself runs anywhere.
//
// Defines the few functions of libmlx and of the Objective-C run time that encode_metal.cpp calls; arrays and their
// memory are the real ones of this machine's mlx.
#include <Metal/Metal.hpp>
#include <cstring>
#include <map>

#include "../../runtime/src/bindings_plan.cpp"  // its readers of problems, operations and devices
#include "encode_metal.h"
#include "mlx/allocator.h"
#include "mlx/backend/metal/device.h"

namespace mx = mlx::core;

namespace {

// Python objects of the module: never destroyed, since the interpreter may be gone before it is.
py::list& calls = *new py::list();
std::map<const void*, py::object>& names = *new std::map<const void*, py::object>();  // memory -> tensor, temporary

std::vector<std::string> functions;  // of the metallib

template <class... Args>
void record(Args&&... args) {
  calls.append(py::make_tuple(std::forward<Args>(args)...));
}

py::object name_of(const mx::array& array) {
  const auto found = names.find(array.buffer().ptr());
  if (found == names.end()) throw std::logic_error("an array that nobody knows is bound");
  return found->second;
}

// Objects of Metal are addresses that only the functions below give a meaning.
int library_object, functions_object, encoder_object, pipeline_object;

void* message(void* self, const char* selector, uintptr_t first, uintptr_t second, uintptr_t third) {
  if (self == nullptr) return nullptr;
  const std::string_view name(selector);
  if (self == &library_object && name == "functionNames") return &functions_object;
  if (self == &functions_object && name == "count") return reinterpret_cast<void*>(functions.size());
  if (self == &functions_object && name == "objectAtIndex:") return &functions.at(first);
  if (name == "UTF8String") return static_cast<std::string*>(self)->data();
  if (self == &encoder_object && name == "setComputePipelineState:") return nullptr;
  if (self == &encoder_object && name == "setBytes:length:atIndex:") {
    record("set_params", third, py::bytes(reinterpret_cast<const char*>(first), second));
    return nullptr;
  }
  throw std::logic_error("unexpected message " + std::string(name));
}

}  // namespace

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
SEL s_krelease = reinterpret_cast<SEL>(const_cast<char*>("release"));
SEL s_kcount = reinterpret_cast<SEL>(const_cast<char*>("count"));
SEL s_kobjectAtIndex_ = reinterpret_cast<SEL>(const_cast<char*>("objectAtIndex:"));
SEL s_kUTF8String = reinterpret_cast<SEL>(const_cast<char*>("UTF8String"));
}  // namespace NS::Private::Selector
namespace MTL::Private::Selector {
SEL s_kfunctionNames = reinterpret_cast<SEL>(const_cast<char*>("functionNames"));
SEL s_ksetBytes_length_atIndex_ = reinterpret_cast<SEL>(const_cast<char*>("setBytes:length:atIndex:"));
SEL s_ksetComputePipelineState_ = reinterpret_cast<SEL>(const_cast<char*>("setComputePipelineState:"));
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
  record("bind_input", index, name_of(a));
  if (offset != 0) throw std::logic_error("an offset that no plan asks for");
}

void CommandEncoder::set_output_array(array& a, int index, int64_t offset) {
  record("bind_output", index, name_of(a));
  if (offset != 0) throw std::logic_error("an offset that no plan asks for");
}

void CommandEncoder::add_temporary(array a) {
  const size_t index = temporaries_.size();
  names[a.buffer().ptr()] = py::int_(index);
  record("allocate", index, a.nbytes());
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
  Device& d = device(mx::Device::gpu);
  encoder = std::make_unique<CommandEncoder>(d, 0, d.residency_sets());
  return *encoder;
}

}  // namespace mlx::core::metal

namespace flashrt {

/// Carries a plan out with a metallib of these functions. Returns the calls that it led to, and of every filled output
/// the bytes of the fill and the one after them.
py::tuple carry_out(const py::dict& problem, const py::dict& operation, const py::dict& device,
                    const std::vector<std::string>& of_library) {
  functions = of_library;
  calls = py::list();
  names.clear();
  const Plan plan = std::get<Plan>(plan_from(problem, operation, device));
  std::vector<mx::array> memory;
  CallArrays arrays;
  constexpr int kBytes = 1 << 20;  // more than any tensor of the tests
  memory.reserve(static_cast<size_t>(Tensor::temporary));
  for (int32_t i = 0; i < static_cast<int32_t>(Tensor::temporary); ++i) {
    const auto tensor = static_cast<Tensor>(i);
    mx::array& array = memory.emplace_back(mx::Shape{kBytes}, mx::uint8, nullptr, std::vector<mx::array>{});
    array.set_data(mx::allocator::malloc(array.nbytes()));
    std::memset(array.data<char>(), 0xAA, array.nbytes());
    names[array.buffer().ptr()] = py::str(std::string(to_string(tensor)));
    arrays.set(tensor, array);
  }
  encode_metal(plan, arrays, mx::Stream(0, mx::Device::gpu));
  py::dict filled;
  for (const Fill& fill : plan.fills) {
    const mx::array& array = *arrays.get(fill.tensor);
    filled[py::str(std::string(to_string(fill.tensor)))] =
        py::make_tuple(py::bytes(array.data<char>(), fill.bytes), array.data<uint8_t>()[fill.bytes]);
  }
  return py::make_tuple(calls, filled);
}

}  // namespace flashrt

PYBIND11_MODULE(fake_metal, m) {
  py::module_::import("mlx.core");  // loads libmlx
  m.def("carry_out", &flashrt::carry_out);
  m.def("device", [] { return flashrt::describe(flashrt::metal_device(mx::Device::gpu)); });
}
