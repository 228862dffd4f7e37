"""Nodes that draw random numbers: where a batch is shared out, the layout is part of what they draw."""

from __future__ import annotations

from declarative_train.data.spec import BatchSpec
from declarative_train.diagnostics.diagnostic import Diagnostic
from declarative_train.graph.lower import Lowered
from declarative_train.plan.checks.samples import draws_of_layout
from declarative_train.plan.sample_groups import num_slices


def check_draws(lowered: Lowered, batch: BatchSpec) -> list[Diagnostic]:
    random = [fact for fact in lowered.facts if fact.kind == "random"]
    if not random or num_slices(batch) == 1:
        return []
    unknown = [fact for fact in random if fact.habits is not None and fact.habits.draws is None]
    random = [fact for fact in random if fact not in unknown] + unknown  # what is certain is named first
    return [draws_of_layout(random[0].span, [fact.path for fact in random], is_certain=random[0] not in unknown)]
