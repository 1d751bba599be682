#include "thread_pool.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>

#include "attention.h"

namespace flashrt::cpu {
namespace {

using Task = std::function<void(int64_t, int)>;
using Worker = std::thread;

/// Waits a little for what is likely to happen at once, before the thread goes to sleep: waking it takes longer. The
/// passes of one call follow each other, and threads end them together.
template <typename Condition>
void wait_briefly(Condition condition) {
  constexpr int kYields = 200;  // tens of microseconds
  for (int i = 0; i < kYields && !condition(); ++i) std::this_thread::yield();
}

class ThreadPool {
 public:
  explicit ThreadPool(int workers) : owner_(getpid()) {
    try {
      for (int i = 0; i < workers; ++i) Worker([this] { work(); }).detach();
    } catch (const std::system_error&) {
      // The system grants no more threads; the caller and those there are do the work.
    }
  }

  /// False, with nothing done, when another call is running.
  bool try_run(int64_t tasks, int threads, const Task& run) {
    std::unique_lock<std::mutex> turn(call_, std::try_to_lock);
    if (!turn) return false;
    {
      std::lock_guard<std::mutex> lock(state_);
      run_ = &run;
      tasks_ = tasks;
      next_ = 0;
      joined_ = 1;
      limit_ = threads;
      ++calls_;
    }
    for (int i = 1; i < threads; ++i) wake_.notify_one();
    drain(run, tasks, 0);
    std::unique_lock<std::mutex> lock(state_);
    run_ = nullptr;  // a worker that wakes up late finds nothing to join
    lock.unlock();
    wait_briefly([this] { return busy_ == 0; });
    lock.lock();
    done_.wait(lock, [this] { return busy_ == 0; });
    return true;
  }

  bool is_of_this_process() const { return owner_ == getpid(); }

 private:
  void drain(const Task& run, int64_t tasks, int thread) {
    for (int64_t task = next_++; task < tasks; task = next_++) run(task, thread);
  }

  [[noreturn]] void work() {
    std::unique_lock<std::mutex> lock(state_);
    for (;;) {
      wake_.wait(lock, [this] { return run_ != nullptr && joined_ < limit_ && next_ < tasks_; });
      const Task& run = *run_;
      const int64_t tasks = tasks_;
      const int thread = joined_++;
      const uint64_t call = calls_;
      ++busy_;
      lock.unlock();
      drain(run, tasks, thread);
      lock.lock();
      if (--busy_ == 0) done_.notify_one();
      lock.unlock();
      wait_briefly([&] { return calls_ != call; });
      lock.lock();
    }
  }

  const pid_t owner_;
  std::mutex call_;
  std::mutex state_;  // guards what follows
  std::condition_variable wake_, done_;
  const Task* run_ = nullptr;
  int64_t tasks_ = 0;
  int joined_ = 0, limit_ = 0;
  // Changed under the lock as well, and read without it by threads that do not sleep yet.
  std::atomic<int> busy_{0};
  std::atomic<uint64_t> calls_{0};
  std::atomic<int64_t> next_{0};
};

/// Never destroyed: its threads would have to be joined while the process exits. Threads do not survive a fork, so a
/// child makes its own pool.
ThreadPool& pool() {
  static std::mutex mutex;
  static ThreadPool* current = nullptr;
  std::lock_guard<std::mutex> lock(mutex);
  if (current == nullptr || !current->is_of_this_process()) current = new ThreadPool(available_threads() - 1);
  return *current;
}

}  // namespace

int available_threads() {
  // The affinity mask at the first call counts, not later changes.
  static const int count = std::max(1, static_cast<int>(Worker::hardware_concurrency()));
  return count;
}

void parallel_for(int64_t tasks, int threads, const Task& run) {
  threads = static_cast<int>(std::min<int64_t>({threads, tasks, available_threads()}));
  if (threads > 1 && pool().try_run(tasks, threads, run)) return;
  for (int64_t task = 0; task < tasks; ++task) run(task, 0);
}

}  // namespace flashrt::cpu
