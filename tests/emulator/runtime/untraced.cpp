// The hooks of trace mode in modes that do not trace.
#include "machine.h"

namespace emu {
void trace_begin_launch(Launch*) {}
void trace_end_launch(Launch*) {}
void trace_begin_threadgroup(Worker&) {}
void trace_begin_worker(Worker&) {}
}  // namespace emu
