#include "plan_builder.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace flashrt {
namespace {

constexpr double kLog2E = 1.44269504088896340736;

// Wide enough to hide nothing, small enough that kernels can add a position to it in 32 bits.
constexpr int32_t kUnbounded = int32_t{1} << 30;

// A split reads its operands again and writes f32 partials: below this many steps it is not worth it.
constexpr int64_t kMinStepsPerSplit = 8;
constexpr int32_t kMaxSplits = 8;

// Aim at this many threadgroups per slot, so that the last wave of unequal ones does not dominate.
constexpr int64_t kWaves = 2;

float to_float(double x) {
  constexpr double largest = std::numeric_limits<float>::max();
  return static_cast<float>(std::min(x, largest));
}

std::string head_dim(int64_t d, int64_t dv) {
  return std::to_string(d) + (dv == d ? "" : " (v: " + std::to_string(dv) + ")");
}

int32_t to_int(int64_t x) { return static_cast<int32_t>(x); }

}  // namespace

std::vector<Constant> FunctionConstants::list() const {
  return {
#define FLASHRT_CONSTANT(index, name) Constant{index, #name, name},
      FLASHRT_FUNCTION_CONSTANTS(FLASHRT_CONSTANT)
#undef FLASHRT_CONSTANT
  };
}

const KernelInfo& PlanBuilder::tiled_kernel(KernelKind kind, const std::string& name) const {
  using Reason = Unsupported::Reason;
  const KernelDtype dtype = kernel_dtype(problem_.dtype);
  if (!name.empty()) {
    const KernelInfo* named = find_kernel(name);
    if (named == nullptr) throw Unsupported{Reason::kernel_name, "the name " + name};
    if (named->kind != kind || named->dtype != dtype || named->d != problem_.D || named->dv != problem_.Dv) {
      throw Unsupported{Reason::kernel_name, name + " in this operation, dtype or head dim"};
    }
    return *named;
  }
  if (const KernelInfo* kernel = find_kernel(kind, dtype, problem_.D, problem_.Dv)) return *kernel;

  const std::string asked = "head dim " + head_dim(problem_.D, problem_.Dv);
  std::string others;
  for (const KernelInfo& k : kernels()) {
    if (k.kind != kind || k.dtype != dtype || k.rank != 0) continue;
    others += (others.empty() ? "" : ", ") + head_dim(k.d, k.dv);
  }
  if (others.empty()) throw Unsupported{Reason::dtype, std::string(to_string(dtype)) + " with " + asked};
  throw Unsupported{Reason::head_dim, asked + ", only for " + others};
}

const KernelInfo& PlanBuilder::helper_kernel(KernelKind kind) const {
  const bool typed = kind != KernelKind::tile_map && kind != KernelKind::row_bounds;
  const KernelInfo* kernel = find_kernel(kind, typed ? kernel_dtype(problem_.dtype) : KernelDtype::none);
  if (kernel != nullptr) return *kernel;
  throw Unsupported{Unsupported::Reason::dtype, std::string(to_string(kind)) + " in this dtype"};
}

Buffer PlanBuilder::temporary(std::string_view name, int64_t bytes) {
  plan_.temporaries.push_back({name, bytes});
  return {.temporary = to_int(static_cast<int64_t>(plan_.temporaries.size()) - 1)};
}

void PlanBuilder::fill(Tensor tensor, FillValue value, int64_t bytes) {
  if (bytes > 0) plan_.fills.push_back({tensor, value, bytes});
}

void PlanBuilder::fill_d_mask() {
  const Strides4& strides = operation_.d_mask_strides;
  const int64_t B = strides.b == 0 ? 1 : problem_.B;
  const int64_t H = strides.h == 0 ? 1 : problem_.H;
  fill(Tensor::d_mask, FillValue::zero, B * H * problem_.qL * problem_.kL * int64_t{sizeof(float)});
}

