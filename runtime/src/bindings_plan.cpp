#include "bindings_plan.h"

#include <pybind11/stl.h>

#include <map>
#include <string>
#include <utility>

#include "encode_metal_sequence.h"

namespace py = pybind11;

namespace flashrt {
namespace {

/// Takes entries out of a dict; what is left over at the end is an error, so that a misspelt name is not ignored.
class Fields {
 public:
  Fields(std::string what, const py::dict& fields) : what_(std::move(what)), fields_(fields.attr("copy")()) {}

  template <class T>
  void take(const char* name, T& value) {
    if (!fields_.contains(name)) return;
    try {
      value = fields_.attr("pop")(name).cast<T>();
    } catch (const py::cast_error&) {
      throw py::type_error(what_ + "[" + name + "] has the wrong type");
    }
  }

  /// One of a few names.
  template <class E>
  void take(const char* name, E& value, const std::map<std::string, E>& choices) {
    std::string chosen;
    take(name, chosen);
    if (chosen.empty()) return;
    const auto found = choices.find(chosen);
    if (found == choices.end()) throw py::value_error(what_ + "[" + name + "] = '" + chosen + "' is unknown");
    value = found->second;
  }

  /// Three strides and, optionally, that of the last axis.
  void take_strides(const char* name, Strides3& strides, int64_t* last) {
    std::vector<int64_t> values;
    take(name, values);
    if (values.empty()) return;
    const size_t most = last == nullptr ? 3 : 4;
    if (values.size() != 3 && values.size() != most) {
      throw py::value_error(what_ + "[" + name + "] needs " + std::to_string(most) + " strides");
    }
    strides = {values[0], values[1], values[2]};
    if (values.size() == 4) *last = values[3];
  }

  void take_strides(const char* name, Strides4& strides) {
    std::array<int64_t, 4> values{strides.b, strides.h, strides.q, strides.k};
    take(name, values);
    strides = {values[0], values[1], values[2], values[3]};
  }

  void finish() const {
    if (!fields_.empty())
      throw py::value_error("unknown entries in " + what_ + ": " + py::str(fields_).cast<std::string>());
  }

