// From a problem to launches: which generated kernels run, with which constants, buffers, parameters and grids.
//
// Pure C++, no array library and no Metal: the Metal encoder carries a plan out on a Mac, the tests carry out the very
// same plan on the emulator, and explain() prints it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "devices.h"
#include "kernel_info.h"
#include "problem.h"

namespace flashrt {

/// The arrays of a call. A plan names them; who carries it out knows where they are.
enum class Tensor : int32_t {
  q,
  k,
  v,
  o,
  lse,
  mask,
  sinks,
  alibi,
  block_mask,
  q_segments,
  k_segments,
  row_diagonals,
  d_o,
  d_lse,
  d_q,
  d_k,
  d_v,
  d_mask,
  temporary,  ///< Buffer::temporary says which
};

/// Strides of the last axis in elements; Problem holds those of the first three. An operand whose last axis is not
/// contiguous is packed into a temporary first. Outputs have a contiguous last axis.
struct LastStrides {
  int64_t q = 1, k = 1, v = 1, o = 1, d_o = 1;
};

enum class OperationKind : int32_t { forward, backward };

/// What to compute of a problem. Forward writes o and lse. Backward reads q, k, v, o, lse, d_o (and d_lse) and writes
/// the wanted gradients. lse, d_lse, delta and sinks are row-contiguous.
struct Operation {
  OperationKind kind = OperationKind::forward;
  bool d_q = true, d_k = true, d_v = true, d_mask = false;  ///< backward: wanted gradients

  /// Strides of d_mask, the f32 gradient of an additive mask, in elements: (B|1, H|1, qL, kL), with 0 for an axis of
  /// one batch or head. It has all rows and keys: the sum over an axis that the mask broadcasts is the caller's.
  Strides4 d_mask_strides{};

  LastStrides last;

  // For tests and tuners. Empty and 0: the plan chooses.
  std::string fwd_kernel, dq_kernel, dkv_kernel;
  int32_t n_splits = 0;  ///< of the keys in forward, of the query steps in dK and dV
};

struct Buffer {
  Tensor tensor = Tensor::temporary;
  int32_t temporary = -1;  ///< index into Plan::temporaries
  int64_t offset = 0;      ///< bytes from the array's first element
};

struct Binding {
  int32_t slot;
  Buffer buffer;
  bool write;  ///< false: only read
};

struct Constant {
  int32_t index;
  std::string_view name;
  bool value;
};

using Extent = std::array<int64_t, 3>;

struct Launch {
  const KernelInfo* kernel;
  std::vector<Constant> constants;  ///< every function constant
  std::vector<Binding> bindings;    ///< one per slot the kernel declares with these constants, but for the parameters
  int32_t params_slot;
  std::vector<std::byte> params;
  Extent grid;    ///< threadgroups
  Extent group;   ///< threads
  int32_t stage;  ///< never falls from launch to launch; launches of one stage are independent of each other
};

/// Scratch memory that one plan's launches share; its content before the first launch is unspecified.
struct Temporary {
  std::string_view name;
  int64_t bytes;
};

enum class FillValue : int32_t { zero, minus_infinity };

/// A whole output set to one value: of an empty problem, or because a kernel adds to it.
struct Fill {
  Tensor tensor;
  FillValue value;
  int64_t bytes;
};

struct Plan {
  std::vector<Temporary> temporaries;
  std::vector<Fill> fills;  ///< before the launches
  std::vector<Launch> launches;

  int64_t temporary_bytes() const;
};

/// Why no plan exists; `detail` ends a sentence that begins "there are no kernels for".
struct Unsupported {
  enum class Reason : int32_t {
    head_dim,       ///< no kernel with this D and Dv
    dtype,          ///< no kernel of this dtype at all
    size,           ///< a length or a count passes what the kernels index
    mask_gradient,  ///< d_mask without all rows and keys
    kernel_name,    ///< a kernel asked for by name is absent or does not fit the problem
  };
  Reason reason;
  std::string detail;
};

/// The launches that compute `operation` of `problem` on `device`, or why there are none.
std::variant<Plan, Unsupported> plan(const Problem& problem, const Operation& operation, const Device& device);

/// Bytes of one element.
int64_t size_of(Dtype dtype);

std::string_view to_string(Tensor tensor);
std::string_view to_string(FillValue value);
std::string_view to_string(Unsupported::Reason reason);

}  // namespace flashrt
