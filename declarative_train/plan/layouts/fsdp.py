"""A rank per device, each with a shard of every parameter; with `replicate`, several groups hold a sharded model each.

Shards lie on neighbours: their traffic is the heavier one, and should stay on a node.
"""

from __future__ import annotations

from declarative_train.diagnostics.diagnostic import Diagnostic
from declarative_train.plan.layouts.site import Site, rank_table
from declarative_train.plan.plan import LayoutPlan, MeshAxis
from declarative_train.recipe.batch import shards
from declarative_train.recipe.sections.parallelism import Fsdp


def place_fsdp(site: Site) -> tuple[LayoutPlan | None, list[Diagnostic]]:
    layout, parallelism = site.recipe.layout, site.recipe.parallelism
    assert isinstance(parallelism, Fsdp)
    num_shards = shards(parallelism, layout)
    assert num_shards is not None, "P001 stands before this"
    mesh: tuple[MeshAxis, ...] = (MeshAxis("dp", num_shards),)
    if parallelism.replicate > 1:
        mesh = (MeshAxis("replicate", parallelism.replicate), MeshAxis("shard", num_shards))
    return LayoutPlan(
        mode="fsdp",
        device=layout.device,
        num_nodes=layout.num_nodes,
        gpus_per_node=layout.num_gpus_per_node,
        mesh=mesh,
        ranks=rank_table(site, mesh),
        units=site.lowered.units,
    ), []
