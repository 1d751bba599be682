#include "plan.h"

#include <array>
#include <cstdlib>
#include <numeric>

#include "plan_builder.h"

namespace flashrt {
namespace {

// Kernels add lengths, offsets and window reaches (up to 2^30) in 32 bits.
constexpr int64_t kMaxLength = int64_t{1} << 29;
constexpr int64_t kMaxCount = int64_t{1} << 30;

void check_sizes(const Problem& p) {
  const auto check = [](std::string_view what, int64_t value, int64_t most) {
    if (std::abs(value) <= most) return;
    throw Unsupported{Unsupported::Reason::size,
                      std::string(what) + " " + std::to_string(value) + ", only up to " + std::to_string(most)};
  };
  check("batch size", p.B, kMaxCount);
  check("head count", p.H, kMaxCount);
  check("query length", p.qL, kMaxLength);
  check("key length", p.kL, kMaxLength);
  check("query offset", p.q_off, kMaxLength);
}

/// Nothing to launch: outputs that are not empty themselves are set to what no key, or no query, leaves behind.
Plan plan_empty(const Problem& p, const Operation& operation, const Device& device) {
  PlanBuilder builder(p, operation, device);
  const int64_t size = size_of(p.dtype);
  if (operation.kind == OperationKind::forward) {
    builder.fill(Tensor::o, FillValue::zero, p.B * p.H * p.qL * p.Dv * size);
    builder.fill(Tensor::lse, FillValue::minus_infinity, p.B * p.H * p.qL * int64_t{sizeof(float)});
  } else {
    if (operation.d_q) builder.fill(Tensor::d_q, FillValue::zero, p.B * p.H * p.qL * p.D * size);
    if (operation.d_k) builder.fill(Tensor::d_k, FillValue::zero, p.B * p.Hk * p.kL * p.D * size);
    if (operation.d_mask) builder.fill_d_mask();
    if (operation.d_v) builder.fill(Tensor::d_v, FillValue::zero, p.B * p.Hk * p.kL * p.Dv * size);
  }
  return builder.finish();
}

/// Without keys nothing hides or shifts a score, but the sinks still make an LSE, which the forward kernel computes.
Problem only_sinks(const Problem& p) {
  Problem rest = p;
  rest.causal = rest.has_block_mask = rest.has_segments = rest.has_row_diagonals = rest.has_alibi = false;
  rest.window_left = rest.window_right = -1;
  rest.mask_kind = MaskKind::none;
  rest.softcap = 0;
  return rest;
}

}  // namespace

std::variant<Plan, Unsupported> plan(const Problem& p, const Operation& operation, const Device& device) {
  try {
    check_sizes(p);
    const bool forward = operation.kind == OperationKind::forward;
    const bool no_rows = p.B == 0 || p.H == 0 || p.qL == 0;
    const bool no_keys = p.kL == 0;
    if (no_rows || (no_keys && !(forward && p.has_sinks))) return plan_empty(p, operation, device);
    if (no_keys) return plan_forward(only_sinks(p), operation, device);
    return forward ? plan_forward(p, operation, device) : plan_backward(p, operation, device);
  } catch (const Unsupported& reason) {
    return reason;
  }
}

int64_t Plan::temporary_bytes() const {
  return std::accumulate(temporaries.begin(), temporaries.end(), int64_t{0},
                         [](int64_t sum, const Temporary& t) { return sum + t.bytes; });
}

int64_t size_of(Dtype dtype) { return dtype == Dtype::float32 ? 4 : 2; }

std::string_view to_string(Tensor tensor) {
  constexpr std::string_view names[] = {"q",        "k",     "v",          "o",          "lse",        "mask",
                                        "sinks",    "alibi", "block_mask", "q_segments", "k_segments", "row_diagonals",
                                        "d_o",      "d_lse", "d_q",        "d_k",        "d_v",        "d_mask",
                                        "temporary"};
  return names[static_cast<int32_t>(tensor)];
}

std::string_view to_string(FillValue value) { return value == FillValue::zero ? "zero" : "minus_infinity"; }

std::string_view to_string(Unsupported::Reason reason) {
  constexpr std::string_view names[] = {"head_dim", "dtype", "size", "mask_gradient", "kernel_name"};
  return names[static_cast<int32_t>(reason)];
}

}  // namespace flashrt
