#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "dispatch.h"
#include "geometry.h"
#include "scratch.h"
#include "thread_pool.h"

namespace flashrt::cpu {

int64_t forward_scratch_bytes(const Problem& problem, int threads, const char* isa);

namespace {

// K, V, dK, dV of a super-block stay in a core's L2 beside the tiles of a row block.
constexpr int64_t kSuperBlockBytes = 512 << 10;
// Below this many tasks super-blocks shrink, so that there is work for every core. The thread count itself must not
// matter: it would change the order of sums.
constexpr int64_t kTasksWanted = 16;
constexpr int64_t kFewestSuperKeys = 128;
constexpr int64_t kWidestVector = 16;  // floats

void wait_for(const int32_t* value, int32_t wanted) {
  for (int spins = 0; __atomic_load_n(value, __ATOMIC_ACQUIRE) != wanted; ++spins)
    if (spins > 64) std::this_thread::yield();
}

void set_super_blocks(BackwardJob& job) {
  const Problem& p = *job.problem;
  int64_t keys = kSuperBlockBytes / ((p.D + p.Dv) * 8) / kKeyTile * kKeyTile;
  keys = std::clamp<int64_t>(keys, kFewestSuperKeys, 1024);
  while (keys > kFewestSuperKeys && job.geometry.kv_heads * ((p.kL + keys - 1) / keys) < kTasksWanted)
    keys = std::max(kFewestSuperKeys, keys / 2 / kKeyTile * kKeyTile);
  job.super_keys = static_cast<int32_t>(std::min(keys, (p.kL + kKeyTile - 1) / kKeyTile * kKeyTile));
  job.super_blocks = p.kL == 0 ? 0 : static_cast<int32_t>((p.kL + job.super_keys - 1) / job.super_keys);
}

struct BackwardMemory {
  int64_t delta = 0;
  int64_t turns = 0;
  int64_t finished = 0;
  int64_t dq_slots = 0;
  int64_t per_thread = 0;

