"""Loss terms in a step. From the model's outputs for a chunk (the rows of one forward) they compute the sum of each
term and its number of valid items."""

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
    """The L loss terms of a plan, in the plan's order. `modules[i]` computes term i."""

    def __init__(self, plan: Plan, device: torch.device) -> None:
        specs, whole = tensor_specs(plan), _whole_specs(plan)
        self._device = device
        self.terms: tuple[TermPlan, ...] = plan.objective.terms
        self.weights = tuple(term.weight for term in self.terms)
        self.bounds = tuple(LOSSES.read(term.component).bounds for term in self.terms)
        self.modules = nn.ModuleList(cast(nn.Module, build_term(term, specs)) for term in self.terms).to(device)
        self._calls = [
            (cast(LossModule, module), term.input, term.target, term.mask)
            for module, term in zip(self.modules, self.terms, strict=True)
        ]
        rows, parts = [module.items_per_row for module, *_ in self._calls], plan.layout.size("context")
        # every rank of `context` computes the whole loss of a value without positions, so it counts only as a share
        divided = [specs[term.input] != whole[term.input] for term in self.terms]
        self._shares = [1.0 if each else 1 / parts for each in divided]
        self._factors = torch.tensor(self._shares, dtype=torch.float64, device=device)
        # each term's divisor per row of the batch; None if it depends on values
        known = [None if each is None else parts * share * each for share, each in zip(self._shares, rows, strict=True)]
        self.items_per_row = None if None in known else tuple(cast(list[float], known))

    def sums(self, values: Values, row_weight: torch.Tensor | None) -> tuple[torch.Tensor, ...]:
        """Return the sum of each loss term over a chunk (the rows of one forward), as a scalar with an autograd graph.
        `values`: tensors that losses read, by name. `row_weight`: 0 for rows that are padding, otherwise 1; None if
        there is no padding."""
        sums = (
            module.sum(
                values[source],
                None if target is None else values[target],
                None if mask is None else values[mask],
                row_weight,
            )
            for module, source, target, mask in self._calls
        )
        return tuple(each if share == 1 else share * each for share, each in zip(self._shares, sums, strict=True))

    def rests(self) -> list[tuple[int, torch.Tensor]]:
        """Return pairs (index of a loss term, this rank's part of its loss sum) for the samples at the end of an
        evaluation that do not fill a group. Only loss terms that are computed over groups of samples have a pair; the
        part is 0 if no samples are left."""
        return [
            (index, module.take_rest()) for index, module in enumerate(self.modules) if isinstance(module, HoldsSamples)
        ]

    def counts(self, values: Values, row_weight: torch.Tensor | None, num_rows: int) -> torch.Tensor:
        """Return the number of valid items in a chunk (the rows of one forward), or the sum of their weights, for each
        of the L loss terms: float64 (L,) on the device. If N ranks of the axis `context` compute the same loss, it is
        divided by N.

        `values`      fields, and values computed from fields alone, by name
        `row_weight`  1, or 0 for rows of padding; None without padding
        `num_rows`    number of rows without padding
        """
        counts = [
            module.count(
                None if target is None else values.get(target),  # None if a node computes the target
                None if mask is None else values[mask],
                row_weight,
                num_rows,
            )
            for module, _, target, mask in self._calls
        ]
        # counts from the number of rows alone are on the CPU
        return torch.stack([count.to(self._device, non_blocking=True) for count in counts]) * self._factors

    def by_name(self, per_term: Sequence[float | None]) -> dict[str, float]:
        """Return the losses for the logs: the total as `loss` and, if there are several terms, each as `loss/<term>`.
        `per_term`: value of each term, or None if the term had no valid item. A term that is None is logged as nan and
        is left out of the total. If all terms are None, the total is nan."""
        parts = [weight * value for weight, value in zip(self.weights, per_term, strict=True) if value is not None]
        values = {"loss": sum(parts) if parts else math.nan}
        if len(self.terms) > 1:
            for term, value in zip(self.terms, per_term, strict=True):
                values[f"loss/{term.name}"] = math.nan if value is None else value
        return values


def mean(total: float, count: float) -> float | None:
    """Return total / count, or None if the count is 0."""
    return total / count if count else None


def build_term(term: TermPlan, specs: Mapping[str, TensorSpec]) -> LossModule:
    """Return the module of a loss term. `specs`: shape and dtype of the tensors that losses may read
    (`tensor_specs`)."""
    return LOSSES.read(term.component).build(
        specs[term.input],
        None if term.target is None else specs[term.target],
        None if term.mask is None else specs[term.mask],
    )


def as_run(plan: Plan) -> Plan:
    """Return the plan with the graph that ranks run: a loss with the key `chunks` includes the last linear layer, which
    it computes itself. Without such a loss, return `plan` unchanged."""
    if all(term.component.get("chunks") is None for term in plan.objective.terms):
        return plan
    batch = {field.name: field.tensor for field in plan.data.fields}
    batch |= {name: plan.batch_graph.spec(edge) for name, edge in plan.batch_graph.outputs.items()}
    return replace(plan, graph=with_chunked_heads(plan.graph, plan.objective.terms, batch))


def tensor_specs(plan: Plan) -> dict[str, TensorSpec]:
    """Return a dict from name to shape and dtype of the tensors that losses and metrics may read. They are fields,
    values computed from fields alone, and outputs of the model. With the axis `context`, shapes are those on one
    rank."""
    specs = _whole_specs(plan)
    context = plan.layout.context
    for name in () if context is None else (*context.names, *plan.graph.outputs):
        specs[name] = replace(specs[name], shape=plan.layout.shape_on_rank(specs[name].shape))
    return specs


def _whole_specs(plan: Plan) -> dict[str, TensorSpec]:
    """Return a dict from name to shape and dtype of the tensors that losses and metrics may read. The shapes are those
    of whole samples, even if the axis `context` divides the samples over ranks."""
    specs = {field.name: field.tensor for field in plan.data.fields}
    for graph in (plan.batch_graph, plan.graph):
        specs |= {name: graph.spec(edge) for name, edge in graph.outputs.items()}
    return specs
