"""Constants of the time model: one table, each with its meaning and its source.

Figures of devices (peak, bandwidths) are in `components/hardware`. A calibration replaces constants and figures by
those of one machine (`planner/calibration.py`). Constants marked "fitted" were fitted to published step times by
`python -m tests.planner.fit`; their errors are in docs/planner-times.md."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import log2
from typing import Literal

from declarative_train.components.hardware.hardware import Hardware

Link = Literal["node", "network"]


@dataclass(frozen=True, slots=True)
class Constants:
    """Constants of the time model. The defaults are for the engine of dtrain.

    product_ramp_s         seconds added to each matrix product: start and end do not use the whole device
    attention_efficiency   rate of fused attention / rate of large products
    convolution_efficiency rate of convolutions (channels last) / rate of large products
    memory_efficiency      part of the memory bandwidth that kernels reach
    call_s                 host time for one operation: Python, dispatcher, launch
    link_efficiency        part of a link's bandwidth that large collectives reach inside a node
    network_efficiency     part of a link's bandwidth that large collectives reach between nodes
    link_latency_s         latency of a collective inside a node, for each rank that it passes
    network_latency_s      latency of a collective between nodes, for each doubling of the nodes
    step_s                 time of a step that does not depend on the model: batch, loop, optimizer
    tensor_s               optimizer time for each tensor, if each has its own kernels (CPUs)
    shard_call_s           host time for a collective of fsdp: hooks, copies, views (CPUs)
    stage_call_s           host time for the forward or backward of a microbatch in a stage (CPUs)
    draw_s                 time to draw a random number for dropout (CPUs)
    fused_traffic          part of the memory traffic of elementwise operations left after compilation
    fused_calls            part of the kernels of elementwise operations left after compilation
    assemble_per_s         bytes per second that a process gathers from rows in memory into a batch
    decode_per_s           values per second that a process reads and decodes from pictures
    runs_ahead             host, links and device work at the same time (GPUs, not CPUs)
    scale                  factor for predicted times: measured / predicted in a calibration, else 1
    error                  |ln(measured / predicted)| that 90 of 100 predictions do not exceed"""

    product_ramp_s: float = 46e-6  # fitted
    # FlashAttention-2 reaches up to 0.73 of the peak of an A100 forward and 0.63 backward (Dao, 2023), 0.35 to 0.4 of
    # an H100's (Shah et al., FlashAttention-3, 2024)
    attention_efficiency: float = 0.6
    convolution_efficiency: float = 0.45  # measured: docs/performance.md
    memory_efficiency: float = 0.86  # 1.75 of 2.04 TB/s on an A100 (BabelStream)
    call_s: float = 10e-6  # assumed
    link_efficiency: float = 0.78  # 235 of 300 GB/s on A100s with NVSwitch (nccl-tests, all-reduce)
    network_efficiency: float = 0.53  # fitted
    link_latency_s: float = 2.1e-6  # fitted
    network_latency_s: float = 20e-6  # assumed: published step times hardly depend on it
    step_s: float = 2e-3  # assumed
    tensor_s: float = 0.0
    shard_call_s: float = 0.0
    stage_call_s: float = 0.0
    draw_s: float = 0.0
    fused_traffic: float = 0.4  # assumed, as the next: compared with torchtitan in docs/planner-times.md
    fused_calls: float = 0.3  # a chain of about three becomes one kernel
    assemble_per_s: float = 1e9  # 2.8e9 on a core of a server; statistics and casts take time too
    decode_per_s: float = 58e6  # 3 x 224 x 224 values from a JPEG of 500 x 375 pixels in 2.6 ms (Pillow)
    runs_ahead: bool = True
    scale: float = 1.0
    error: float = 0.31  # of published steps on H100s


DEFAULT = Constants()
# the engine of the rows that the constants are fitted to: its own time for each operation and step
MEGATRON = replace(DEFAULT, call_s=41e-6, step_s=7e-3, error=0.145)


@dataclass(frozen=True, slots=True, eq=False)
class Machine:
    """Kind of device with its speeds and the constants of the time model. The speeds of memory and links are in bytes
    per second, and exist only for hardware whose figures are known."""

    hardware: Hardware
    constants: Constants = DEFAULT

    @property
    def memory_per_s(self) -> float:
        assert self.hardware.memory_per_s is not None
        return self.hardware.memory_per_s * self.constants.memory_efficiency

    def link_per_s(self, link: Link) -> float:
        figure = self.hardware.link_per_s if link == "node" else self.hardware.network_per_s
        assert figure is not None
        return figure * (self.constants.link_efficiency if link == "node" else self.constants.network_efficiency)

    def latency_s(self, members: int, num_nodes: int = 1) -> float:
        """Return the latency of a collective in seconds. `members`: number of ranks in each node, which form a ring.
        `num_nodes`: number of nodes, which form a tree."""
        constants = self.constants
        return constants.link_latency_s * (members - 1) + constants.network_latency_s * log2(num_nodes)
