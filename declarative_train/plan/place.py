"""Who holds what: the layout of the recipe's mode, from the table of modes."""

from __future__ import annotations

from declarative_train.data.spec import BatchSpec
from declarative_train.diagnostics.diagnostic import Diagnostic
from declarative_train.graph.lower import Lowered
from declarative_train.plan.layouts import LAYOUTS
from declarative_train.plan.layouts.site import Site
from declarative_train.plan.plan import LayoutPlan, ParameterPlan
from declarative_train.recipe.recipe import Recipe


def place(
    recipe: Recipe, lowered: Lowered, parameters: tuple[ParameterPlan, ...], batch: BatchSpec
) -> tuple[LayoutPlan | None, list[Diagnostic]]:
    """In a pipeline, accumulation steps are made microbatches: one schedule, one reduction, a smaller bubble."""
    site = Site(recipe, lowered, parameters, batch.accumulation * batch.num_microbatches)
    return LAYOUTS[recipe.mode.mode](site)
