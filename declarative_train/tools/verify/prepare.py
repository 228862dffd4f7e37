"""Plans for a verification: the plan of the requested mode, changed to run on this machine, and the plan of the same
step in one process."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

from declarative_train.engine.devices import num_gpus, num_gpus_wanted
from declarative_train.graph.graph import Graph, Node
from declarative_train.graph.read import read_layer
from declarative_train.plan.layout import LayoutPlan
from declarative_train.plan.plan import Plan

Device = Literal["cpu", "cuda"]
_FLOATS = {"float16", "bfloat16", "float32"}


def plan_here(plan: Plan, device: Device | None = None, *, in_float64: bool = False) -> Plan:
    """Return the plan changed to run with all ranks on this machine, without evaluations, checkpoints, early stop, time
    limit and moving average. `device`: where to run; None: GPUs if there are enough, else the CPU. `in_float64`:
    parameters and messages between ranks are float64."""
    layout = plan.layout
    if layout.num_nodes > 1:
        size = len(layout.ranks)
        layout = replace(layout, num_nodes=1, gpus_per_node=size, rank_devices=tuple(range(size)))
    layout = replace(layout, min_nodes=None, max_restarts=0, hardware=None)
    if device is None and layout.device in ("auto", "cuda"):
        device = "cuda" if num_gpus() >= num_gpus_wanted(layout) else "cpu"
    if device is not None:
        layout = replace(layout, device=device)
    training = replace(plan.training, early_stop=None, max_time_s=None, ema_decay=None)
    plan = replace(plan, training=training, evaluation=None, checkpoint=None, layout=layout, memory=(), estimate=None)
    return _in_float64(plan) if in_float64 else plan


def _in_float64(plan: Plan) -> Plan:
    layout = plan.layout
    if layout.pipeline is not None:
        dtypes = tuple(
            tuple("float64" if word in _FLOATS else word for word in words) for words in layout.pipeline.wire_dtypes
        )
        layout = replace(layout, pipeline=replace(layout.pipeline, wire_dtypes=dtypes))
    training = replace(plan.training, precision="fp64", reduce="fp64", matmul="highest")
    return replace(plan, training=training, layout=layout)


def one_process(plan: Plan, *, in_microbatches: bool) -> Plan:
    """Return a copy of the plan that computes the same step in one process: without mesh axes, compilation and
    activation checkpointing.

    One forward computes the whole batch. With `in_microbatches`, or if a node or loss computes over all samples of a
    microbatch, the batch is divided into the microbatches of `plan`."""
    batch, layout = plan.batch, plan.layout
    size = batch.global_batch_size
    if in_microbatches or depends_on_microbatches(plan):
        size = batch.microbatch_size
    whole = replace(
        batch,
        data_parallel_size=1,
        microbatch_size=size,
        accumulation=batch.global_batch_size // size,
        num_microbatches=1,
        pad_to_full=False,
    )
    alone = LayoutPlan(
        mode="single",
        device=layout.device,
        num_nodes=1,
        gpus_per_node=1,
        mesh=(),
        rank_devices=layout.rank_devices[:1],
        units=layout.units,
    )
    training = replace(plan.training, compile=False, activation_checkpointing="none")
    return replace(plan, batch=whole, layout=alone, training=training)


def depends_on_microbatches(plan: Plan) -> bool:
    """Return whether a node or a loss computes over all samples of a microbatch. Then the gradients depend on how the
    batch is divided into microbatches."""
    layers = (read_layer(node.component, plan.plugins) for _, node in layer_nodes(plan.graph) if node.component)
    over = [getattr(layer, "over", None) for layer in layers]
    over += [term.component.get("over") for term in plan.objective.terms]
    return "microbatch" in over


def layer_nodes(graph: Graph, prefix: str = "") -> Iterator[tuple[str, Node]]:
    """Yield the path and the node of every layer in the order of the forward, without layers that are called several
    times."""
    called_again = {node.target for node in graph.nodes if node.kind == "reuse"}
    for node in graph.nodes:
        if node.name in called_again:
            continue
        if node.graph is not None:
            yield from layer_nodes(node.graph, f"{prefix}{node.name}.")
        elif node.kind == "layer":
            yield f"{prefix}{node.name}", node
