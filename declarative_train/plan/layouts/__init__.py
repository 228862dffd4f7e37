"""The ways to run: a mode's word -> who holds what. A twin of each stands in `runtime/engines`."""

from __future__ import annotations

from declarative_train.plan.layouts.ddp import place_ddp
from declarative_train.plan.layouts.dp import place_dp
from declarative_train.plan.layouts.fsdp import place_fsdp
from declarative_train.plan.layouts.pipeline import place_pipeline
from declarative_train.plan.layouts.single import place_single
from declarative_train.plan.layouts.site import Placer

LAYOUTS: dict[str, Placer] = {
    "ddp": place_ddp,
    "dp": place_dp,
    "fsdp": place_fsdp,
    "pipeline": place_pipeline,
    "single": place_single,
}
