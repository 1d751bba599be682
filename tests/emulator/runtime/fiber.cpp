// Lanes as fibers: stacks, the switch between them, and what runs when one ends.
#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>

#include "machine.h"

#if defined(EMU_ASAN)
#include <sanitizer/common_interface_defs.h>
#endif

// The callee-saved registers of the System V ABI go to the stack. A plain return is predicted well: the lane that is
// left and the lane that is entered nearly always stand at the same call.
asm(R"(
.text
.p2align 5
.globl emu_switch
.type emu_switch,@function
emu_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq (%rsi), %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  retq
.size emu_switch,.-emu_switch
)");

namespace emu {

void ensure_stacks(Worker& worker, uint32_t n) {
  if (worker.stacks == 0) {
    const uint64_t bytes = (kMaxThreads + 1) * kStackBytes;
    void* raw = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (raw == MAP_FAILED) {
      perror("emulator: stacks");
      abort();
    }
    worker.stacks = (reinterpret_cast<uint64_t>(raw) + kStackBytes - 1) & ~(kStackBytes - 1);
  }
  for (; worker.n_stacks < n; ++worker.n_stacks) {  // a guard page between the Lane and its stack
    const uint64_t region = worker.stacks + worker.n_stacks * kStackBytes;
    if (mprotect(reinterpret_cast<void*>(region + kStackPage), kStackPage, PROT_NONE) != 0) {
      perror("emulator: guard page");
      abort();
    }
  }
}

void prepare_lane(Lane* lane, uint64_t region) {
  // Stack tops differ by lane for the same reason as the Lanes' places do.
  const uint64_t colour = (region / kStackBytes) % 32;
  uint64_t top = region + kStackBytes - 64 - colour * 128;
  uint64_t* sp = reinterpret_cast<uint64_t*>(top & ~uint64_t(63));
  *--sp = 0;  // the frame emu_lane_main would return to: it never does
  *--sp = reinterpret_cast<uint64_t>(&emu_lane_main);
  for (int i = 0; i < 6; ++i) *--sp = 0;
  lane->sp = sp;
}

#if defined(EMU_ASAN)

namespace {

const void* main_bottom;  // the host runs one worker on one OS thread
size_t main_size;

}  // namespace

void arrive_on_stack() {
  const void* bottom;
  size_t size;
  __sanitizer_finish_switch_fiber(nullptr, &bottom, &size);
  if (main_bottom == nullptr) {  // the first switch comes from there
    main_bottom = bottom;
    main_size = size;
  }
}

void switch_lane(Lane* from, Lane* to) {
  const bool to_main = to == &to->worker->main;
  const uint64_t region = reinterpret_cast<uint64_t>(to) & ~(kStackBytes - 1);
  if (to_main) {
    __sanitizer_start_switch_fiber(nullptr, main_bottom, main_size);
  } else {
    __sanitizer_start_switch_fiber(nullptr, reinterpret_cast<void*>(region + 2 * kStackPage),
                                   kStackBytes - 2 * kStackPage);
  }
  emu_switch(from, to);
  arrive_on_stack();
}

#endif

extern "C" void emu_lane_main() {
  arrive_on_stack();
  Lane* lane = self();
  emu_thread thread = lane->simdgroup->threadgroup->thread;
  thread.thread = lane->thread;
  worker_of(lane)->launch->kernel->invoke(&thread);
  finish_lane(lane);
}

}  // namespace emu
