#include "attention_staging.h"

#include <algorithm>
#include <cstring>

#include "mlx/allocator.h"
#include "mlx/backend/common/utils.h"

namespace flashrt {

namespace {

template <typename Word>
void copy_axis(const Word* from, Word* to, const mx::array& shape, size_t axis, int64_t stride_to) {
  const int n = shape.shape(static_cast<int>(axis));
  const int64_t stride = shape.strides(static_cast<int>(axis));
  if (axis + 1 == shape.ndim()) {
    for (int i = 0; i < n; i++) to[i] = from[i * stride];
    return;
  }
  const int64_t inner = n == 0 ? 0 : stride_to / n;
  for (int i = 0; i < n; i++) copy_axis(from + i * stride, to + i * inner, shape, axis + 1, inner);
}

template <typename Word>
void copy_strided(const mx::array& from, mx::array& to) {
  copy_axis(from.data<Word>(), to.data<Word>(), from, 0, static_cast<int64_t>(from.size()));
}

void allocate(mx::array& out, mx::Strides strides) {
  auto [used, row, col] = mx::check_contiguity(out.shape(), strides);
  mx::array::Flags flags{};
  flags.contiguous = used == out.size();
  flags.row_contiguous = row;
  flags.col_contiguous = col;
  out.set_data(mx::allocator::malloc(out.nbytes()), out.size(), std::move(strides), flags);
}

}  // namespace

void allocate_rows(mx::array& out) { out.set_data(mx::allocator::malloc(out.nbytes())); }

void allocate_heads_inner(mx::array& out) {
  const int64_t H = out.shape(1), L = out.shape(2), D = out.shape(3);
  allocate(out, {L * H * D, D, H * D, 1});
}

void allocate_like(mx::array& out, const mx::array& operand) {
  const bool heads_inner = out.ndim() == 4 && operand.strides(2) > operand.strides(1) && out.shape(1) > 1;
  heads_inner ? allocate_heads_inner(out) : allocate_rows(out);
}

mx::array Staging::contiguous_last(const mx::array& a) {
  return a.shape(-1) == 1 || a.strides(-1) == 1 || a.size() == 0 ? a : copy(a);
}

mx::array Staging::copy(const mx::array& a) {
  // Axes that repeat one place, as those of a sum's cotangent do, are read once and go on repeating.
  auto shape = a.shape();
  for (int i = 0; i + 1 < static_cast<int>(a.ndim()); i++) {
    if (a.strides(i) == 0) shape[i] = 1;
  }
  mx::array once(shape, a.dtype(), nullptr, {});
  once.copy_shared_buffer(a, a.strides(), {}, a.data_size());
  mx::array packed(shape, a.dtype(), nullptr, {});
  allocate_rows(packed);
  encoder_.add_temporary(packed);
  encoder_.dispatch([from = mx::array::unsafe_weak_copy(once), to = mx::array::unsafe_weak_copy(packed)]() mutable {
    switch (from.itemsize()) {
      case 1:
        return copy_strided<uint8_t>(from, to);
      case 2:
        return copy_strided<uint16_t>(from, to);
      default:
        return copy_strided<uint32_t>(from, to);
    }
  });
  auto strides = packed.strides();
  for (int i = 0; i < static_cast<int>(a.ndim()); i++) {
    if (shape[i] != a.shape(i)) strides[i] = 0;
  }
  mx::array repeated(a.shape(), a.dtype(), nullptr, {});
  repeated.copy_shared_buffer(packed, strides, {}, packed.size());
  return repeated;
}

}  // namespace flashrt
