#include <algorithm>

#include "dispatch.h"
#include "geometry.h"
#include "scratch.h"
#include "thread_pool.h"

namespace flashrt::cpu {
namespace {

// Few row blocks (decoding, one head) leave cores idle: the keys are then split as well. The numbers depend on the
// problem alone, as a split changes the order of sums.
constexpr int64_t kBlocksThatNeedNoSplit = 32;
constexpr int64_t kBlocksWanted = 64;
constexpr int64_t kKeysWorthASplit = 512;

void set_splits(ForwardJob& job) {
  const int64_t blocks = job.geometry.kv_heads * job.geometry.row_blocks;
  const int64_t keys = job.problem->kL;
  int64_t splits = 1;
  if (blocks > 0 && blocks < kBlocksThatNeedNoSplit)
    splits = std::max<int64_t>(1, std::min((kBlocksWanted + blocks - 1) / blocks, keys / kKeysWorthASplit));
  const int64_t split_keys = (keys + splits - 1) / splits;
  job.split_keys = static_cast<int32_t>(std::max<int64_t>(1, (split_keys + kKeyTile - 1) / kKeyTile) * kKeyTile);
  job.splits = static_cast<int32_t>(std::max<int64_t>(1, (keys + job.split_keys - 1) / job.split_keys));
}

struct ForwardMemory {
  int64_t o_partial = 0;
  int64_t lse_partial = 0;
  int64_t per_thread = 0;

  int64_t total(int threads) const { return o_partial + lse_partial + threads * per_thread; }
};

ForwardMemory memory_of(const ForwardJob& job, const Kernels& kernels) {
  ForwardMemory memory;
  memory.per_thread = round_to_line(kernels.forward_scratch(job));
  if (job.splits > 1) {
    const int64_t rows = job.splits * job.geometry.kv_heads * job.geometry.rows;
    memory.o_partial = round_to_line(rows * job.problem->Dv * 4);
    memory.lse_partial = round_to_line(rows * 4);
  }
  return memory;
}

int threads_of(const ForwardJob& job, int64_t scores, int limit) {
  return threads_for(scores * (job.problem->D + job.problem->Dv), limit > 0 ? limit : available_threads());
}

}  // namespace

void forward(const Problem& problem, const Tensors& tensors, const Options& options) {
  const Kernels& kernels = select_kernels(options.isa);
  if (problem.B == 0 || problem.Hk == 0 || problem.qL == 0) return;
  const GeometryStorage geometry(problem, tensors, problem.H / problem.Hk);
  ForwardJob job{&problem, &tensors, geometry.view(), 1, 0, nullptr, nullptr};
  set_splits(job);
  const int threads = threads_of(job, geometry.scores(), options.threads);
  const ForwardMemory memory = memory_of(job, kernels);
  const Scratch scratch = allocate_scratch(memory.total(threads));
  job.o_partial = reinterpret_cast<float*>(scratch.get());
  job.lse_partial = reinterpret_cast<float*>(scratch.get() + memory.o_partial);
  char* of_threads = scratch.get() + memory.o_partial + memory.lse_partial;

  // A head's blocks follow each other and share its keys in cache; the last ones, which see the most keys under a
  // causal mask, start first, so that short tasks fill the end.
  const int64_t per_head = job.geometry.row_blocks * job.splits;
  parallel_for(job.geometry.kv_heads * per_head, threads, [&](int64_t task, int thread) {
    const int64_t index = per_head - 1 - task % per_head;
    kernels.forward(job, task / per_head, index / job.splits, static_cast<int32_t>(index % job.splits),
                    of_threads + thread * memory.per_thread);
  });
  if (job.splits == 1) return;
  parallel_for(job.geometry.kv_heads * job.geometry.row_blocks, threads, [&](int64_t task, int) {
    kernels.merge(job, task / job.geometry.row_blocks, task % job.geometry.row_blocks);
  });
}

int64_t forward_scratch_bytes(const Problem& problem, int threads, const char* isa) {
  if (problem.B == 0 || problem.Hk == 0 || problem.qL == 0) return 0;
  Problem bands = problem;  // ids and diagonals are not known here; they only narrow the ranges
  bands.has_segments = bands.has_row_diagonals = false;
  const Tensors none;
  const GeometryStorage geometry(bands, none, problem.H / problem.Hk);
  ForwardJob job{&problem, &none, geometry.view(), 1, 0, nullptr, nullptr};
  set_splits(job);
  return memory_of(job, select_kernels(isa)).total(threads_of(job, geometry.scores(), threads)) +
         GeometryStorage::bytes(problem, problem.H / problem.Hk);
}

}  // namespace flashrt::cpu
