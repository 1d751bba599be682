"""What a process holds."""

from __future__ import annotations

import resource
import sys
from pathlib import Path


def peak_bytes() -> int:
    """Return the most memory that this process has held at once."""
    if sys.platform == "darwin":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # getrusage would count what the process was forked from.
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def restart_peak() -> int:
    """Forget what was held before, where the system can, and return what is held now.

    On macOS a peak lasts as long as its process; there the result is the peak so far.
    """
    clear = Path("/proc/self/clear_refs")
    if clear.exists():
        clear.write_text("5", encoding="ascii")
    return peak_bytes()
