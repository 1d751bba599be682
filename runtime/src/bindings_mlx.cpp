#include "bindings_mlx.h"

#include <string>

#include "mlx/version.h"

#define FLASHRT_TEXT_OF(x) #x
#define FLASHRT_TEXT(x) FLASHRT_TEXT_OF(x)

namespace flashrt {

namespace {

namespace nb = nanobind;
namespace py = pybind11;

const std::string kBuiltFor =
    "mlx " FLASHRT_TEXT(MLX_VERSION_MAJOR) "." FLASHRT_TEXT(MLX_VERSION_MINOR) "." FLASHRT_TEXT(MLX_VERSION_PATCH);
const std::string kNanobind =
    "nanobind " FLASHRT_TEXT(NB_VERSION_MAJOR) "." FLASHRT_TEXT(NB_VERSION_MINOR) "." FLASHRT_TEXT(NB_VERSION_PATCH);

}  // namespace

void join_mlx(py::module_& m) {
  py::module_ core = py::module_::import("mlx.core");
  const std::string found = std::string("mlx ") + mlx::core::version();
  if (found != kBuiltFor) {
    throw py::import_error("flashrt was built for " + kBuiltFor + " and found " + found +
                           "; install the flashrt-mlx release for it, or rebuild flashrt against it");
  }
  if (!nb::register_module(nb::handle(m.ptr()))) throw py::error_already_set();
  nb::handle type = nb::type<mlx::core::array>();
  if (!type.is_valid() || type.ptr() != core.attr("array").ptr()) {
    throw py::import_error(
        "flashrt was built with " + kNanobind + " for " + kBuiltFor + ", and the installed " + found +
        " was built with another nanobind, so its arrays cannot be read; rebuild flashrt against it");
  }
}

}  // namespace flashrt
