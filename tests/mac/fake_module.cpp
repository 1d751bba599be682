// The GPU route as a Python module: plans through the encoder, and the primitives' eval_gpu on numpy arrays.
#include <pybind11/numpy.h>

#include <cstring>
#include <map>

#include "../../runtime/src/bindings_plan.cpp"  // its readers of problems, operations and devices
#include "attention.h"
#include "encode_metal.h"
#include "fake_metal.h"
#include "mlx/allocator.h"

namespace flashrt {

// The CPU route is not part of this module.
void Attention::eval_cpu(const Arrays&, Arrays&) { throw std::logic_error("not here"); }
void AttentionBackward::eval_cpu(const Arrays&, Arrays&) { throw std::logic_error("not here"); }

namespace {

const mx::Stream kStream(0, mx::Device::gpu);

Arrays& outputs = *new Arrays();  // of the last call
Arrays& inputs = *new Arrays();

const std::map<std::string, mx::Dtype> kDtypes = {
    {"float16", mx::float16}, {"bfloat16", mx::bfloat16}, {"float32", mx::float32},
    {"int32", mx::int32},     {"uint8", mx::uint8},       {"bool", mx::bool_},
};

/// Carries a plan out. Returns its calls, the tensors by address, and of every filled output the bytes of the fill and
/// the one after them.
py::tuple carry_out(const py::dict& problem, const py::dict& operation, const py::dict& device,
                    const std::vector<std::string>& functions) {
  fake::start(functions);
  const Plan plan = std::get<Plan>(plan_from(problem, operation, device));
  constexpr int kBytes = 1 << 20;  // more than any output of the tests
  CallArrays arrays;
  py::dict names;
  outputs.clear();
  outputs.reserve(static_cast<size_t>(Tensor::temporary));
  for (int32_t i = 0; i < static_cast<int32_t>(Tensor::temporary); ++i) {
    const auto tensor = static_cast<Tensor>(i);
    mx::array& array = outputs.emplace_back(mx::Shape{kBytes}, mx::uint8, nullptr, Arrays{});
    array.set_data(mx::allocator::malloc(array.nbytes()));
    std::memset(array.data<char>(), 0xAA, array.nbytes());
    names[py::int_(reinterpret_cast<uintptr_t>(array.data<char>()))] = to_string(tensor);
    arrays.set(tensor, array);
  }
  encode_metal(plan, arrays, kStream);
  py::dict filled;
  for (const Fill& fill : plan.fills) {
    const mx::array& array = *arrays.get(fill.tensor);
    filled[py::str(std::string(to_string(fill.tensor)))] =
        py::make_tuple(py::bytes(array.data<char>(), fill.bytes), array.data<uint8_t>()[fill.bytes]);
  }
  return py::make_tuple(fake::calls(), names, filled);
}

/// An array with the memory and strides of a numpy one: from its lowest byte to its highest, gaps included.
mx::array array_from(const py::array& from, const std::string& dtype) {
  const int64_t item = from.itemsize();
  int64_t lowest = 0, highest = item;
  mx::Shape shape;
  mx::Strides strides;
  for (int axis = 0; axis < from.ndim(); ++axis) {
    const int64_t reach = (from.shape(axis) - 1) * from.strides(axis);
    (reach < 0 ? lowest : highest) += reach;
    shape.push_back(static_cast<int>(from.shape(axis)));
    strides.push_back(from.strides(axis) / item);
  }
  mx::array a(shape, kDtypes.at(dtype), nullptr, Arrays{});
  const size_t bytes = a.size() == 0 ? 0 : highest - lowest;
  a.set_data(mx::allocator::malloc(bytes), bytes / item, strides, mx::array::Flags{}, -lowest);
  if (bytes > 0) std::memcpy(a.data<char>() + lowest, static_cast<const char*>(from.data()) + lowest, bytes);
  return a;
}

py::array numpy_from(const mx::array& a) {
  const std::string kind = a.dtype() == mx::float16 ? "float16" : a.dtype() == mx::bfloat16 ? "uint16" : "float32";
  std::vector<int64_t> shape(a.shape().begin(), a.shape().end());
  std::vector<int64_t> strides(a.strides().begin(), a.strides().end());
  for (int64_t& stride : strides) stride *= static_cast<int64_t>(a.itemsize());
  return py::array(py::dtype(kind), shape, strides, a.data<char>());
}

Options options_from(const py::dict& dict) {
  Options options;
  Fields fields("options", dict);
  fields.take("scale", options.scale);
  fields.take("softcap", options.softcap);
  fields.take("causal", options.causal);
  fields.take("window_left", options.window_left);
  fields.take("window_right", options.window_right);
  fields.take("lse_is_used", options.lse_is_used);
  fields.finish();
  return options;
}

using Typed = std::pair<py::array, std::string>;

/// eval_gpu of Attention, or of AttentionBackward where gradients are wanted. `extras` say which of the inputs after
/// q, k, v are given. Returns the calls; read_outputs() has what their execution leaves behind.
py::list eval_gpu(const std::vector<Typed>& given, const std::vector<int>& extras, const py::dict& options,
                  const std::vector<bool>& wanted, const std::vector<std::string>& functions) {
  fake::start(functions);
  inputs.clear();
  outputs.clear();
  for (const auto& [array, dtype] : given) inputs.push_back(array_from(array, dtype));
  Layout layout;
  for (int extra : extras) layout.add(static_cast<Extra>(extra));
  const auto allocate_later = [](const mx::Shape& shape, mx::Dtype dtype) {
    outputs.emplace_back(shape, dtype, nullptr, Arrays{});
  };
  if (wanted.empty()) {
    Attention primitive(kStream, options_from(options), layout);
    const auto shapes = primitive.output_shapes(inputs);
    allocate_later(shapes[0], inputs[0].dtype());
    allocate_later(shapes[1], mx::float32);
    primitive.eval_gpu(inputs, outputs);
  } else {
    const Wanted flags = {wanted[0], wanted[1], wanted[2], wanted[3]};
    AttentionBackward primitive(kStream, options_from(options), layout, flags);
    const auto shapes = primitive.output_shapes(inputs);
    for (int i = 0, next = 0; i < kGrads; ++i) {
      const auto grad = static_cast<Grad>(i);
      if (!flags[i]) continue;
      const mx::array& operand = inputs[AttentionBackward::operand(layout, grad)];
      allocate_later(shapes[next++], AttentionBackward::gradient_dtype(operand, grad));
    }
    primitive.eval_gpu(inputs, outputs);
  }
  return fake::calls();
}

std::vector<py::array> read_outputs() {
  std::vector<py::array> arrays;
  for (const mx::array& output : outputs) arrays.push_back(numpy_from(output));
  return arrays;
}

}  // namespace

}  // namespace flashrt

PYBIND11_MODULE(fake_metal, m) {
  py::module_::import("mlx.core");  // loads libmlx
  m.def("carry_out", &flashrt::carry_out);
  m.def("eval_gpu", &flashrt::eval_gpu);
  m.def("read_outputs", &flashrt::read_outputs);
  m.def("device", [] { return flashrt::describe(flashrt::metal_device(flashrt::mx::Device::gpu)); });
}
