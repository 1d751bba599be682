// What a compiled kernel and the emulator's runtime know of each other.
//
// Kernels call these functions out of line: the runtime is never instrumented, so that trace and asan modes see the
// kernel's own memory accesses and nothing else.
#pragma once

#pragma GCC visibility push(default)
extern "C" {

typedef __UINT8_TYPE__ emu_u8;
typedef __UINT32_TYPE__ emu_u32;
typedef __UINT64_TYPE__ emu_u64;

/// The two elements of an 8x8 fragment that one lane holds.
struct emu_pair {
  float x;
  float y;
};

enum emu_space { kEmuNone, kEmuDevice, kEmuConstant, kEmuThreadgroup };

enum emu_source {
  kEmuBuffer,
  kEmuThreadPositionInGrid,
  kEmuThreadPositionInThreadgroup,
  kEmuThreadIndexInThreadgroup,
  kEmuThreadgroupPositionInGrid,
  kEmuThreadgroupsPerGrid,
  kEmuThreadsPerGrid,
  kEmuThreadsPerThreadgroup,
  kEmuThreadIndexInSimdgroup,
  kEmuSimdgroupIndexInThreadgroup,
  kEmuSimdgroupsPerThreadgroup,
  kEmuThreadsPerSimdgroup,
};

/// One kernel argument as its text says.
struct emu_param {
  const char* name;
  emu_source source;
  int index;  ///< buffer slot
  emu_space space;
  bool (*gate)();         ///< null, or the value of its function constant
  const char* gate_text;  ///< null, or that constant's name
};

/// What C++ deduced about the same argument.
struct emu_param_type {
  bool is_pointer;
  bool is_const;
  emu_u32 size;  ///< of what it points or refers to
};

/// Everything a lane needs to fetch its arguments.
struct emu_thread {
  void* const* buffers;
  emu_u32 threadgroup[3];
  emu_u32 threadgroups[3];
  emu_u32 threads[3];  ///< per threadgroup
  emu_u32 thread;      ///< index in threadgroup
};

struct emu_kernel {
  const char* name;
  const emu_param* params;
  const emu_param_type* types;
  emu_u32 n_params;
  emu_u32 max_threads;  ///< 0: not stated
  void (*invoke)(const emu_thread*);
};

struct emu_constant {
  const char* name;
  int index;
  emu_u32 size;
  void* value;
  bool is_set;
};

/// A kernel library's one exported symbol, `emu_module_info`: the two lists that its linker gathered.
struct emu_module {
  const emu_kernel* const* kernels;
  const emu_kernel* const* kernels_end;
  emu_constant* const* constants;  ///< those that instantiated code reads
  emu_constant* const* constants_end;
};

enum emu_barrier_scope { kEmuSimdgroupScope, kEmuThreadgroupScope };
enum emu_memory { kEmuMemoryNone = 0, kEmuMemoryDevice = 1, kEmuMemoryThreadgroup = 2 };
enum emu_shuffle_kind { kEmuXor, kEmuIndex, kEmuUp, kEmuDown };
enum emu_reduction { kEmuSum, kEmuProduct, kEmuMin, kEmuMax, kEmuAnd, kEmuOr, kEmuInclusiveSum };
enum emu_type { kEmuF32, kEmuF16, kEmuI32, kEmuU32, kEmuI64, kEmuU64 };

// Collectives: every lane of the simdgroup has to call them. `convergent` and `nomerge` keep the compiler from joining
// calls that differ, so that a call site stands for one statement of the source.
#define EMU_COLLECTIVE __attribute__((convergent, nomerge))

EMU_COLLECTIVE emu_pair emu_multiply_accumulate(emu_pair a, emu_pair b, emu_pair c);
EMU_COLLECTIVE emu_pair emu_multiply_accumulate_row_major(emu_pair a, emu_pair b, emu_pair c);
EMU_COLLECTIVE emu_u64 emu_shuffle(emu_shuffle_kind kind, emu_u64 bits, emu_u32 by);
EMU_COLLECTIVE emu_u64 emu_reduce(emu_reduction what, emu_type type, emu_u64 bits);
EMU_COLLECTIVE void emu_barrier(emu_barrier_scope scope, emu_u32 memory);

emu_u32 emu_lane_index();

/// Storage of one threadgroup array; the first lane to ask allocates it.
void* emu_threadgroup_array(emu_u32 id, const char* name, emu_u64 size, emu_u64 element_size, emu_u64 alignment);

float emu_exp2(float x);
}
#pragma GCC visibility pop
