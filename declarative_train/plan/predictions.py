"""Predictions in a plan: operations, memory, traffic, time, and the candidates of `parallelism: auto`. They do not
change the run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from declarative_train.core.amounts import time_in_words

TAKEN = "taken"  # verdict on the chosen candidate


@dataclass(frozen=True, slots=True)
class FlopsPlan:
    """Floating-point operations for one sample: forward and backward of the model (`graph/cost.py`), and the part of
    the forward that activation checkpointing repeats."""

    forward: int
    backward: int
    recomputed: int = 0

    @property
    def model(self) -> int:
        """Operations of forward and backward without recomputation. The model FLOPs utilisation (MFU) is computed from
        them (Chowdhery et al., PaLM, 2022, appendix B)."""
        return self.forward + self.backward

    @property
    def hardware(self) -> int:
        """Operations that the hardware executes: forward, backward and recomputation."""
        return self.model + self.recomputed


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Peak memory of a step on one kind of device, in bytes by category.

    `gathered`: parameters that fsdp gathered. `activations`: tensors that are kept for the backward. `loss`: tensors of
    the loss. `data`: the batch. `held`: the training set, if it is kept on the device.

    `is_traced`: the bytes come from a trace of this plan's step on tensors without memory (`planner/footprint`).
    Otherwise they were computed from shapes (`planner/estimate/memory.py`).
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
        """Bytes that a step needs, without the training set. The set is kept on the device only if it fits."""
        kept = self.parameters + self.gradients + self.optimizer
        return kept + self.gathered + self.activations + self.loss + self.data

    @property
    def total(self) -> int:
        return self.of_step + self.held


@dataclass(frozen=True, slots=True)
class TransferPlan:
    """Communication of one kind in a step.

    `what`: its name. `link`: within a node, or over the network between nodes. `bytes_sent`: bytes that each device
    sends. `num_calls`: number of collectives or messages. `seconds`: None if the speed of the link is unknown.
    """

    what: str
    link: Literal["node", "network"]
    bytes_sent: int
    num_calls: int
    seconds: float | None


@dataclass(frozen=True, slots=True)
class EstimatePlan:
    """Predicted memory and time of a step on one kind of hardware, for the device that needs most.

    memory_bytes          memory of a step
    device_memory_bytes   memory of the device; None if unknown
    low_s, high_s         range that contains 90 of 100 measured steps
    exposed_s             communication while nothing is computed
    bubble_s              idle time in the pipeline
    data_s                time to make the batches of a step; a shorter step waits for them
    mfu, hfu              share of the device's peak rate, without and with recomputed operations

    Seconds are per optimizer step; None if the speed of the hardware is unknown.
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
    """Mode that `parallelism: auto` considered. Of pipelines that differ only in schedule and microbatches, only the
    best one is a candidate. `verdict`: reason why the mode was chosen or rejected. `is_least`: `step_s` is a lower
    bound."""

    parallelism: str
    memory_bytes: int | None
    step_s: float | None
    verdict: str
    is_least: bool = False

    @property
    def step(self) -> str:
        """Predicted time of a step as text; "" if unknown."""
        return "" if self.step_s is None else f"{'> ' * self.is_least}{time_in_words(self.step_s)}"


@dataclass(frozen=True, slots=True)
class ChoicePlan:
    """Choice of `parallelism: auto`, with its reason and all candidates.

    `num_traced`: number of candidates whose memory was traced. `untried`: names of candidates that were not traced,
    although they are predicted to be faster: by their estimates they do not fit into memory.
    """

    reason: str
    candidates: tuple[CandidatePlan, ...]
    num_considered: int
    assumptions: tuple[str, ...]
    num_traced: int = 0
    untried: tuple[str, ...] = ()