Operand PlanBuilder::operand(Tensor tensor, const Strides3& strides, int64_t last, const Extent& heads_length_width) {
  const auto [heads, length, width] = heads_length_width;
  // No rows: an empty array has no memory to bind, but Metal wants every slot bound.
  if (length == 0) return {array_of(Tensor::q), {}};
  if (last == 1) return {array_of(tensor), strides};

  // An axis that is broadcast is packed once and stays broadcast.
  const int64_t shape[] = {strides.b == 0 ? 1 : problem_.B, strides.h == 0 ? 1 : heads, strides.l == 0 ? 1 : length,
                           width};
  const int64_t n = shape[0] * shape[1] * shape[2] * shape[3];
  const Strides3 packed = {strides.b == 0 ? 0 : shape[1] * shape[2] * width, strides.h == 0 ? 0 : shape[2] * width,
                           strides.l == 0 ? 0 : width};
  const Buffer copy = temporary("packed", n * size_of(problem_.dtype));
  const PackParams params = {
      .n = n,
      .first = 0,
      .shape = {to_int(shape[0]), to_int(shape[1]), to_int(shape[2]), to_int(shape[3])},
      .strides = {strides.b, strides.h, strides.l, last},
  };
  launch_helper(KernelKind::pack, {writes(kBufHelperOut, copy), reads(kBufHelperIn0, tensor)}, params,
                &PackParams::first, n, kElementsPerGroup);
  return {copy, packed};
}

AttentionCall PlanBuilder::prepare() {
  AttentionCall call;
  add_geometry(call);
  add_scores(call);

  const Problem& p = problem_;
  const Operand q = operand(Tensor::q, p.q, operation_.last.q, {p.H, p.qL, p.D});
  const Operand k = operand(Tensor::k, p.k, operation_.last.k, {p.Hk, p.kL, p.D});
  const Operand v = operand(Tensor::v, p.v, operation_.last.v, {p.Hk, p.kL, p.Dv});
  call.params.q = q.strides;
  call.params.k = k.strides;
  call.params.v = v.strides;
  call.bindings = {reads(kBufQ, q.buffer), reads(kBufK, k.buffer), reads(kBufV, v.buffer)};

  if (p.mask_kind != MaskKind::none) call.bindings.push_back(reads(kBufMask, Tensor::mask));
  if (p.has_alibi) call.bindings.push_back(reads(kBufAlibi, Tensor::alibi));
  add_tile_map(call);
  add_bounds(call);
  return call;
}

void PlanBuilder::add_geometry(AttentionCall& call) const {
  const Problem& p = problem_;
  AttnParams& a = call.params;
  a.B = to_int(p.B);
  a.H = to_int(p.H);
  a.Hk = to_int(p.Hk);
  a.gqa_factor = to_int(p.H / p.Hk);
  a.qL = to_int(p.qL);
  a.kL = to_int(p.kL);
  a.q_off = to_int(p.q_off);
  a.n_splits = 1;
  a.q_map_tiles = to_int(ceil_div(p.qL, kMapTile));
  a.k_map_tiles = to_int(ceil_div(p.kL, kMapTile));
  a.o = p.o;
  a.d_o = p.d_o;
  a.d_q = p.d_q;
  a.d_k = p.d_k;
  a.d_v = p.d_v;

  // A bound that no row reaches is left out: fewer pipelines, and hot loops without mask code.
  const bool fixed_diagonals = !p.has_row_diagonals;
  const auto may_hide_after = [&](int64_t reach) { return !fixed_diagonals || p.q_off + reach < p.kL - 1; };
  const auto may_hide_before = [&](int64_t reach) { return !fixed_diagonals || p.qL - 1 + p.q_off - reach > 0; };
  const bool causal = p.causal && may_hide_after(0);
  const bool right = !p.causal && p.window_right >= 0 && may_hide_after(p.window_right);
  const bool left = p.window_left >= 0 && may_hide_before(p.window_left);
  call.constants.do_causal = causal;
  call.constants.has_window = left || right;
  a.window_left = left ? to_int(std::min<int64_t>(p.window_left, kUnbounded)) : kUnbounded;
  a.window_right = causal ? 0 : right ? to_int(std::min<int64_t>(p.window_right, kUnbounded)) : kUnbounded;
}

