// Plans, kernels and devices as plain Python data, for explain() and the tests.
#pragma once

#include <pybind11/pybind11.h>

#include "plan.h"

namespace flashrt {

/// Adds plan(), plan_calls(), kernels(), device() and device_classes() to the module.
void bind_plan(pybind11::module_& module);

/// {"temporaries", "fills", "launches", "temporary_bytes"}.
pybind11::dict describe(const Plan& plan);

/// {"architecture", "generation", "cores", "slc_bytes", "known", "max_threadgroups"}.
pybind11::dict describe(const Device& device);

}  // namespace flashrt
