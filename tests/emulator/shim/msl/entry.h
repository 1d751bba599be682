// Binds kernels, their arguments and function constants to launches. The builder writes the macros' uses.
#pragma once

#include "simdgroup_matrix.h"

#define EMU_UNTRACED __attribute__((no_sanitize("thread", "address")))

namespace emu {

/// A function constant. Only constants that instantiated code converts to their value are listed, as only those have to
/// be set when Metal builds a pipeline. Nothing here runs at load time: the linker gathers the list.
template <class T, class Tag>
struct FunctionConstant {
  EMU_INLINE operator T() const {
    (void)&listed;
    return value;
  }
  static inline T value{};
  static inline emu_constant entry{Tag::name(), Tag::index, sizeof(T), &value, false};
  __attribute__((used, section("emu_constants"))) static inline emu_constant* const listed = &entry;
};

template <emu_source Source, int Index>
struct Argument {};

template <class A>
struct Fetch {  // scalars and vectors of positions
  template <emu_source Source, int Index>
  EMU_UNTRACED static A get(const emu_thread& t) {
    emu_u32 v[3] = {0, 0, 0};
    const emu_u32 in_group[3] = {t.thread % t.threads[0], t.thread / t.threads[0] % t.threads[1],
                                 t.thread / t.threads[0] / t.threads[1]};
    for (int i = 0; i < 3; ++i) {
      switch (Source) {
        case kEmuThreadPositionInGrid:
          v[i] = t.threadgroup[i] * t.threads[i] + in_group[i];
          break;
        case kEmuThreadPositionInThreadgroup:
          v[i] = in_group[i];
          break;
        case kEmuThreadgroupPositionInGrid:
          v[i] = t.threadgroup[i];
          break;
        case kEmuThreadgroupsPerGrid:
          v[i] = t.threadgroups[i];
          break;
        case kEmuThreadsPerGrid:
          v[i] = t.threadgroups[i] * t.threads[i];
          break;
        case kEmuThreadsPerThreadgroup:
          v[i] = t.threads[i];
          break;
        default:
          break;
      }
    }
    const emu_u32 threads = t.threads[0] * t.threads[1] * t.threads[2];
    if (Source == kEmuThreadIndexInThreadgroup) v[0] = t.thread;
    if (Source == kEmuThreadIndexInSimdgroup) v[0] = t.thread % 32;
    if (Source == kEmuSimdgroupIndexInThreadgroup) v[0] = t.thread / 32;
    if (Source == kEmuSimdgroupsPerThreadgroup) v[0] = (threads + 31) / 32;
    if (Source == kEmuThreadsPerSimdgroup) v[0] = 32;
    return make(v, static_cast<A*>(nullptr));
  }
  template <class T>
  EMU_INLINE static T make(const emu_u32* v, T*) {
    return T(v[0]);
  }
  template <class T>
  EMU_INLINE static metal::vec<T, 2> make(const emu_u32* v, metal::vec<T, 2>*) {
    return {T(v[0]), T(v[1])};
  }
  template <class T>
  EMU_INLINE static metal::vec<T, 3> make(const emu_u32* v, metal::vec<T, 3>*) {
    return {T(v[0]), T(v[1]), T(v[2])};
  }
  static constexpr emu_param_type type{false, true, 0};
};
template <class T>
struct Fetch<T*> {
  template <emu_source Source, int Index>
  EMU_UNTRACED static T* get(const emu_thread& t) {
    static_assert(Source == kEmuBuffer, "pointers are buffers");
    return static_cast<T*>(t.buffers[Index]);
  }
  static constexpr emu_param_type type{true, std::is_const_v<T>, sizeof(T)};
};
template <class T>
struct Fetch<T&> {
  template <emu_source Source, int Index>
  EMU_UNTRACED static T& get(const emu_thread& t) {
    static_assert(Source == kEmuBuffer, "references are buffers");
    return *static_cast<T*>(t.buffers[Index]);
  }
  static constexpr emu_param_type type{false, std::is_const_v<T>, sizeof(T)};
};

template <class A, emu_source Source, int Index>
EMU_INLINE A fetch(const emu_thread& t, Argument<Source, Index>) {
  return Fetch<std::remove_cv_t<A>>::template get<Source, Index>(t);
}

template <class Signature>
struct Entry;
template <class... A>
struct Entry<void (*)(A...)> {
  template <void (*Function)(A...), class... Arguments>
  EMU_UNTRACED static void invoke(const emu_thread* t) {
    Function(fetch<A>(*t, Arguments{})...);
  }
  // One more, so that a kernel without arguments has an array too.
  static constexpr emu_param_type types[] = {Fetch<std::remove_cv_t<A>>::type..., {false, true, 0}};
};

template <class T>
constexpr size_t element_size() {
  return sizeof(std::remove_all_extents_t<T>);
}

}  // namespace emu

#define EMU_FUNCTION_CONSTANT(type, id, number)         \
  struct emu_constant_tag_##id {                        \
    static constexpr const char* name() { return #id; } \
    static constexpr int index = (number);              \
  };                                                    \
  static const ::emu::FunctionConstant<type, emu_constant_tag_##id> id;

// Closes a kernel library.
#define EMU_MODULE                                                                                  \
  extern "C" {                                                                                      \
  extern const emu_kernel* const __start_emu_kernels[] __attribute__((weak, visibility("hidden"))); \
  extern const emu_kernel* const __stop_emu_kernels[] __attribute__((weak, visibility("hidden")));  \
  extern emu_constant* const __start_emu_constants[] __attribute__((weak, visibility("hidden")));   \
  extern emu_constant* const __stop_emu_constants[] __attribute__((weak, visibility("hidden")));    \
  extern const emu_module emu_module_info;                                                          \
  __attribute__((visibility("default"))) const emu_module emu_module_info = {                       \
      __start_emu_kernels, __stop_emu_kernels, __start_emu_constants, __stop_emu_constants};        \
  }
