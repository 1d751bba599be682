// The module flashrt._C. Python checks arguments and routes; what comes in here is well formed.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdlib>
#include <string_view>

#if defined(__APPLE__)
#include <crt_externs.h>  // a dylib has no `environ` there
#else
#include <unistd.h>
#endif

#include "attention.h"
#include "attention_problem.h"
#include "bindings_mlx.h"
#include "bindings_plan.h"
#include "cpu/attention.h"
#include "plan_routes.h"

namespace py = pybind11;

namespace flashrt {

namespace {

using MaybeArray = std::optional<mx::array>;

void raise_unsupported(const std::string& message) {
  py::object type = py::module_::import("flashrt._errors").attr("UnsupportedError");
  PyErr_SetString(type.ptr(), message.c_str());
}

/// Both binding libraries translate: an error leaves through mlx's functions (mx.grad) or through ours.
void bind_errors() {
  py::register_exception_translator([](std::exception_ptr p) {
    try {
      std::rethrow_exception(p);
    } catch (const UnsupportedError& e) {
      raise_unsupported(e.what());
    }
  });
  nanobind::register_exception_translator([](const std::exception_ptr& p, void*) {
    try {
      std::rethrow_exception(p);
    } catch (const UnsupportedError& e) {
      raise_unsupported(e.what());
    }
  });
}

char** all_variables() {
#if defined(__APPLE__)
  return *_NSGetEnviron();
#else
  return environ;
#endif
}

/// What Python has in os.environ for these bytes.
py::object decoded(const std::string& bytes) {
  auto text = py::reinterpret_steal<py::object>(
      PyUnicode_DecodeFSDefaultAndSize(bytes.data(), static_cast<Py_ssize_t>(bytes.size())));
  if (!text) throw py::error_already_set();
  return text;
}

/// The process's environment as C sees it: os.environ writes through, and this costs next to nothing per call. Last
/// come the names with the prefix that are set, each with a line end.
py::list environment(const std::vector<std::string>& names, const std::string& prefix) {
  py::list values;
  for (const auto& name : names) {
    const char* value = std::getenv(name.c_str());
    values.append(value == nullptr ? py::object(py::none()) : decoded(value));
  }
  std::string set;
  for (char** entry = all_variables(); entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view line(*entry);
    if (line.substr(0, prefix.size()) == prefix) set.append(line.substr(0, line.find('='))).append("\n");
  }
  values.append(decoded(set));
  return values;
}

/// Binds a function of operands and options, and of what else it takes, under the argument list that all share.
template <typename Result, typename... Last>
void bind_call(py::module_& m, const char* name,
               Result (*function)(const Operands&, const Options&, mx::Stream, Last...), const char* doc,
               const std::conditional_t<true, py::arg, Last>&... last_names) {
  m.def(
      name,
      [function](const mx::array& q, const mx::array& k, const mx::array& v, MaybeArray mask, MaybeArray sinks,
                 MaybeArray alibi_slopes, MaybeArray block_mask, MaybeArray q_segments, MaybeArray k_segments,
                 MaybeArray row_diagonals, float scale, float softcap, bool causal, int window_left, int window_right,
                 bool lse_is_used, Last... last) {
        // In the order of enum Extra.
        Operands operands{q,
                          k,
                          v,
                          {std::move(mask), std::move(sinks), std::move(alibi_slopes), std::move(block_mask),
                           std::move(q_segments), std::move(k_segments), std::move(row_diagonals)}};
        Options options{scale, softcap, causal, window_left, window_right, lse_is_used};
        return function(operands, options, mx::to_stream({}), last...);
      },
      py::arg("q"), py::arg("k"), py::arg("v"), py::arg("mask") = py::none(), py::arg("sinks") = py::none(),
      py::arg("alibi_slopes") = py::none(), py::arg("block_mask") = py::none(), py::arg("q_segments") = py::none(),
      py::arg("k_segments") = py::none(), py::arg("row_diagonals") = py::none(), py::arg("scale"),
      py::arg("softcap") = 0.0f, py::arg("causal") = false, py::arg("window_left") = -1, py::arg("window_right") = -1,
      py::arg("lse_is_used") = true, last_names..., doc);
}

/// What the CPU kernels do with a call.
py::dict explain_cpu(const Operands& operands, const Options& options, mx::Stream stream) {
  auto [inputs, layout] = flatten(operands, stream);
  const auto problem = problem_of(inputs, options, layout);
  const int threads = cpu::available_threads();
  py::dict d;
  d["isa"] = cpu::best_isa();
  d["threads"] = threads;
  d["forward_scratch_bytes"] = cpu::scratch_bytes(problem, cpu::Pass::forward, threads);
  d["backward_scratch_bytes"] = cpu::scratch_bytes(problem, cpu::Pass::backward, threads);
  return d;
}

/// The launches of forward and backward on the GPU with this architecture name.
py::dict explain_metal(const Operands& operands, const Options& options, mx::Stream stream, std::string architecture) {
  auto [inputs, layout] = flatten(operands, stream);
  const auto device = device_of(architecture);
  auto problem = problem_of(inputs, options, layout);
  problem.o = problem.d_o = {problem.qL * problem.H * problem.Dv, problem.Dv, problem.H * problem.Dv};
  problem.d_q = problem.q;
  problem.d_k = problem.k;
  problem.d_v = problem.v;
  problem.has_dlse = options.lse_is_used;
  py::dict d;
  d["device"] = describe(device);
  for (auto [name, kind] :
       {std::pair{"forward", OperationKind::forward}, std::pair{"backward", OperationKind::backward}}) {
    Operation operation;
    operation.kind = kind;
    auto result = plan(problem, operation, device);
    if (auto* no_plan = std::get_if<Unsupported>(&result)) {
      d["unsupported"] = no_plan->detail;
    } else {
      d[name] = describe(std::get<Plan>(result));
    }
  }
  return d;
}

py::list route_rows() {
  py::list rows;
  for (const RouteInfo& r : routes()) {
    py::dict d;
    d["gpu"] = r.gpu;
    d["d"] = r.d;
    d["dv"] = r.dv;
    d["dtype"] = r.dtype;
    d["mask"] = r.mask;
    d["min_l"] = r.min_l;
    d["max_l"] = r.max_l;
    d["mlx_tile"] = r.mlx_tile;
    d["score_bytes"] = r.score_bytes;
    rows.append(d);
  }
  return rows;
}

}  // namespace

}  // namespace flashrt

