#include "geometry.h"

#include <algorithm>
#include <limits>

namespace flashrt::cpu {
namespace {

constexpr int32_t kUnbounded = std::numeric_limits<int32_t>::max();
constexpr int64_t kWidestWindow = int64_t{1} << 30;

int64_t divide_up(int64_t n, int64_t step) { return (n + step - 1) / step; }

IdBounds bounds_of(const int32_t* ids, int64_t begin, int64_t end) {
  const auto [low, high] = std::minmax_element(ids + begin, ids + end);
  return {*low, *high};
}

bool overlap(const IdBounds& a, const IdBounds& b) { return a.min <= b.max && b.min <= a.max; }

Geometry shape_of(const Problem& p, int64_t group) {
  Geometry g{};
  g.group = group;
  g.rows = p.qL * group;
  g.row_blocks = divide_up(g.rows, kRowBlock);
  g.key_tiles = divide_up(p.kL, kKeyTile);
  g.kv_heads = p.B * p.Hk;
  g.window_left = p.window_left < 0 ? kUnbounded : static_cast<int32_t>(std::min(p.window_left, kWidestWindow));
  g.window_right = p.window_right < 0 ? kUnbounded : static_cast<int32_t>(std::min(p.window_right, kWidestWindow));
  if (p.causal) g.window_right = std::min(g.window_right, 0);
  g.banded = g.window_left != kUnbounded || g.window_right != kUnbounded;
  return g;
}

/// Keys that causal and window leave to query rows [first, last].
KeyRange band_of(const Problem& p, const Tensors& t, const Geometry& g, int64_t batch, int64_t first, int64_t last) {
  IdBounds diagonal;
  if (p.has_row_diagonals) {
    diagonal = bounds_of(t.row_diagonals + batch * p.row_diagonals_b, first, last + 1);
  } else {
    const auto position = [&](int64_t row) {
      return static_cast<int32_t>(std::clamp<int64_t>(row + p.q_off, -kWidestWindow, kWidestWindow));
    };
    diagonal = {position(first), position(last)};
  }
  const int64_t begin = g.window_left == kUnbounded ? 0 : std::max<int64_t>(0, int64_t{diagonal.min} - g.window_left);
  const int64_t end =
      g.window_right == kUnbounded ? p.kL : std::min<int64_t>(p.kL, int64_t{diagonal.max} + g.window_right + 1);
  if (begin >= end) return {0, 0};
  return {static_cast<int32_t>(begin), static_cast<int32_t>(end)};
}

}  // namespace

GeometryStorage::GeometryStorage(const Problem& p, const Tensors& t, int64_t group) {
  Geometry& g = geometry_;
  g = shape_of(p, group);
  if (p.has_segments) {
    key_bounds_.resize(p.B * g.key_tiles);
    for (int64_t b = 0; b < p.B; ++b)
      for (int64_t tile = 0; tile < g.key_tiles; ++tile)
        key_bounds_[b * g.key_tiles + tile] = bounds_of(t.k_segments + b * p.k_segments_b, tile * kKeyTile,
                                                        std::min<int64_t>((tile + 1) * kKeyTile, p.kL));
  }
  ranges_.resize(p.B * g.row_blocks);
  for (int64_t b = 0; b < p.B; ++b) {
    const IdBounds* tiles = key_bounds_.data() + b * g.key_tiles;
    for (int64_t block = 0; block < g.row_blocks; ++block) {
      const int64_t first = block * kRowBlock / group;
      const int64_t last = (std::min((block + 1) * kRowBlock, g.rows) - 1) / group;
      KeyRange range = band_of(p, t, g, b, first, last);
      if (p.has_segments && range.begin < range.end) {
        const IdBounds ids = bounds_of(t.q_segments + b * p.q_segments_b, first, last + 1);
        int64_t begin = range.begin / kKeyTile, end = divide_up(range.end, kKeyTile);
        while (begin < end && !overlap(tiles[begin], ids)) ++begin;
        while (begin < end && !overlap(tiles[end - 1], ids)) --end;
        range.begin = std::max<int32_t>(range.begin, begin * kKeyTile);
        range.end = std::min<int32_t>(range.end, end * kKeyTile);
        if (range.begin >= range.end) range = {0, 0};
      }
      ranges_[b * g.row_blocks + block] = range;
      scores_ += int64_t{range.end - range.begin} * kRowBlock * p.Hk;
    }
  }
  g.ranges = ranges_.data();
  g.key_bounds = key_bounds_.data();
}

int64_t GeometryStorage::bytes(const Problem& p, int64_t group) {
  const Geometry g = shape_of(p, group);
  return p.B * (g.row_blocks * static_cast<int64_t>(sizeof(KeyRange)) +
                (p.has_segments ? g.key_tiles * static_cast<int64_t>(sizeof(IdBounds)) : 0));
}

}  // namespace flashrt::cpu
