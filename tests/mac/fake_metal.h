// A Mac's command encoder that writes down what it is asked for, so that the GPU route itself runs anywhere.
#pragma once

#include <pybind11/pybind11.h>

#include <string>
#include <vector>

namespace fake {

/// Forgets all calls, and has a metallib with these functions from now on.
void start(const std::vector<std::string>& functions);

/// The calls since then, as tuples (name, arguments...). An array is (address, bytes, offset of its first element).
pybind11::list calls();

}  // namespace fake