void PlanBuilder::add_scores(AttentionCall& call) const {
  const Problem& p = problem_;
  AttnParams& a = call.params;
  const double size = std::abs(static_cast<double>(p.scale));
  a.q_sign = p.scale > 0 ? 1.0f : p.scale < 0 ? -1.0f : 0.0f;
  a.scale = p.scale;
  a.scale_log2 = to_float((size > 0 ? size : 1.0) * kLog2E);
  if (p.softcap > 0) {
    a.softcap_in = to_float(size / p.softcap);
    a.softcap_out_log2 = to_float(p.softcap * kLog2E);
  }
  a.mask = p.mask;
  a.alibi_b = p.alibi_b;
  a.alibi_h = p.alibi_h;
  call.constants.has_softcap = p.softcap > 0;
  call.constants.has_alibi = p.has_alibi;
  call.constants.has_mask = p.mask_kind != MaskKind::none;
  call.constants.mask_is_bool = p.mask_kind == MaskKind::boolean;
  call.constants.mask_is_f32 = p.mask_kind == MaskKind::in_f32;
}

void PlanBuilder::add_tile_map(AttentionCall& call) {
  const Problem& p = problem_;
  const bool from_mask = p.mask_kind == MaskKind::boolean;
  call.constants.has_block_mask = from_mask || p.has_block_mask;
  if (!from_mask) {
    if (!p.has_block_mask) return;
    call.params.tile_map = p.block_mask;
    call.bindings.push_back(reads(kBufTileMap, Tensor::block_mask));
    return;
  }

  // An axis along which neither mask varies has one row of tiles in the map, which is broadcast.
  const Strides4 block = p.has_block_mask ? p.block_mask : Strides4{};
  const int64_t B = p.mask.b == 0 && block.b == 0 ? 1 : p.B;
  const int64_t H = p.mask.h == 0 && block.h == 0 ? 1 : p.H;
  const int64_t qL = p.mask.q == 0 && block.q == 0 ? 1 : p.qL;
  const int64_t kL = p.mask.k == 0 && block.k == 0 ? 1 : p.kL;
  const int64_t q_tiles = ceil_div(qL, kMapTile);
  const int64_t k_tiles = ceil_div(kL, kMapTile);
  const Buffer map = temporary("tile_map", B * H * q_tiles * k_tiles);
  const TileMapParams params = {
      .B = to_int(B),
      .H = to_int(H),
      .qL = to_int(qL),
      .kL = to_int(kL),
      .has_block = p.has_block_mask,
      .pad = 0,
      .first_tile = 0,
      .mask = p.mask,
      .block = block,
  };
  // Metal wants every slot bound: without a block mask the second input is the mask, and is not read.
  const Tensor second = p.has_block_mask ? Tensor::block_mask : Tensor::mask;
  launch_helper(KernelKind::tile_map,
                {writes(kBufHelperOut, map), reads(kBufHelperIn0, Tensor::mask), reads(kBufHelperIn1, second)}, params,
                &TileMapParams::first_tile, B * H * q_tiles * k_tiles, 1);
  call.params.tile_map = {
      .b = B == 1 ? 0 : H * q_tiles * k_tiles,
      .h = H == 1 ? 0 : q_tiles * k_tiles,
      .q = qL == 1 ? 0 : k_tiles,
      .k = kL == 1 ? 0 : 1,
  };
  call.bindings.push_back(reads(kBufTileMap, map));
}

void PlanBuilder::add_bounds(AttentionCall& call) {
  const Problem& p = problem_;
  const bool diagonals = p.has_row_diagonals && (p.causal || call.constants.has_window || p.has_alibi);
  call.constants.has_segments = p.has_segments;
  call.constants.has_row_diagonals = diagonals;
  call.params.q_segments_b = p.q_segments_b;
  call.params.k_segments_b = p.k_segments_b;
  call.params.row_diagonals_b = p.row_diagonals_b;

  if (diagonals) call.bindings.push_back(reads(kBufRowDiagonals, Tensor::row_diagonals));
  if (!p.has_segments) return;

  const RowBounds q = {"q_bounds", p.qL, Tensor::q_segments, p.q_segments_b, diagonals, p.row_diagonals_b};
  const RowBounds k = {"k_bounds", p.kL, Tensor::k_segments, p.k_segments_b, false, 0};
  const Operand q_bounds = row_bounds(q);
  const Operand k_bounds = row_bounds(k);
  call.params.q_bounds_b = q_bounds.strides.b;
  call.params.k_bounds_b = k_bounds.strides.b;
  call.bindings.insert(call.bindings.end(),
                       {reads(kBufQSegments, Tensor::q_segments), reads(kBufKSegments, Tensor::k_segments),
                        reads(kBufQBounds, q_bounds.buffer), reads(kBufKBounds, k_bounds.buffer)});
}

