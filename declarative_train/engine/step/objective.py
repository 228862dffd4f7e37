"""The terms of the objective, ready to be computed: sums and counts of a chunk, from what the model gave."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, cast

import torch
from torch import nn

from declarative_train.components.component import LossModule
from declarative_train.components.layers.sample_groups import HoldsSamples
from declarative_train.components.losses import LOSSES
from declarative_train.graph.chunked import with_chunked_heads

if TYPE_CHECKING:
    from declarative_train.core.tensor_spec import TensorSpec
    from declarative_train.plan.plan import Plan, TermPlan

Values = Mapping[str, torch.Tensor]


class Objective:
    """`terms` in the order of the plan; `modules[i]` computes term i. L terms."""

    def __init__(self, plan: Plan, device: torch.device) -> None:
        specs = tensor_specs(plan)
        self._device = device
        self.terms: tuple[TermPlan, ...] = plan.objective.terms
        self.weights = tuple(term.weight for term in self.terms)
        self.bounds = tuple(LOSSES.read(term.component).bounds for term in self.terms)
        self.modules = nn.ModuleList(cast(nn.Module, build_term(term, specs)) for term in self.terms).to(device)
        self._calls = [
            (cast(LossModule, module), term.input, term.target, term.mask)
            for module, term in zip(self.modules, self.terms, strict=True)
        ]
        rows = [module.items_per_row for module, *_ in self._calls]
        # what each term is divided by per row, when that does not depend on the values
        self.items_per_row = None if None in rows else tuple(cast(list[float], rows))

    def sums(self, values: Values, row_weight: torch.Tensor | None) -> tuple[torch.Tensor, ...]:
        """L scalars of one chunk, with their graph."""
        return tuple(
            module.sum(
                values[source],
                None if target is None else values[target],
                None if mask is None else values[mask],
                row_weight,
            )
            for module, source, target, mask in self._calls
        )

    def rests(self) -> list[tuple[int, torch.Tensor]]:
        """(term, this rank's sum) of what still waited for more rows after the last batch of an evaluation."""
        return [
            (index, module.take_rest()) for index, module in enumerate(self.modules) if isinstance(module, HoldsSamples)
        ]

    def counts(self, values: Values, row_weight: torch.Tensor | None, num_rows: int) -> torch.Tensor:
        """(L,) float64, on the device: this chunk's part of what the terms are divided by. Needs the batch alone, no
        outputs."""
        counts = [
            module.count(
                None if target is None else values.get(target),  # a target that a node gives sets no count
                None if mask is None else values[mask],
                row_weight,
                num_rows,
            )
            for module, _, target, mask in self._calls
        ]
        # what follows from the number of rows alone was made of no tensor, so on the CPU
        return torch.stack([count.to(self._device, non_blocking=True) for count in counts])

    def as_values(self, sums: torch.Tensor, counts: torch.Tensor) -> dict[str, float]:
        """`loss`, and `loss/<term>` when there are several, from (L,) sums and counts over everything."""
        return self.named([mean(*pair) for pair in zip(sums.tolist(), counts.tolist(), strict=True)])

    def named(self, per_term: Sequence[float | None]) -> dict[str, float]:
        """The same from each term's value. None: without a valid item a term adds nothing to the loss, and is nan
        itself; so is the loss when no term has any."""
        parts = [weight * value for weight, value in zip(self.weights, per_term, strict=True) if value is not None]
        values = {"loss": sum(parts) if parts else math.nan}
        if len(self.terms) > 1:
            for term, value in zip(self.terms, per_term, strict=True):
                values[f"loss/{term.name}"] = math.nan if value is None else value
        return values


def mean(total: float, count: float) -> float | None:
    """None where there was no valid item."""
    return total / count if count else None


def build_term(term: TermPlan, specs: Mapping[str, TensorSpec]) -> LossModule:
    """The module of one term; `specs` as in `tensor_specs`."""
    return LOSSES.read(term.component).build(
        specs[term.input],
        None if term.target is None else specs[term.target],
        None if term.mask is None else specs[term.mask],
    )


def as_run(plan: Plan) -> Plan:
    """The plan with the graph that a rank runs: losses in chunks are computed where their scores were."""
    if all(term.component.get("chunks") is None for term in plan.objective.terms):
        return plan
    batch = {field.name: field.tensor for field in plan.data.fields}
    batch |= {name: plan.batch_graph.spec(edge) for name, edge in plan.batch_graph.outputs.items()}
    return replace(plan, graph=with_chunked_heads(plan.graph, plan.objective.terms, batch))


def tensor_specs(plan: Plan) -> dict[str, TensorSpec]:
    """Everything that the objective may name: fields, nodes of the batch graph, outputs of the model."""
    specs = {field.name: field.tensor for field in plan.data.fields}
    for graph in (plan.batch_graph, plan.graph):
        specs |= {name: graph.spec(edge) for name, edge in graph.outputs.items()}
    return specs