  int64_t total(int threads) const { return delta + turns + finished + dq_slots + threads * per_thread; }
};

/// Heads that run side by side: with one a thread, tasks in flight seldom wait for each other's turn at a dQ.
int64_t heads_abreast(const BackwardJob& job, int threads) { return std::min<int64_t>(job.geometry.kv_heads, threads); }

/// Also sets the number of dQ slots: one for each head abreast, and one for the first that follows them.
BackwardMemory memory_of(BackwardJob& job, const MaskGradientJob& mask_job, const Kernels& kernels, int threads) {
  const Problem& p = *job.problem;
  BackwardMemory memory;
  memory.delta = round_to_line(p.B * p.H * p.qL * 4);
  memory.turns = round_to_line(job.geometry.kv_heads * job.geometry.row_blocks * 4);
  memory.finished = round_to_line(job.geometry.kv_heads * 4);
  job.slot_count = static_cast<int32_t>(std::min(job.geometry.kv_heads, heads_abreast(job, threads) + 1));
  job.slot_stride = (p.D + kWidestVector - 1) / kWidestVector * kWidestVector;
  // f32 rows at even distances, in whole vectors, are summed in place.
  const bool in_place = p.dtype == Dtype::float32 && job.geometry.group == 1 && job.slot_stride == p.D;
  if (job.tensors->d_q && !in_place)
    memory.dq_slots = round_to_line(job.slot_count * job.geometry.rows * job.slot_stride * 4);
  memory.per_thread = round_to_line(kernels.backward_scratch(job));
  if (job.tensors->d_mask)
    memory.per_thread = std::max(memory.per_thread, round_to_line(kernels.mask_gradient_scratch(mask_job)));
  return memory;
}

int threads_of(const Problem& p, int64_t scores, int limit) {
  return threads_for(scores * (3 * p.D + 2 * p.Dv), limit > 0 ? limit : available_threads());
}

int64_t mask_gradient_tasks(const Problem& p, const Tensors& t, const Geometry& g) {
  const Strides4& s = t.d_mask_strides;
  return (s.b ? p.B : 1) * (s.h ? p.H : 1) * (s.q ? g.row_blocks : 1) * (s.k ? g.key_tiles : 1);
}

}  // namespace

void backward(const Problem& problem, const Tensors& tensors, const Options& options) {
  const Kernels& kernels = select_kernels(options.isa);
  const int64_t group = problem.Hk == 0 ? 1 : problem.H / problem.Hk;
  const GeometryStorage geometry(problem, tensors, group);
  const GeometryStorage head_geometry(problem, tensors, 1);  // of the mask gradient, which keeps heads apart
  BackwardJob job{};
  job.problem = &problem;
  job.tensors = &tensors;
  job.geometry = geometry.view();
  job.wait_for = wait_for;
  set_super_blocks(job);
  MaskGradientJob mask_job{&problem, &tensors, head_geometry.view(), nullptr};
  const int threads = threads_of(problem, geometry.scores(), options.threads);
  const BackwardMemory memory = memory_of(job, mask_job, kernels, threads);
  const Scratch scratch = allocate_scratch(memory.total(threads));
  char* next = scratch.get();
  const auto take = [&next](int64_t bytes) { return std::exchange(next, next + bytes); };
  float* delta = reinterpret_cast<float*>(take(memory.delta));
  job.delta = mask_job.delta = delta;
  job.turns = reinterpret_cast<int32_t*>(take(memory.turns));
  job.finished = reinterpret_cast<int32_t*>(take(memory.finished));
  if (memory.dq_slots > 0) job.dq_slots = reinterpret_cast<float*>(take(memory.dq_slots));
  std::memset(job.turns, 0, static_cast<size_t>(memory.turns + memory.finished));

  const Geometry& g = job.geometry;
  parallel_for(g.kv_heads * g.row_blocks, threads,
               [&](int64_t task, int) { kernels.delta(job, task / g.row_blocks, task % g.row_blocks, delta); });
  if (tensors.d_q || tensors.d_k || tensors.d_v) {
    // Super-blocks ascending: under a causal mask the longest task comes first.
    const int64_t abreast = heads_abreast(job, threads);
    parallel_for(g.kv_heads * job.super_blocks, threads, [&](int64_t task, int thread) {
      const int64_t first_head = task / (abreast * job.super_blocks) * abreast;
      const int64_t heads = std::min(abreast, g.kv_heads - first_head);
      const int64_t index = task - first_head * job.super_blocks;
      const int64_t kv_head = first_head + index % heads;
      kernels.backward(job, kv_head, static_cast<int32_t>(index / heads), next + thread * memory.per_thread);
      __atomic_fetch_add(job.finished + kv_head, 1, __ATOMIC_RELEASE);
    });
  }
  if (tensors.d_mask) {
    parallel_for(mask_gradient_tasks(problem, tensors, mask_job.geometry), threads, [&](int64_t task, int thread) {
      kernels.mask_gradient(mask_job, task, next + thread * memory.per_thread);
    });
  }
}

int64_t scratch_bytes(const Problem& problem, Pass pass, int threads, const char* isa) {
  if (pass == Pass::forward) return forward_scratch_bytes(problem, threads, isa);
  const int64_t group = problem.Hk == 0 ? 1 : problem.H / problem.Hk;
  Problem bands = problem;  // ids and diagonals are not known here; they only narrow the ranges
  bands.has_segments = bands.has_row_diagonals = false;
  Tensors wanted;
  char any;
  wanted.d_q = wanted.d_k = wanted.d_v = &any;
  const GeometryStorage geometry(bands, wanted, group);
  BackwardJob job{};
  job.problem = &problem;
  job.tensors = &wanted;
  job.geometry = geometry.view();
  set_super_blocks(job);
  const int used = threads_of(problem, geometry.scores(), threads);
  return memory_of(job, {}, select_kernels(isa), used).total(used) + GeometryStorage::bytes(problem, group) +
         GeometryStorage::bytes(problem, 1);
}

}  // namespace flashrt::cpu
