"""Predictions in a plan, which decide nothing: operations, memory, traffic, seconds, and the candidates of `auto`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

TAKEN = "taken"  # verdict on the candidate that the plan runs


@dataclass(frozen=True, slots=True)
class FlopsPlan:
    """Floating-point operations for one sample: forward and backward of the model (`graph/cost.py`), and the forward
    that activation checkpointing computes again."""

    forward: int
    backward: int
    recomputed: int = 0

    @property
    def model(self) -> int:
        """Operations that utilisation counts: Chowdhery et al., PaLM, 2022, appendix B."""
        return self.forward + self.backward

    @property
    def hardware(self) -> int:
        """Operations that are computed, recomputation included."""
        return self.model + self.recomputed


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Peak memory in bytes of one kind of device in a step, by category: parameters, gradients and optimizer state,
    parameters gathered by fsdp, activations that wait for the backward or are in use, tensors of the loss, the batch.

    `is_traced`: counted in the engine's own step on tensors without memory (`planner/footprint`); otherwise derived
    from such a count of the same model on one device. `held`: the training set, if it is on the device.
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
        """Bytes without the training set, which is on the device only if there is room for it."""
        kept = self.parameters + self.gradients + self.optimizer
        return kept + self.gathered + self.activations + self.loss + self.data

    @property
    def total(self) -> int:
        return self.of_step + self.held


@dataclass(frozen=True, slots=True)
class TransferPlan:
    """Bytes that each device sends in a step, within its node or over the network; `seconds` None: the speed of the
    link is unknown."""

    what: str
    link: Literal["node", "network"]
    bytes_sent: int
    num_calls: int
    seconds: float | None


@dataclass(frozen=True, slots=True)
class EstimatePlan:
    """Predicted memory and time of the layout on a kind of hardware, for the device that needs the most.

    Seconds are of one optimizer step, None if the hardware has no figures; `exposed_s` is communication that no
    computation hides. It decides nothing at run time.
    """

    hardware: str
    memory_bytes: int
    device_memory_bytes: int | None
    step_s: float | None
    compute_s: float | None
    exposed_s: float | None
    bubble_s: float | None
    update_s: float | None
    mfu: float | None
    hfu: float | None
    transfers: tuple[TransferPlan, ...]
    assumptions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CandidatePlan:
    """Mode that `parallelism: auto` considered. Of pipelines that differ only in schedule and microbatches, the best
    one represents all."""

    parallelism: str
    memory_bytes: int | None
    step_s: float | None
    verdict: str


@dataclass(frozen=True, slots=True)
class ChoicePlan:
    """Reason why `parallelism: auto` chose the layout.

    `num_traced` candidates were measured with a traced step. `untried` would be faster, but do not fit by an estimate
    that no trace confirmed, as no more are traced.
    """

    reason: str
    candidates: tuple[CandidatePlan, ...]
    num_considered: int
    assumptions: tuple[str, ...]
    num_traced: int = 0
    untried: tuple[str, ...] = ()
