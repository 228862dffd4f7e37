"""Predictions in a plan: operations, memory, traffic, seconds, and the candidates of `parallelism: auto`. They do not
affect the run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

TAKEN = "taken"  # verdict on the candidate that the plan runs


@dataclass(frozen=True, slots=True)
class FlopsPlan:
    """Floating-point operations for one sample: the model's forward and backward (`graph/cost.py`), and the part of the
    forward that activation checkpointing computes a second time."""

    forward: int
    backward: int
    recomputed: int = 0

    @property
    def model(self) -> int:
        """Operations of forward and backward, which the utilisation MFU counts (Chowdhery et al., PaLM, 2022, appendix
        B)."""
        return self.forward + self.backward

    @property
    def hardware(self) -> int:
        """Operations that the hardware executes, recomputation included."""
        return self.model + self.recomputed


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Peak memory of one kind of device in a step, in bytes by category: parameters, gradients, optimizer state,
    parameters that fsdp gathered, activations, tensors of the loss, the batch.

    `is_traced`: measured in the engine's own step on tensors without memory (`planner/footprint`); otherwise derived
    from such a measurement of the same model on one device. `held`: the training set, if it stays on the device.
    """

    name: str
    parameters: int
    gradients: int
    optimizer: int
    gathered: int
    activations: int
    loss: int = 0
    data: int = 0
    is_traced: bool = False
    held: int = 0

    @property
    def of_step(self) -> int:
        """Bytes without the training set: that stays on the device only if there is room."""
        kept = self.parameters + self.gradients + self.optimizer
        return kept + self.gathered + self.activations + self.loss + self.data

    @property
    def total(self) -> int:
        return self.of_step + self.held


@dataclass(frozen=True, slots=True)
class TransferPlan:
    """Bytes that each device sends in a step, within its node or over the network. `seconds` None: the speed of the
    link is unknown."""

    what: str
    link: Literal["node", "network"]
    bytes_sent: int
    num_calls: int
    seconds: float | None


@dataclass(frozen=True, slots=True)
class EstimatePlan:
    """Predicted memory and time on a kind of hardware, for the device that needs the most.

    Seconds are per optimizer step, None if the hardware's speed is unknown. 90 of 100 measured steps are between
    `low_s` and `high_s`. `exposed_s`: communication during which nothing is computed. `data_s`: to make the batches of
    a step, which is waited for if it is longer than the rest. The run does not use it.
    """

    hardware: str
    memory_bytes: int
    device_memory_bytes: int | None
    step_s: float | None
    low_s: float | None
    high_s: float | None
    compute_s: float | None
    exposed_s: float | None
    bubble_s: float | None
    update_s: float | None
    mfu: float | None
    hfu: float | None
    transfers: tuple[TransferPlan, ...]
    assumptions: tuple[str, ...]
    data_s: float | None = None


@dataclass(frozen=True, slots=True)
class CandidatePlan:
    """Mode that `parallelism: auto` considered. Pipelines that differ only in schedule and microbatches are one
    candidate, the best of them."""

    parallelism: str
    memory_bytes: int | None
    step_s: float | None
    verdict: str


@dataclass(frozen=True, slots=True)
class ChoicePlan:
    """Reason why `parallelism: auto` chose the layout.

    `num_traced`: candidates whose memory was measured. `untried`: candidates that would be faster, but do not fit by an
    estimate; they were not measured, since the number of measurements is limited.
    """

    reason: str
    candidates: tuple[CandidatePlan, ...]
    num_considered: int
    assumptions: tuple[str, ...]
    num_traced: int = 0
    untried: tuple[str, ...] = ()
