// What one attention call asks for, without any array library's types. Plan, encoder and CPU kernels all start here.
#pragma once

#include <cstdint>

#include "flashrt/abi.h"

namespace flashrt {

enum class Dtype : int32_t { float16, bfloat16, float32 };

enum class MaskKind : int32_t {
  none,
  boolean,   ///< bytes, zero hides the key
  in_dtype,  ///< additive, of the problem's dtype
  in_f32,    ///< additive, f32
};

/// Shapes, strides (in elements) and options of attention over q (B,H,qL,D), k (B,Hk,kL,D), v (B,Hk,kL,Dv).
///
/// Validated before it is made: H % Hk == 0, last axes contiguous, finite scale.
struct Problem {
  Dtype dtype = Dtype::float32;
  int64_t B = 0, H = 0, Hk = 0, qL = 0, kL = 0, D = 0, Dv = 0;
  int64_t q_off = 0;  ///< row i stands at key i + q_off; kL - qL unless the caller cut the rows
  float scale = 1.0f;
  float softcap = 0.0f;  ///< 0: off
  bool causal = false;
  int64_t window_left = -1;   ///< keys before the diagonal that stay visible; -1: all
  int64_t window_right = -1;  ///< keys after it; -1: all
  MaskKind mask_kind = MaskKind::none;
  bool has_block_mask = false;
  bool has_segments = false;
  bool has_row_diagonals = false;
  bool has_sinks = false;
  bool has_alibi = false;
  bool has_dlse = false;  ///< backward: a cotangent of the log2-domain LSE is given

  Strides3 q{}, k{}, v{}, o{}, d_o{}, d_q{}, d_k{}, d_v{};
  Strides4 mask{};        ///< 0 broadcasts
  Strides4 block_mask{};  ///< q and k strides count 32x32 tiles
  int64_t alibi_b = 0, alibi_h = 0;
  int64_t q_segments_b = 0, k_segments_b = 0, row_diagonals_b = 0;
};

}  // namespace flashrt
