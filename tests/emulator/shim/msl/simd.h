// Collectives of a simdgroup and barriers.
#pragma once

#include "math.h"

namespace metal {

enum class mem_flags { mem_none = 0, mem_device = 1, mem_threadgroup = 2, mem_texture = 4 };
constexpr mem_flags operator|(mem_flags x, mem_flags y) { return mem_flags(int(x) | int(y)); }

}  // namespace metal

namespace emu {

constexpr emu_u32 memory_of(metal::mem_flags flags) {
  return (int(flags) & int(metal::mem_flags::mem_device) ? kEmuMemoryDevice : 0) |
         (int(flags) & int(metal::mem_flags::mem_threadgroup) ? kEmuMemoryThreadgroup : 0);
}

template <class T>
__attribute__((always_inline)) inline emu_u64 to_bits(T x) {
  static_assert(sizeof(T) <= 8, "at most eight bytes travel between lanes at once");
  if constexpr (sizeof(T) == 1) return __builtin_bit_cast(uint8_t, x);
  if constexpr (sizeof(T) == 2) return __builtin_bit_cast(uint16_t, x);
  if constexpr (sizeof(T) == 4) return __builtin_bit_cast(uint32_t, x);
  if constexpr (sizeof(T) == 8) return __builtin_bit_cast(uint64_t, x);
}
template <class T>
__attribute__((always_inline)) inline T from_bits(emu_u64 bits) {
  if constexpr (sizeof(T) == 1) return __builtin_bit_cast(T, uint8_t(bits));
  if constexpr (sizeof(T) == 2) return __builtin_bit_cast(T, uint16_t(bits));
  if constexpr (sizeof(T) == 4) return __builtin_bit_cast(T, uint32_t(bits));
  if constexpr (sizeof(T) == 8) return __builtin_bit_cast(T, bits);
}

template <class T>
__attribute__((always_inline)) inline T shuffle(emu_shuffle_kind kind, T x, uint by) {
  return from_bits<T>(emu_shuffle(kind, to_bits(x), by));
}

/// The type in which a reduction over T runs.
template <class T>
constexpr emu_type type_of() {
  if (metal::is_same_v<T, float>) return kEmuF32;
  if (metal::is_same_v<T, half>) return kEmuF16;
  if (sizeof(T) == 8) return metal::is_signed_v<T> ? kEmuI64 : kEmuU64;
  return metal::is_signed_v<T> ? kEmuI32 : kEmuU32;
}
template <class T>
__attribute__((always_inline)) inline T reduce(emu_reduction what, T x) {
  if constexpr (metal::is_integral_v<T> && sizeof(T) < 4) {
    return T(from_bits<int>(emu_reduce(what, kEmuI32, to_bits(int(x)))));
  } else if constexpr (metal::is_same_v<T, bfloat>) {  // MSL has none; kernels that add one go through float
    return bfloat(from_bits<float>(emu_reduce(what, kEmuF32, to_bits(float(x)))));
  } else {
    return from_bits<T>(emu_reduce(what, type_of<T>(), to_bits(x)));
  }
}

}  // namespace emu

namespace metal {

#define EMU_INLINE __attribute__((always_inline)) inline

EMU_INLINE void threadgroup_barrier(mem_flags flags) { emu_barrier(kEmuThreadgroupScope, emu::memory_of(flags)); }
EMU_INLINE void simdgroup_barrier(mem_flags flags) { emu_barrier(kEmuSimdgroupScope, emu::memory_of(flags)); }

// The second argument is ushort in MSL.
template <class T>
EMU_INLINE T simd_shuffle_xor(T x, ushort mask) {
  return emu::shuffle(kEmuXor, x, mask);
}
template <class T>
EMU_INLINE T simd_shuffle(T x, ushort lane) {
  return emu::shuffle(kEmuIndex, x, lane);
}
template <class T>
EMU_INLINE T simd_broadcast(T x, ushort lane) {
  return emu::shuffle(kEmuIndex, x, lane);
}
template <class T>
EMU_INLINE T simd_broadcast_first(T x) {
  return emu::shuffle(kEmuIndex, x, 0);
}
template <class T>
EMU_INLINE T simd_shuffle_up(T x, ushort delta) {
  return emu::shuffle(kEmuUp, x, delta);
}
template <class T>
EMU_INLINE T simd_shuffle_down(T x, ushort delta) {
  return emu::shuffle(kEmuDown, x, delta);
}

/// Lanes below delta take the last lanes of `filling`.
template <class T>
EMU_INLINE T simd_shuffle_and_fill_up(T x, T filling, ushort delta) {
  const uint from = (emu_lane_index() - delta) % 32;
  const T moved = emu::shuffle(kEmuIndex, x, from);
  const T filled = emu::shuffle(kEmuIndex, filling, from);
  return emu_lane_index() < delta ? filled : moved;
}

#define EMU_REDUCTION(name, what) \
  template <class T>              \
  EMU_INLINE T name(T x) {        \
    return emu::reduce(what, x);  \
  }
EMU_REDUCTION(simd_sum, kEmuSum)
EMU_REDUCTION(simd_product, kEmuProduct)
EMU_REDUCTION(simd_min, kEmuMin)
EMU_REDUCTION(simd_max, kEmuMax)
EMU_REDUCTION(simd_and, kEmuAnd)
EMU_REDUCTION(simd_or, kEmuOr)
EMU_REDUCTION(simd_prefix_inclusive_sum, kEmuInclusiveSum)
#undef EMU_REDUCTION
EMU_INLINE bool simd_any(bool x) { return emu::reduce(kEmuOr, int(x)) != 0; }
EMU_INLINE bool simd_all(bool x) { return emu::reduce(kEmuAnd, int(x)) != 0; }

}  // namespace metal
