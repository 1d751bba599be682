// What the drivers (forward.cpp, backward.cpp) hand to the per-ISA kernels: plain data, no owning types.
//
// Included by per-ISA files, which must not instantiate anything with external linkage: keep it free of std:: types.
#pragma once

#include <cstdint>

#include "attention.h"

namespace flashrt::cpu {

/// Query rows of a block. They are the SIMD lanes of every score tile, so it is a multiple of every ISA's panel.
constexpr int32_t kRowBlock = 64;
/// Keys of a score tile; bounds of segment ids are kept at this grain.
constexpr int32_t kKeyTile = 64;

struct KeyRange {
  int32_t begin;
  int32_t end;  ///< begin == end: no key
};

struct IdBounds {
  int32_t min;
  int32_t max;
};

/// Rows and tiles of one pass.
///
/// The query heads of a group are packed together: row r of a kv head is query row r / group of head
/// kv_head * group + r % group. A tile then reads each key once for the whole group, and decoding fills lanes.
struct Geometry {
  int64_t group;                      ///< query heads per kv head
  int64_t rows;                       ///< qL * group
  int64_t row_blocks;                 ///< ceil(rows / kRowBlock)
  int64_t key_tiles;                  ///< ceil(kL / kKeyTile)
  int64_t kv_heads;                   ///< B * Hk
  int32_t window_left, window_right;  ///< keys around the diagonal; INT32_MAX: unbounded. Causal is window_right <= 0
  bool banded;                        ///< window_left or window_right is bounded
  const KeyRange* ranges;             ///< [B][row_blocks]: no row of the block sees a key outside
  const IdBounds* key_bounds;         ///< [B][key_tiles], with segments only
};

struct ForwardJob {
  const Problem* problem;
  const Tensors* tensors;
  Geometry geometry;
  int32_t splits;      ///< key splits per row block; more than one writes the partials instead of O and LSE
  int32_t split_keys;  ///< keys per split, a multiple of kKeyTile
  float* o_partial;    ///< [splits][kv_heads][rows][Dv], each normalised by its own sum
  float* lse_partial;  ///< [splits][kv_heads][rows], sinks not included
};

/// dQ of a row block is the sum over the super-blocks of keys that its range meets, in ascending order: `turns` holds
/// the super-block whose turn it is to add.
struct BackwardJob {
  const Problem* problem;
  const Tensors* tensors;
  Geometry geometry;
  const float* delta;    ///< [kv_heads][rows]: rowsum(dO*O) - dLSE
  int32_t super_keys;    ///< keys of a super-block, a multiple of kKeyTile
  int32_t super_blocks;  ///< per kv head
  int32_t* turns;        ///< [kv_heads][row_blocks]
  float* dq_slots;       ///< f32 sums of dQ, [slot_count][rows][slot_stride]; null: dQ itself holds them
  int64_t slot_stride;
  int32_t slot_count;  ///< kv head n uses slot n % slot_count once head n - slot_count is done
  int32_t* finished;   ///< [kv_heads]: super-blocks that are done
  void (*wait_for)(const int32_t* value, int32_t wanted);  ///< blocks until *value == wanted
};

/// dMask: a task owns one tile of the output and sums over the axes that it broadcasts.
struct MaskGradientJob {
  const Problem* problem;
  const Tensors* tensors;
  Geometry geometry;
  const float* delta;
};

/// The code of one instruction set.
struct Kernels {
  const char* name;
  int64_t (*forward_scratch)(const ForwardJob&);  ///< bytes per thread
  int64_t (*backward_scratch)(const BackwardJob&);
  int64_t (*mask_gradient_scratch)(const MaskGradientJob&);
  void (*forward)(const ForwardJob&, int64_t kv_head, int64_t row_block, int32_t split, char* scratch);
  void (*merge)(const ForwardJob&, int64_t kv_head, int64_t row_block);
  void (*delta)(const BackwardJob&, int64_t kv_head, int64_t row_block, float* delta);
  void (*backward)(const BackwardJob&, int64_t kv_head, int32_t super_block, char* scratch);
  void (*mask_gradient)(const MaskGradientJob&, int64_t task, char* scratch);
};

}  // namespace flashrt::cpu