PYBIND11_MODULE(_C, m) {
  flashrt::join_mlx(m);
  m.doc() = "Attention as MLX primitives; use it through flashrt.attention.";
  flashrt::bind_errors();
  flashrt::bind_plan(m);
  m.def("routes", &flashrt::route_rows,
        "Where own kernels are preferred to mx.fast, one dict per row of the registry.");
  m.def("environment", &flashrt::environment, py::arg("names"), py::arg("prefix"),
        "Values of environment variables, None where unset; then the names that begin with the prefix, a line each.");
  m.def(
      "prefer_isa", [](std::optional<std::string> isa) { flashrt::cpu::prefer_isa(isa ? isa->c_str() : nullptr); },
      py::arg("isa"), "Instruction set of the CPU kernels in this process; None for the best. For benchmarks.");
  flashrt::bind_call(m, "attention", flashrt::attention, "(O, LSE in the log2 domain) as one primitive.");
  flashrt::bind_call(m, "attention_in_ranges", flashrt::attention_in_ranges,
                     "The same as primitives over so many ranges of queries.", py::arg("ranges"));
  flashrt::bind_call(m, "composed", flashrt::composed, "(O, natural-log LSE) from MLX's own operations.");
  flashrt::bind_call(m, "explain_cpu", flashrt::explain_cpu,
                     "Instruction set, threads and scratch of the CPU kernels.");
  flashrt::bind_call(m, "explain_metal", flashrt::explain_metal, "Launches on the GPU that Metal calls by this name.",
                     py::arg("architecture"));
}
