// simdgroup_matrix<T, 8, 8>: two elements a lane, at Apple's places.
#pragma once

#include "simd.h"

namespace metal {

template <class T, int Cols, int Rows = Cols>
struct simdgroup_matrix {
  static_assert(Cols == 8 && Rows == 8, "simdgroup matrices are 8x8");
  using storage_type = vec<T, 2>;

  simdgroup_matrix() = default;
  explicit simdgroup_matrix(T diagonal);

  EMU_INLINE storage_type& thread_elements() { return elements; }
  EMU_INLINE const storage_type& thread_elements() const { return elements; }

  storage_type elements;
};

using simdgroup_float8x8 = simdgroup_matrix<float, 8, 8>;
using simdgroup_half8x8 = simdgroup_matrix<half, 8, 8>;
using simdgroup_bfloat8x8 = simdgroup_matrix<bfloat, 8, 8>;

}  // namespace metal

namespace emu {

struct Place {
  int row;
  int col;  ///< of the first element; the second follows it
};

EMU_INLINE Place fragment_place() {
  const int lane = int(emu_lane_index());
#if defined(EMULATOR_ROW_MAJOR_FRAGMENTS)  // deliberately not Apple's layout: tests show that kernels notice
  return {lane / 4, lane % 4 * 2};
#else
  return {((lane >> 4) << 2) | ((lane >> 1) & 3), (((lane >> 3) & 1) << 2) | ((lane & 1) << 1)};
#endif
}

template <class T>
EMU_INLINE emu_pair pair_of(metal::vec<T, 2> x) {
  return {float(x.x), float(x.y)};
}

EMU_INLINE emu_pair multiply_accumulate(emu_pair a, emu_pair b, emu_pair c) {
#if defined(EMULATOR_ROW_MAJOR_FRAGMENTS)
  return emu_multiply_accumulate_row_major(a, b, c);
#else
  return emu_multiply_accumulate(a, b, c);
#endif
}

}  // namespace emu

namespace metal {

template <class T, int Cols, int Rows>
simdgroup_matrix<T, Cols, Rows>::simdgroup_matrix(T diagonal) {
  const emu::Place at = emu::fragment_place();
  elements = storage_type(at.row == at.col ? diagonal : T(0), at.row == at.col + 1 ? diagonal : T(0));
}

template <class T, int Cols, int Rows>
EMU_INLINE simdgroup_matrix<T, Cols, Rows> make_filled_simdgroup_matrix(T value) {
  simdgroup_matrix<T, Cols, Rows> m;
  m.elements = vec<T, 2>(value, value);
  return m;
}

/// d = a * b + c. Products and sums are f32; d rounds once to its own type.
template <class D, class A, class B, class C>
EMU_INLINE void simdgroup_multiply_accumulate(simdgroup_matrix<D, 8, 8>& d, const simdgroup_matrix<A, 8, 8>& a,
                                              const simdgroup_matrix<B, 8, 8>& b, const simdgroup_matrix<C, 8, 8>& c) {
  static_assert(is_same_v<D, C>, "the accumulator keeps its type");
  const emu_pair sum =
      emu::multiply_accumulate(emu::pair_of(a.elements), emu::pair_of(b.elements), emu::pair_of(c.elements));
  d.elements = vec<D, 2>(D(sum.x), D(sum.y));
}

template <class D, class A, class B>
EMU_INLINE void simdgroup_multiply(simdgroup_matrix<D, 8, 8>& d, const simdgroup_matrix<A, 8, 8>& a,
                                   const simdgroup_matrix<B, 8, 8>& b) {
  const emu_pair sum = emu::multiply_accumulate(emu::pair_of(a.elements), emu::pair_of(b.elements), emu_pair{0, 0});
  d.elements = vec<D, 2>(D(sum.x), D(sum.y));
}

template <class T>
EMU_INLINE void simdgroup_load(simdgroup_matrix<T, 8, 8>& d, const T* src, ulong elements_per_row = 8,
                               vec<ulong, 2> origin = vec<ulong, 2>(0), bool transpose = false) {
  const emu::Place at = emu::fragment_place();
  src += origin.y * elements_per_row + origin.x;
  const ulong first = transpose ? at.col * elements_per_row + at.row : at.row * elements_per_row + at.col;
  d.elements = vec<T, 2>(src[first], src[first + (transpose ? elements_per_row : 1)]);
}

template <class T>
EMU_INLINE void simdgroup_store(const simdgroup_matrix<T, 8, 8>& a, T* dst, ulong elements_per_row = 8,
                                vec<ulong, 2> origin = vec<ulong, 2>(0), bool transpose = false) {
  const emu::Place at = emu::fragment_place();
  dst += origin.y * elements_per_row + origin.x;
  const ulong first = transpose ? at.col * elements_per_row + at.row : at.row * elements_per_row + at.col;
  dst[first] = a.elements.x;
  dst[first + (transpose ? elements_per_row : 1)] = a.elements.y;
}

}  // namespace metal