 private:
  std::string what_;
  py::dict fields_;
};

Strides3 row_contiguous(int64_t heads, int64_t length, int64_t width) {
  return {heads * length * width, length * width, width};
}

Problem problem_from(const py::dict& dict, LastStrides& last) {
  Problem p;
  Fields fields("problem", dict);
  fields.take<Dtype>("dtype", p.dtype,
                     {{"float16", Dtype::float16}, {"bfloat16", Dtype::bfloat16}, {"float32", Dtype::float32}});
  for (const auto& [name, member] : std::initializer_list<std::pair<const char*, int64_t Problem::*>>{
           {"B", &Problem::B},
           {"H", &Problem::H},
           {"Hk", &Problem::Hk},
           {"qL", &Problem::qL},
           {"kL", &Problem::kL},
           {"D", &Problem::D},
           {"Dv", &Problem::Dv},
           {"window_left", &Problem::window_left},
           {"window_right", &Problem::window_right},
           {"alibi_b", &Problem::alibi_b},
           {"alibi_h", &Problem::alibi_h},
           {"q_segments_b", &Problem::q_segments_b},
           {"k_segments_b", &Problem::k_segments_b},
           {"row_diagonals_b", &Problem::row_diagonals_b}}) {
    fields.take(name, p.*member);
  }
  for (const auto& [name, member] : std::initializer_list<std::pair<const char*, bool Problem::*>>{
           {"causal", &Problem::causal},
           {"has_block_mask", &Problem::has_block_mask},
           {"has_segments", &Problem::has_segments},
           {"has_row_diagonals", &Problem::has_row_diagonals},
           {"has_sinks", &Problem::has_sinks},
           {"has_alibi", &Problem::has_alibi},
           {"has_dlse", &Problem::has_dlse}}) {
    fields.take(name, p.*member);
  }
  p.q_off = p.kL - p.qL;
  fields.take("q_off", p.q_off);
  fields.take("scale", p.scale);
  fields.take("softcap", p.softcap);
  fields.take<MaskKind>("mask_kind", p.mask_kind,
                        {{"none", MaskKind::none},
                         {"boolean", MaskKind::boolean},
                         {"in_dtype", MaskKind::in_dtype},
                         {"in_f32", MaskKind::in_f32}});
  p.q = p.d_q = row_contiguous(p.H, p.qL, p.D);
  p.k = p.d_k = row_contiguous(p.Hk, p.kL, p.D);
  p.v = p.d_v = row_contiguous(p.Hk, p.kL, p.Dv);
  p.o = p.d_o = row_contiguous(p.H, p.qL, p.Dv);
  fields.take_strides("q", p.q, &last.q);
  fields.take_strides("k", p.k, &last.k);
  fields.take_strides("v", p.v, &last.v);
  fields.take_strides("o", p.o, &last.o);
  fields.take_strides("d_o", p.d_o, &last.d_o);
  fields.take_strides("d_q", p.d_q, nullptr);
  fields.take_strides("d_k", p.d_k, nullptr);
  fields.take_strides("d_v", p.d_v, nullptr);
  fields.take_strides("mask", p.mask);
  fields.take_strides("block_mask", p.block_mask);
  fields.finish();
  return p;
}

Operation operation_from(const py::dict& dict, const LastStrides& last) {
  Operation operation;
  operation.last = last;
  Fields fields("operation", dict);
  fields.take<OperationKind>("kind", operation.kind,
                             {{"forward", OperationKind::forward}, {"backward", OperationKind::backward}});
  fields.take("d_q", operation.d_q);
  fields.take("d_k", operation.d_k);
  fields.take("d_v", operation.d_v);
  fields.take("d_mask", operation.d_mask);
  fields.take_strides("d_mask_strides", operation.d_mask_strides);
  fields.take("fwd_kernel", operation.fwd_kernel);
  fields.take("dq_kernel", operation.dq_kernel);
  fields.take("dkv_kernel", operation.dkv_kernel);
  fields.take("n_splits", operation.n_splits);
  fields.finish();
  return operation;
}

Device device_from(const py::dict& dict) {
  std::string architecture;
  Fields fields("device", dict);
  fields.take("architecture", architecture);
  Device device = device_of(architecture);
  fields.take("cores", device.cores);
  fields.take("slc_bytes", device.slc_bytes);
  fields.take("max_threadgroups", device.max_threadgroups);
  fields.finish();
  return device;
}

py::object describe(const Buffer& buffer) {
  if (buffer.tensor == Tensor::temporary) return py::int_(buffer.temporary);
  return py::str(std::string(to_string(buffer.tensor)));
}

py::tuple describe(const Extent& extent) { return py::make_tuple(extent[0], extent[1], extent[2]); }

py::dict describe(const KernelInfo& kernel) {
  py::dict d;
  d["name"] = kernel.name;
  d["kind"] = to_string(kernel.kind);
  d["dtype"] = to_string(kernel.dtype);
  d["d"] = kernel.d;
  d["dv"] = kernel.dv;
  d["bq"] = kernel.bq;
  d["bk"] = kernel.bk;
  d["wm"] = kernel.wm;
  d["wn"] = kernel.wn;
  d["split"] = to_string(kernel.split);
  d["rank"] = kernel.rank;
  d["threads"] = kernel.threads;
  d["threadgroup_bytes"] = kernel.threadgroup_bytes;
  d["live_bytes"] = kernel.live_bytes;
  return d;
}

py::bytes as_bytes(std::span<const std::byte> bytes) {
  return py::bytes(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

py::dict describe(const Launch& launch) {
  py::dict constants;
  for (const Constant& constant : launch.constants) constants[py::int_(constant.index)] = constant.value;
  py::list on;
  for (const Constant& constant : launch.constants)
    if (constant.value) on.append(constant.name);
  py::list bindings;
  for (const Binding& binding : launch.bindings) {
    bindings.append(py::make_tuple(binding.slot, describe(binding.buffer), binding.write ? "write" : "read"));
  }
  py::dict d;
  d["kernel"] = launch.kernel->name;
  d["constants"] = constants;
  d["constants_on"] = on;
  d["bindings"] = bindings;
  d["params_slot"] = launch.params_slot;
  d["params"] = as_bytes(launch.params);
  d["grid"] = describe(launch.grid);
  d["group"] = describe(launch.group);
  d["stage"] = launch.stage;
  return d;
}

/// Writes down what an encoder is asked to do.
class Recorder : public CommandSink {
 public:
  void allocate(int32_t index, const Temporary& temporary) override { record("allocate", index, temporary.bytes); }
  void fill(const Fill& fill) override { record("fill", to_string(fill.tensor), to_string(fill.value), fill.bytes); }
  void begin_concurrent() override { record("begin_concurrent"); }
  void end_concurrent() override { record("end_concurrent"); }
  void set_kernel(const KernelInfo& kernel, std::span<const Constant> constants,
                  const std::string& specialised_name) override {
    std::map<int32_t, bool> values;
    for (const Constant& constant : constants) values[constant.index] = constant.value;
    record("set_kernel", kernel.name, values, specialised_name);
  }
  void bind_input(int32_t slot, const Buffer& buffer) override { record("bind_input", slot, describe(buffer)); }
  void bind_output(int32_t slot, const Buffer& buffer) override { record("bind_output", slot, describe(buffer)); }
  void set_params(int32_t slot, std::span<const std::byte> params) override {
    record("set_params", slot, as_bytes(params));
  }
  void dispatch(const Extent& grid, const Extent& group) override {
    record("dispatch", describe(grid), describe(group));
  }

  py::list calls;

 private:
  template <class... Args>
  void record(Args&&... args) {
    calls.append(py::make_tuple(std::forward<Args>(args)...));
  }
};

std::variant<Plan, Unsupported> plan_from(const py::dict& problem, const py::dict& operation, const py::dict& device) {
  LastStrides last;
  const Problem p = problem_from(problem, last);
  return plan(p, operation_from(operation, last), device_from(device));
}

py::dict describe(const Unsupported& unsupported) {
  py::dict d;
  d["unsupported"] = to_string(unsupported.reason);
  d["detail"] = unsupported.detail;
  return d;
}

}  // namespace

py::dict describe(const Plan& plan) {
  py::dict d;
  py::list temporaries, fills, launches;
  for (const Temporary& t : plan.temporaries) temporaries.append(py::make_tuple(t.name, t.bytes));
  for (const Fill& f : plan.fills) fills.append(py::make_tuple(to_string(f.tensor), to_string(f.value), f.bytes));
  for (const Launch& l : plan.launches) launches.append(describe(l));
  d["temporaries"] = temporaries;
  d["temporary_bytes"] = plan.temporary_bytes();
  d["fills"] = fills;
  d["launches"] = launches;
  return d;
}

py::dict describe(const Device& device) {
  py::dict d;
  d["architecture"] = device.architecture;
  d["generation"] = device.generation;
  d["cores"] = device.cores;
  d["slc_bytes"] = device.slc_bytes;
  d["known"] = device.known;
  d["max_threadgroups"] = device.max_threadgroups;
  return d;
}

void bind_plan(py::module_& module) {
  module.def(
      "plan",
      [](const py::dict& problem, const py::dict& operation, const py::dict& device) {
        return std::visit([](const auto& result) { return describe(result); }, plan_from(problem, operation, device));
      },
      py::arg("problem"), py::arg("operation") = py::dict(), py::arg("device") = py::dict(),
      "Launches for a problem, as plain data: {'temporaries', 'temporary_bytes', 'fills', 'launches'}, or\n"
      "{'unsupported', 'detail'} where no kernels fit. The entries of problem, operation and device are the members\n"
      "of the C++ structs of the same names; strides that are not given are row-contiguous.");
  module.def(
      "plan_calls",
      [](const py::dict& problem, const py::dict& operation, const py::dict& device) {
        const auto result = plan_from(problem, operation, device);
        if (const auto* unsupported = std::get_if<Unsupported>(&result)) throw py::value_error(unsupported->detail);
        Recorder recorder;
        encode(std::get<Plan>(result), recorder);
        return recorder.calls;
      },
      py::arg("problem"), py::arg("operation") = py::dict(), py::arg("device") = py::dict(),
      "The calls that a GPU command encoder gets for this plan, as tuples (name, arguments...).");
  module.def(
      "kernels",
      [] {
        py::list rows;
        for (const KernelInfo& kernel : kernels()) rows.append(describe(kernel));
        return rows;
      },
      "Every generated kernel, one dict per row of the registry.");
  module.def(
      "device", [](const std::string& architecture) { return describe(device_of(architecture)); },
      py::arg("architecture"), "What the plan assumes of the GPU that Metal calls by this name.");
  module.def(
      "device_classes",
      [] {
        py::list rows;
        for (const DeviceClass& c : device_classes()) {
          rows.append(py::make_tuple(c.generation, std::string(1, c.size), c.cores, c.slc_mib));
        }
        return rows;
      },
      "The device table: (generation, size class, cores, system level cache in MiB).");
}

}  // namespace flashrt