Operand PlanBuilder::row_bounds(const RowBounds& rows) {
  const int64_t B = rows.segments_b == 0 && rows.diagonals_b == 0 ? 1 : problem_.B;
  const int64_t tiles = ceil_div(rows.length, kMapTile);
  const Buffer bounds = temporary(rows.name, B * tiles * int64_t{4 * sizeof(int32_t)});
  const RowBoundsParams params = {
      .B = to_int(B),
      .L = to_int(rows.length),
      .has_segments = 1,
      .has_diagonals = rows.has_diagonals,
      .segments_b = rows.segments_b,
      .diagonals_b = rows.diagonals_b,
  };
  // As for the tile map: without diagonals their slot holds the segments.
  const Tensor diagonals = rows.has_diagonals ? Tensor::row_diagonals : rows.segments;
  const KernelInfo& kernel = helper_kernel(KernelKind::row_bounds);
  launch(kernel, FunctionConstants{},
         {writes(kBufHelperOut, bounds), reads(kBufHelperIn0, rows.segments), reads(kBufHelperIn1, diagonals)},
         kBufHelperParams, params, {tiles, B, 1}, {kernel.threads, 1, 1});
  return {bounds, {.b = B == 1 ? 0 : tiles, .h = 0, .l = 1}};
}

int64_t PlanBuilder::visible_steps(int64_t length, int32_t block, int64_t owner_rows) const {
  const Problem& p = problem_;
  const int64_t right = p.causal ? 0 : p.window_right;
  if (p.window_left < 0 || right < 0) return ceil_div(length, block);
  return ceil_div(std::min(length, p.window_left + right + owner_rows), block);
}

int32_t PlanBuilder::splits(const KernelInfo& kernel, const Ownership& owned, int64_t steps) const {
  if (operation_.n_splits > 0) return operation_.n_splits;
  const int64_t threadgroups = problem_.B * owned.heads * ceil_div(owned.length, owned.block);
  const int64_t wanted = kWaves * device_.cores * threadgroups_per_core(kernel);
  const int64_t most = std::min<int64_t>(kMaxSplits, steps / kMinStepsPerSplit);
  return to_int(std::max<int64_t>(1, std::min(most, ceil_div(wanted, threadgroups))));
}

void PlanBuilder::launch_tiled(const KernelInfo& kernel, AttentionCall call, const Ownership& owned, int32_t n_splits) {
  const int64_t in_cache = device_.slc_bytes / 2 / std::max<int64_t>(1, owned.streamed_bytes);
  const int64_t heads = problem_.B * owned.heads;
  call.params.n_splits = n_splits;
  call.params.heads_per_group = to_int(std::clamp<int64_t>(in_cache, 1, heads));
  launch_heads(kernel, std::move(call), owned, 0, heads);
}

void PlanBuilder::launch_heads(const KernelInfo& kernel, AttentionCall call, const Ownership& owned, int64_t first_head,
                               int64_t heads) {
  const int64_t n_blocks = ceil_div(owned.length, owned.block);
  call.params.n_blocks = to_int(n_blocks);
  call.constants.align_Q = problem_.qL % kernel.bq == 0;
  call.constants.align_K = problem_.kL % kernel.bk == 0;
  call.constants.has_splits = call.params.n_splits > 1;

  const int64_t end = (first_head + heads) * n_blocks;
  if (end > std::numeric_limits<int32_t>::max()) {
    throw Unsupported{Unsupported::Reason::size, std::to_string(end) + " threadgroups, more than they can number"};
  }
  for (int64_t first = first_head * n_blocks; first < end; first += device_.max_threadgroups) {
    call.params.first_threadgroup = static_cast<uint32_t>(first);
    launch(kernel, call.constants, call.bindings, kBufParams, call.params,
           {std::min(end - first, device_.max_threadgroups), call.params.n_splits, 1}, {32, kernel.wm * kernel.wn, 1});
  }
}

}  // namespace flashrt
