"""A rank per device, each with the whole model and its rows of the batch; gradients are averaged."""

from __future__ import annotations

from declarative_train.diagnostics.diagnostic import Diagnostic
from declarative_train.plan.layouts.site import Site, rank_table
from declarative_train.plan.plan import LayoutPlan, MeshAxis


def place_ddp(site: Site) -> tuple[LayoutPlan | None, list[Diagnostic]]:
    layout = site.recipe.layout
    mesh = (MeshAxis("dp", layout.num_gpus),)
    return LayoutPlan(
        mode="ddp",
        device=layout.device,
        num_nodes=layout.num_nodes,
        gpus_per_node=layout.num_gpus_per_node,
        mesh=mesh,
        ranks=rank_table(site, mesh),
        units=site.lowered.units,
    ), []
