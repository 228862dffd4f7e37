"""One process on several devices: the batch is scattered over replicas of the model, the outputs are gathered."""

from __future__ import annotations

from declarative_train.diagnostics.diagnostic import Diagnostic
from declarative_train.plan.layouts.site import Site
from declarative_train.plan.plan import LayoutPlan, RankPlan


def place_dp(site: Site) -> tuple[LayoutPlan | None, list[Diagnostic]]:
    layout = site.recipe.layout
    return LayoutPlan(
        mode="dp",
        device=layout.device,
        num_nodes=1,
        gpus_per_node=layout.num_gpus_per_node,
        mesh=(),
        ranks=(RankPlan(0, 0, 0, layout.devices[0], {}),),
        units=site.lowered.units,
        num_replicas=layout.num_gpus,
        devices=layout.devices,
    ), []
