"""One process on one device."""

from __future__ import annotations

from declarative_train.diagnostics.diagnostic import Diagnostic
from declarative_train.plan.layouts.site import Site
from declarative_train.plan.plan import LayoutPlan, RankPlan


def place_single(site: Site) -> tuple[LayoutPlan | None, list[Diagnostic]]:
    layout = site.recipe.layout
    return LayoutPlan(
        mode="single",
        device=layout.device,
        num_nodes=1,
        gpus_per_node=1,
        mesh=(),
        ranks=(RankPlan(0, 0, 0, layout.devices[0], {}),),
        units=site.lowered.units,
    ), []
