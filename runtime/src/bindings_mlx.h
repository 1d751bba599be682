// mx.array across the language boundary. mlx's Python types belong to nanobind, this module to pybind11; nanobind's
// public interface converts between the two, with the state that mlx itself uses (NB_DOMAIN=mlx).
#pragma once

#include <nanobind/nanobind.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "mlx/mlx.h"

namespace flashrt {

/// Joins mlx's nanobind state. Throws ImportError, naming both sides' versions, where mlx is another release or its
/// nanobind does not know our arrays. First statement of the module.
void join_mlx(pybind11::module_& m);

}  // namespace flashrt

namespace pybind11::detail {

template <>
struct type_caster<mlx::core::array> {
  using Array = mlx::core::array;
  static constexpr auto name = const_name("mlx.core.array");
  template <typename T>
  using cast_op_type = pybind11::detail::cast_op_type<T>;

  operator Array*() { return pointer_; }
  operator Array&() { return *pointer_; }

  bool load(handle source, bool) {
    return source && nanobind::try_cast<Array*>(nanobind::handle(source.ptr()), pointer_, false) && pointer_ != nullptr;
  }
  static handle cast(const Array& a, return_value_policy, handle) {
    return nanobind::cast(a, nanobind::rv_policy::copy).release().ptr();
  }
  static handle cast(Array&& a, return_value_policy, handle) {
    return nanobind::cast(std::move(a), nanobind::rv_policy::move).release().ptr();
  }

 private:
  Array* pointer_ = nullptr;
};

}  // namespace pybind11::detail
