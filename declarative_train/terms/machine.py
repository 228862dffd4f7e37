"""What this machine gives to a process, on every system that Python runs on."""

from __future__ import annotations

import os


def num_cores() -> int:
    """That this process may use: a container or a scheduler may give fewer than there are. macOS cannot tell."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
