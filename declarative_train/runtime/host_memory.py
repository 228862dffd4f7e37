"""The memory of a rank that computes on the CPU: kept from step to step, as torch's allocators keep that of a GPU.

Each step frees its activations, and the C library gives large pieces back to the system, which has to clear every page
anew in the next step: 3,000 page faults and a twentieth of the time of a small GPT's step, a tenth of a small CNN's
(measured). `mallopt(3)` of glibc tells it not to. What a rank holds stays that of its largest moment, which is what the
plan and the logs show anyway.
"""

from __future__ import annotations

import ctypes
import sys

# <malloc.h>
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_LARGEST_KEPT = 32 << 20  # the most that glibc takes as M_MMAP_THRESHOLD; larger pieces come and go as before
_NEVER = -1


def keep_freed_memory() -> None:
    """For this process, from now on; nothing where the C library has no such switch."""
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # musl has none
        mallopt(_M_MMAP_THRESHOLD, _LARGEST_KEPT)
        mallopt(_M_TRIM_THRESHOLD, _NEVER)
