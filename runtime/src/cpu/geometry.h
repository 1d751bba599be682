// Row blocks and key ranges of a pass: what lets whole tiles be skipped without looking at them.
#pragma once

#include <vector>

#include "job.h"

namespace flashrt::cpu {

/// Owns the arrays that a Geometry points at; O(B * (qL + kL) / 64) numbers.
class GeometryStorage {
 public:
  /// `group` query heads are packed into the rows of a block: H / Hk, or 1 to keep heads apart.
  GeometryStorage(const Problem& problem, const Tensors& tensors, int64_t group);

  const Geometry& view() const { return geometry_; }
  /// Scores that the ranges leave, all heads together: the measure of work.
  int64_t scores() const { return scores_; }

  static int64_t bytes(const Problem& problem, int64_t group);

 private:
  Geometry geometry_{};
  int64_t scores_ = 0;
  std::vector<KeyRange> ranges_;
  std::vector<IdBounds> key_bounds_;
};

}  // namespace flashrt::cpu
