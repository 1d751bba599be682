// Threads that live as long as the process and share the tasks of one call at a time.
#pragma once

#include <cstdint>
#include <functional>

namespace flashrt::cpu {

/// Calls run(task, thread) once for every task in [0, tasks), thread in [0, threads).
///
/// Tasks start in ascending order, so a task may wait for one with a lower number. The caller works too; when another
/// call holds the pool it does all tasks alone. `run` must not throw.
void parallel_for(int64_t tasks, int threads, const std::function<void(int64_t task, int thread)>& run);

}  // namespace flashrt::cpu
