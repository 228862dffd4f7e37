"""What the loop needs of a way to run. One leaf per mode; the loop knows no mode."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from declarative_train.components.component import Collective
from declarative_train.data.batch import Batch

if TYPE_CHECKING:
    import torch
    from torch import nn

    from declarative_train.runtime.loss_scale import LossScale
    from declarative_train.runtime.metrics import Metrics
    from declarative_train.runtime.objective import Objective
    from declarative_train.runtime.optimizers import Optimizers


@dataclass(slots=True)
class StepResult:
    """Device tensors, not read by the host until a logging step.

    sums       this rank's sum of every term (L,), one entry per chunk (none on a rank without the loss)
    counts     what each term is divided by, over the global batch: L numbers, or a float64 tensor (L,)
    grad_norm  of the whole model, before clipping; None when nothing asked for it
    finite     a bool tensor, agreed by all ranks; None when nothing guards the step
    is_added   the sums are those of all ranks already
    """

    sums: Sequence[tuple[torch.Tensor, ...]]
    counts: Sequence[float] | torch.Tensor
    grad_norm: torch.Tensor | None = None
    finite: torch.Tensor | None = None
    is_added: bool = False


class Engine(ABC):
    """Holds the model, the optimizer and the process groups of one rank."""

    model: nn.Module  # parameters under the plan's names (`named_parameters` of what this rank holds)
    optimizer: Optimizers
    objective: Objective
    device: torch.device
    ranks: Collective  # over the data-parallel ranks
    dp_rank: int  # which slots of a global batch are this rank's
    metrics: Metrics  # those of training, over the rows of the steps since they were last reset
    loss_scale: LossScale | None  # fp16 only
    is_replicated = False  # every rank holds the whole model and all that its optimizer remembers

    @abstractmethod
    def step(
        self, step: int, batches: Sequence[Batch], *, num_rows: int, lr_factor: float, measure: bool
    ) -> StepResult:
        """Forward and backward of one global batch's share (a Batch per accumulation chunk), clip, update.

        `num_rows` are the real rows of the global batch; `measure`: the gradient norm is wanted.
        """

    @abstractmethod
    def set_training(self, training: bool) -> None:
        """Between steps and evaluation. Before an evaluation the ranks' running statistics are made equal."""

    @abstractmethod
    def forward(self, batch: Batch) -> dict[str, torch.Tensor] | None:
        """Evaluation: no gradients, frozen statistics. Every name that the objective reads; None on a rank that has
        no outputs (an inner pipeline stage). All ranks must call it equally often."""

    @abstractmethod
    def synchronize_buffers(self) -> None:
        """Before saving: buffers that each rank moved by its own rows become their mean."""
