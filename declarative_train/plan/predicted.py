"""What a plan foretells, and decides nothing by: operations, memory, traffic, seconds, and what `auto` compared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

TAKEN = "taken"  # the verdict on the candidate that a plan runs


@dataclass(frozen=True, slots=True)
class FlopsPlan:
    """Floating-point operations for one sample: what the model needs both ways (`graph/cost.py`), and the forward that
    activation checkpointing computes once more."""

    forward: int
    backward: int
    recomputed: int = 0

    @property
    def model(self) -> int:
        """What utilisation counts: Chowdhery et al., PaLM, 2022, appendix B."""
        return self.forward + self.backward

    @property
    def hardware(self) -> int:
        """What is really computed."""
        return self.model + self.recomputed


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Bytes on one kind of device at the moment of a step at which it holds the most: what the optimizer's step begins
    with and keeps, what fsdp gathers, what waits for the backward or is worked on, what the loss makes, the batch.
    `is_traced`: counted in the engine's own step on tensors without memory (`run/footprint`); else derived from
    such a count of the same model on one device. `held`: the training set, where it lies on the device."""

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
        """Without the training set, which lies on the device only where there is room for it."""
        kept = self.parameters + self.gradients + self.optimizer
        return kept + self.gathered + self.activations + self.loss + self.data

    @property
    def total(self) -> int:
        return self.of_step + self.held


@dataclass(frozen=True, slots=True)
class TransferPlan:
    """What each device sends in a step, inside its node or over the network; `seconds` None: no figure of the link."""

    what: str
    link: Literal["node", "network"]
    bytes_sent: int
    num_calls: int
    seconds: float | None


@dataclass(frozen=True, slots=True)
class EstimatePlan:
    """What the layout should need and take on a kind of hardware, for the device that needs or takes the most. Seconds
    are of one optimizer step, None where the hardware has no figures; `exposed_s` is waiting for others that nothing
    hides. It decides nothing at run time."""

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
    """A way to run that `parallelism: auto` looked at. Of pipelines that differ in schedule and microbatches only, the
    best one stands for all."""

    parallelism: str
    memory_bytes: int | None
    step_s: float | None
    verdict: str


@dataclass(frozen=True, slots=True)
class ChoicePlan:
    """Why `parallelism: auto` became what the layout is. `num_traced` candidates' steps were tried. `untried` would be
    faster, and do not fit by an estimate that no trace confirmed, since no more are tried."""

    reason: str
    candidates: tuple[CandidatePlan, ...]
    num_considered: int
    assumptions: tuple[str, ...]
    num_traced: int = 0
    untried: tuple[str, ...] = ()
