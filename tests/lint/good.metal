// The constructs that kernels are made of: none of them may give a finding.
#include <metal_simdgroup>
#include <metal_simdgroup_matrix>
#include <metal_stdlib>

using namespace metal;

#define UNROLL _Pragma("clang loop unroll(full)")

constant constexpr float kLog2E = 1.44269504088896340736f;
constant constexpr int kTile = 32, kThreads = 64;

constant bool has_bias [[function_constant(300)]];
constant bool do_causal [[function_constant(301)]];

enum Slots : int32_t {
  kBufX = 0,
  kBufOut = 1,
  kBufParams = 2,
  kBufBias = 3,
};

struct Params {
  int32_t n;
  float scale;
  int64_t stride;
};

template <int TR, int TC>
struct Tile {
  static constant constexpr int kCount = TR * TC;
  vec<float, 2> frag[TR * TC];
  METAL_FUNC void clear() thread {
    UNROLL
    for (short f = 0; f < kCount; ++f) {
      frag[f] = vec<float, 2>(0.0f, 0.0f);
    }
  }
};

template <typename T, int N>
struct Chunk {
  T v[N];
};

template <typename TA, typename TB>
METAL_FUNC void mma(thread vec<float, 2>& acc, thread const vec<TA, 2>& a, thread const vec<TB, 2>& b) {
  simdgroup_matrix<float, 8, 8> c_mat;
  simdgroup_matrix<TA, 8, 8> a_mat;
  simdgroup_matrix<TB, 8, 8> b_mat;
  reinterpret_cast<thread vec<float, 2>&>(c_mat.thread_elements()) = acc;
  reinterpret_cast<thread vec<TA, 2>&>(a_mat.thread_elements()) = a;
  reinterpret_cast<thread vec<TB, 2>&>(b_mat.thread_elements()) = b;
  simdgroup_multiply_accumulate(c_mat, a_mat, b_mat, c_mat);
  acc = reinterpret_cast<thread vec<float, 2>&>(c_mat.thread_elements());
}

template <typename T>
METAL_FUNC void stage(threadgroup T* tile, device const T* src, int n, ushort thread_index) {
  for (int i = thread_index; i < kTile; i += kThreads) {
    if (i < n) {
      *((threadgroup Chunk<T, 4>*)(tile + 4 * i)) = *((device const Chunk<T, 4>*)(src + 4 * i));
    } else {
      tile[4 * i] = T(0);
    }
  }
}

METAL_FUNC float row_max(float x) {
  x = max(x, simd_shuffle_xor(x, ushort(1)));
  return max(x, simd_shuffle_xor(x, ushort(8)));
}

[[kernel, max_total_threads_per_threadgroup(kThreads)]]
void good(device const bfloat* x [[buffer(kBufX)]], device float* out [[buffer(kBufOut)]],
          constant Params& params [[buffer(kBufParams)]],
          device const float* bias [[buffer(kBufBias), function_constant(has_bias)]],
          uint3 group [[threadgroup_position_in_grid]], ushort simd [[simdgroup_index_in_threadgroup]],
          ushort lane [[thread_index_in_simdgroup]]) {
  threadgroup bfloat tile[4 * kTile];
  const ushort thread_index = simd * 32 + lane;
  stage(tile, x + int64_t(group.x) * params.stride, params.n, thread_index);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  Tile<1, 2> acc;
  acc.clear();
  const vec<bfloat, 2> b = vec<bfloat, 2>(tile[lane], tile[lane + 1]);
  const vec<float, 2> a = vec<float, 2>(1.0f, 0.0f);
  mma(acc.frag[0], a, b);
  mma(acc.frag[1], b, b);
  float value = fast::exp2(fma(acc.frag[0].x, params.scale * kLog2E, -row_max(float(tile[lane]))));
  if (has_bias) {
    value += bias[group.x];
  }
  if (simd_any(value > 0.0f)) {
    simdgroup_barrier(mem_flags::mem_threadgroup);
    value = simd_sum(value);
  }
  if (do_causal && lane < 16) {
    value = select(value, -numeric_limits<float>::infinity(), isnan(value));
  }
  if (lane == 0) {
    out[group.x] = as_type<float>(as_type<uint>(value) | 1u);
  }
}
