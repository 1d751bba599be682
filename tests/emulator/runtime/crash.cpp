// A lane that touches unmapped memory, or outgrows its stack, ends its launch with a report instead of the process.
#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <cstdio>
#include <cstdlib>

#include "machine.h"

namespace emu {
namespace {

constexpr uint64_t kSignalStackBytes = 64 * 1024;
constexpr int kSignals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL};

// Stacks of the running workers, for the handler.
constexpr uint32_t kMaxRunning = 256;
std::atomic<uint64_t> running[kMaxRunning];

struct sigaction previous[sizeof kSignals / sizeof *kSignals];

[[noreturn]] void crashed(Lane* lane, void* pc, uint64_t address, int signal) {
  const uint64_t region = reinterpret_cast<uint64_t>(lane) & ~(kStackBytes - 1);
  if (address - region < 2 * kStackPage) {
    fatal(lane, kFaultCrash, pc, nullptr, "crash: thread %u has used up its stack at $0", lane->thread);
  }
  if (signal == SIGSEGV || signal == SIGBUS) {
    fatal(lane, kFaultCrash, pc, nullptr, "crash: thread %u touches unmapped memory, address %#llx, at $0",
          lane->thread, static_cast<unsigned long long>(address));
  }
  fatal(lane, kFaultCrash, pc, nullptr, "crash: thread %u stops with signal %d at $0", lane->thread, signal);
}

/// Continues in crashed(), on the lane's stack from its top: what is on it is not needed any more.
void handle(int signal, siginfo_t* info, void* raw) {
  auto* context = static_cast<ucontext_t*>(raw);
  greg_t* registers = context->uc_mcontext.gregs;
  const uint64_t sp = uint64_t(registers[REG_RSP]);
  for (const std::atomic<uint64_t>& stacks : running) {
    const uint64_t begin = stacks.load(std::memory_order_relaxed);
    if (begin == 0 || sp - begin >= kMaxThreads * kStackBytes) continue;
    const uint64_t region = sp & ~(kStackBytes - 1);
    registers[REG_RDI] = greg_t(lane_of_region(region));
    registers[REG_RSI] = registers[REG_RIP] + 1;  // as if it were a return address
    registers[REG_RDX] = greg_t(info->si_addr);
    registers[REG_RCX] = signal;
    registers[REG_RSP] = greg_t(region + kStackBytes - 64 - 8);
    registers[REG_RIP] = greg_t(&crashed);
    return;
  }
  // Not ours. A handler like this one (every mode's runtime has its own) is asked in turn, so that all of them stay;
  // any other one ends the process: let it happen again under it.
  for (size_t i = 0; i < sizeof kSignals / sizeof *kSignals; ++i) {
    if (kSignals[i] != signal) continue;
    if (previous[i].sa_flags & SA_SIGINFO) {
      previous[i].sa_sigaction(signal, info, raw);
    } else {
      sigaction(signal, &previous[i], nullptr);
    }
  }
}

}  // namespace

void catch_crashes() {
  static std::once_flag once;
  std::call_once(once, [] {
    struct sigaction action = {};
    action.sa_sigaction = handle;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < sizeof kSignals / sizeof *kSignals; ++i) sigaction(kSignals[i], &action, &previous[i]);
  });
}

CrashGuard::CrashGuard(const Worker& worker) {
  stack_ = mmap(nullptr, kSignalStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (stack_ == MAP_FAILED) {
    perror("emulator: signal stack");
    abort();
  }
  stack_t mine = {};
  mine.ss_sp = stack_;
  mine.ss_size = kSignalStackBytes;
  sigaltstack(&mine, &before_);
  for (slot_ = 0; slot_ < kMaxRunning; ++slot_) {
    uint64_t none = 0;
    if (running[slot_].compare_exchange_strong(none, worker.stacks)) break;
  }
}

CrashGuard::~CrashGuard() {
  if (slot_ < kMaxRunning) running[slot_].store(0);
  sigaltstack(&before_, nullptr);
  munmap(stack_, kSignalStackBytes);
}

}  // namespace emu
