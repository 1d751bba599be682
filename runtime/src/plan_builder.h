// The parts that the forward and backward plans are put together from.
#pragma once

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "plan.h"

namespace flashrt {

/// A value for every function constant. Helper kernels read none, but include headers that name them all.
struct FunctionConstants {
#define FLASHRT_MEMBER(index, name) bool name = false;
  FLASHRT_FUNCTION_CONSTANTS(FLASHRT_MEMBER)
#undef FLASHRT_MEMBER

  std::vector<Constant> list() const;
};

/// What every attention kernel of one call shares: each launch copies it and adds its own.
struct AttentionCall {
  AttnParams params{};
  FunctionConstants constants;
  std::vector<Binding> bindings;
};

/// An array as a kernel reads it.
struct Operand {
  Buffer buffer;
  Strides3 strides;
};

/// Rows that a tiled kernel's threadgroups own: per batch `heads` heads of `length` rows in blocks of `block`.
struct Ownership {
  int64_t heads;
  int64_t length;
  int32_t block;
  int64_t streamed_bytes;  ///< what all blocks of one head read: worth keeping in cache between them
};

/// Input of one row_bounds launch; its output's batch stride counts records.
struct RowBounds {
  std::string_view name;
  int64_t length;
  Tensor segments;
  int64_t segments_b;
  bool has_diagonals;
  int64_t diagonals_b;
};

class PlanBuilder {
 public:
  PlanBuilder(const Problem& problem, const Operation& operation, const Device& device)
      : problem_(problem), operation_(operation), device_(device) {}

  /// The kernel asked for by name, else the default of its kind; throws Unsupported.
  const KernelInfo& tiled_kernel(KernelKind kind, const std::string& name) const;

  /// Launches what turns the call's operands into what the kernels read: packed operands, tile map, row bounds.
  AttentionCall prepare();

  /// An operand of shape (B, heads, length, width); a packed copy where its last axis is not contiguous.
  Operand operand(Tensor tensor, const Strides3& strides, int64_t last, const Extent& heads_length_width);

  Buffer temporary(std::string_view name, int64_t bytes);

  /// Blocks of the streamed side that `owner_rows` rows can see, at most.
  int64_t visible_steps(int64_t length, int32_t block, int64_t owner_rows) const;

  /// Ways to split each threadgroup's `steps` so that the GPU is filled.
  int32_t splits(const KernelInfo& kernel, const Ownership& owned, int64_t steps) const;

  /// Launches a tiled kernel over everything that is owned.
  void launch_tiled(const KernelInfo& kernel, AttentionCall call, const Ownership& owned, int32_t n_splits);

  /// Launches it over heads [first_head, first_head + heads) of all batches; call.params says how they are grouped.
  void launch_heads(const KernelInfo& kernel, AttentionCall call, const Ownership& owned, int64_t first_head,
                    int64_t heads);

  /// Launches a helper kernel over `items`, `per_group` of which go to a threadgroup. `first` is the member of Params
  /// that says where a launch beyond the grid limit starts.
  template <class Params>
  void launch_helper(KernelKind kind, std::vector<Binding> bindings, Params params, int64_t Params::* first,
                     int64_t items, int64_t per_group) {
    const KernelInfo& kernel = helper_kernel(kind);
    const int64_t groups = (items + per_group - 1) / per_group;
    for (int64_t done = 0; done < groups; done += device_.max_threadgroups) {
      params.*first = done * per_group;
      const int64_t now = std::min(groups - done, device_.max_threadgroups);
      launch(kernel, FunctionConstants{}, bindings, kBufHelperParams, params, {now, 1, 1}, {kernel.threads, 1, 1});
    }
  }

  /// Launches from here on depend on those before.
  void next_stage() { ++stage_; }

  void fill(Tensor tensor, FillValue value, int64_t bytes);
  void fill_d_mask();

  Plan finish() { return std::move(plan_); }

 private:
  const KernelInfo& helper_kernel(KernelKind kind) const;
  void add_geometry(AttentionCall& call) const;
  void add_scores(AttentionCall& call) const;
  void add_tile_map(AttentionCall& call);
  void add_bounds(AttentionCall& call);
  Operand row_bounds(const RowBounds& rows);

  template <class Params>
  void launch(const KernelInfo& kernel, const FunctionConstants& constants, std::vector<Binding> bindings,
              int32_t params_slot, const Params& params, const Extent& grid, const Extent& group) {
    std::vector<std::byte> bytes(sizeof(Params));
    std::memcpy(bytes.data(), &params, sizeof(Params));
    plan_.launches.push_back(
        {&kernel, constants.list(), std::move(bindings), params_slot, std::move(bytes), grid, group, stage_});
  }

  const Problem& problem_;
  const Operation& operation_;
  const Device& device_;
  Plan plan_;
  int32_t stage_ = 0;
};

/// The plans of the two operations where there is something to compute.
Plan plan_forward(const Problem& problem, const Operation& operation, const Device& device);
Plan plan_backward(const Problem& problem, const Operation& operation, const Device& device);

/// Rows per threadgroup of bwd_delta and fwd_merge: one simdgroup each.
constexpr int64_t kRowsPerGroup = 4;

/// Elements per threadgroup of pack and bwd_reduce: one thread each.
constexpr int64_t kElementsPerGroup = 256;

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

inline Buffer array_of(Tensor tensor) { return {.tensor = tensor}; }
inline Binding reads(int32_t slot, const Buffer& buffer) { return {slot, buffer, false}; }
inline Binding reads(int32_t slot, Tensor tensor) { return {slot, array_of(tensor), false}; }
inline Binding writes(int32_t slot, const Buffer& buffer) { return {slot, buffer, true}; }
inline Binding writes(int32_t slot, Tensor tensor) { return {slot, array_of(tensor), true}; }

}  // namespace flashrt
