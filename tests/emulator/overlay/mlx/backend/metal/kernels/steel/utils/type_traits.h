// Without address spaces one specialisation serves every pointer.
#pragma once

#include <metal_stdlib>

namespace metal {

template <class T>
using pointer_element_t = std::remove_cv_t<std::remove_pointer_t<T>>;

}  // namespace metal
