"""Memory of a GPU that belongs to no live tensor: CUDA's context, workspaces, NCCL's buffers, rounding by the
allocator.

All figures are published by others; none was measured for dtrain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from declarative_train.components.hardware import HARDWARE

if TYPE_CHECKING:
    from declarative_train.plan.plan import Plan

MIB = 2**20
CONTEXT_BYTES = 500 * MIB
WORKSPACE_BYTES = 8_519_680
WIDE_WORKSPACE_BYTES = 32 * MIB
COMMUNICATOR_BYTES = 500 * MIB
SEGMENT_BYTES = 20 * MIB
STREAMS = 3  # compute, gathers, reductions: each has segments of its own
_WIDE = ("h", "b", "gb", "gh", "rtx-5")  # GPUs with compute capability 9.0 or more, by the beginning of their names


@dataclass(frozen=True, slots=True)
class RuntimeMemory:
    """Memory that a GPU needs besides live tensors, for one use. `what`: the use, such as the CUDA context. `source`:
    where the figure was published."""

    what: str
    num_bytes: int
    source: str


def runtime_memory(plan: Plan) -> list[RuntimeMemory]:
    """Return the memory that each GPU of a plan needs besides its live tensors, as one entry for each use."""
    hardware = None if plan.layout.hardware is None else HARDWARE[plan.layout.hardware]
    is_wide = hardware is not None and hardware.name.startswith(_WIDE)
    number = sum(axis.size > 1 for axis in plan.layout.mesh)
    found = [
        RuntimeMemory(
            "CUDA context and kernels",
            CONTEXT_BYTES,
            "300 MB with lazy loading, 700 MB to 1 GB before (pytorch/pytorch issues 107667, 37250, 28394)",
        ),
        RuntimeMemory(
            "cuBLAS workspace",
            WIDE_WORKSPACE_BYTES if is_wide else WORKSPACE_BYTES,
            "32 MiB from Hopper on (cuBLAS, cublasSetWorkspace), 8,519,680 bytes before (torch's default)",
        ),
        RuntimeMemory(
            "allocator: the last segment of each stream is half empty",
            STREAMS * SEGMENT_BYTES // 2,
            "blocks of 512 bytes, segments of 2 MiB and 20 MiB (torch, c10/core/AllocatorConfig.h)",
        ),
    ]
    if number:
        found.append(
            RuntimeMemory(
                f"NCCL, {number} of its communicators",
                number * COMMUNICATOR_BYTES,
                "1.06 GB on 8 H100 with the context (NVIDIA/nccl issue 1685); 1.6 GB seen for one (issue 864)",
            )
        )
    return found
