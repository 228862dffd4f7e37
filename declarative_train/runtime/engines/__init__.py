"""The ways to run, by the plan's word for the mode."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from declarative_train.plan.plan import Plan
    from declarative_train.runtime.engines.engine import Engine

ENGINES: dict[str, str] = {
    "ddp": "ddp.DdpEngine",
    "dp": "dp.DpEngine",
    "fsdp": "fsdp.FsdpEngine",
    "pipeline": "pipeline.PipelineEngine",
    "single": "single.SingleEngine",
}


def build_engine(plan: Plan, device: torch.device) -> Engine:
    """The engine of the plan's mode on this rank; only its module is imported."""
    module, _, name = ENGINES[plan.layout.mode].rpartition(".")
    engine: Engine = getattr(import_module(f"{__name__}.{module}"), name)(plan, device)
    return engine
