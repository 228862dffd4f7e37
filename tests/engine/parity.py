"""The harness of the parity tests: a recipe on real ranks, the gradients of every step, and how far two runs differ.

    reference = record(directory, recipe, num_steps=3)                       one process
    found = record(directory, merged(recipe, {"parallelism": "ddp", "layout": {"gpus": 2}}), num_steps=3)
    assert found.sample_ids == reference.sample_ids
    assert largest_difference(reference, found) <= 1e-10

`record` compiles the recipe, starts the plan's ranks by torch's elastic launcher, runs the real engine on the real
batches, and takes the gradients away just before the optimizer's step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import distributed, nn

from declarative_train.components.layers.modules.divided import find_cuts
from declarative_train.core.cuts import RankCut
from declarative_train.data.order import locate
from declarative_train.data.rank_batches import TrainingBatches
from declarative_train.data.tensor_sets import open_sets
from declarative_train.engine.engine import Engine, get_process_batch
from declarative_train.graph.initialise import local_rows
from declarative_train.plan.plan import Plan
from declarative_train.run.loss_window import LossWindow
from tests.engine.made_recipes import compiled
from tests.engine.on_ranks import kept_engine, on_ranks

FLOOR = 1e-6  # of the model's largest gradient: below it a parameter's own gradient is rounding noise


@dataclass(slots=True)
class Recording:
    """`gradients[step][parameter]`, whole (no shards); `losses[step]`; `sample_ids[step]` of the global batch, in its
    order; `parameters`: after the last step."""

    gradients: list[dict[str, np.ndarray]] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    sample_ids: list[tuple[int, ...]] = field(default_factory=list)
    parameters: dict[str, np.ndarray] = field(default_factory=dict)


def record(directory: Path, recipe: Mapping[str, Any], *, num_steps: int = 3, first_step: int = 1) -> Recording:
    """A recipe's first steps. `directory` holds its data. Raises AssertionError when ranks disagree."""
    return record_plan(compiled(directory, recipe), num_steps=num_steps, first_step=first_step)


def record_plan(
    plan: Plan, *, num_steps: int = 3, first_step: int = 1, device: str = "cpu", spawns: bool = False
) -> Recording:
    """On another device than the CPU, which all ranks share, under `tests.gpu.shared_device`."""
    found = on_ranks(plan, _recorded, plan, num_steps, first_step, device, device=device, spawns=spawns)
    return merged_ranks(found, plan)


def largest_difference(reference: Recording, found: Recording) -> float:
    """The largest |d| / max(|reference| of the parameter, 1e-6 of |reference| of the model), over all steps."""
    assert len(reference.gradients) == len(found.gradients)
    largest = 0.0
    for wanted, given in zip(reference.gradients, found.gradients, strict=True):
        assert wanted.keys() == given.keys(), (wanted.keys(), given.keys())
        whole = max(float(np.abs(item).max()) for item in wanted.values())
        for name, item in wanted.items():
            size = max(float(np.abs(item).max()), FLOOR * whole)
            difference = float(np.abs(given[name] - item).max()) / size
            largest = max(largest, difference if np.isfinite(difference) else float("inf"))
    return largest


@dataclass(slots=True)
class RankRecording:
    """What one rank saw. `chunks[step]`: (chunk, dp rank) -> sample ids."""

    gradients: list[dict[str, np.ndarray]]
    losses: list[float]
    chunks: list[dict[tuple[int, int], tuple[int, ...]]]
    parameters: dict[str, np.ndarray]


def merged_ranks(ranks: list[RankRecording], plan: Plan) -> Recording:
    """Ranks that hold the same parameter must have the same gradient of it; samples in the order of the slots."""
    merged = Recording()
    for step in range(len(ranks[0].gradients)):
        merged.gradients.append(_agreed([rank.gradients[step] for rank in ranks]))
        slots: dict[tuple[int, int], tuple[int, ...]] = {}
        for rank in ranks:
            for slot, ids in rank.chunks[step].items():
                assert slots.setdefault(slot, ids) == ids, f"ranks of slot {slot} read other samples"
        merged.sample_ids.append(tuple(number for slot in sorted(slots) for number in slots[slot]))
        losses = {rank.losses[step] for rank in ranks}
        assert len(losses) == 1, f"ranks report other losses: {losses}"
        merged.losses.append(losses.pop())
    merged.parameters = _agreed([rank.parameters for rank in ranks])
    assert plan.batch.global_batch_size >= max(map(len, merged.sample_ids))
    return merged


def _agreed(parts: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    found: dict[str, np.ndarray] = {}
    for part in parts:
        for name, item in part.items():
            if name in found:
                assert np.array_equal(found[name], item, equal_nan=True), f"ranks hold other values of {name}"
            found[name] = item
    return dict(sorted(found.items()))


def _recorded(plan: Plan, num_steps: int, first_step: int, device: str) -> RankRecording:
    with kept_engine(plan, device) as engine:
        found = RankRecording([], [], [], {})
        take_gradients(engine, found.gradients)
        cuts = find_cuts(engine.model)
        batches = TrainingBatches(
            plan.data, get_process_batch(plan), engine.dp_rank, open_sets(plan.data), device=engine.device
        )
        window, num_samples = LossWindow(engine, skips=False), plan.data.set("training").num_samples
        for step in range(first_step, first_step + num_steps):
            mine = batches.step(step)
            num_rows = locate(step, plan.batch, num_samples).size
            result = engine.step(step, mine, num_rows=num_rows, lr_factor=1.0, measure=False)
            window.add(step, result, num_rows)
            window.flush()
            means = window.take_logging().term_means(len(engine.objective.terms))
            found.losses.append(engine.objective.by_name(means)["loss"])
            ids = {(chunk, engine.dp_rank): tuple(batch.sample_ids.tolist()) for chunk, batch in enumerate(mine)}
            found.chunks.append(ids)
        named = engine.model.named_parameters()
        found.parameters = {name: joined(whole(item), name, cuts, engine) for name, item in named}
    return found


def take_gradients(engine: Engine, into: list[dict[str, np.ndarray]]) -> None:
    """Before every step of the optimizer, what it is about to use."""
    step, step_if = engine.optimizer.step, engine.optimizer.step_if
    cuts = find_cuts(engine.model)

    def take() -> None:
        parameters = engine.optimizer.parameters.items()
        held = {name: whole(item.grad) for name, item in parameters if item.grad is not None}
        into.append({name: joined(item, name, cuts, engine) for name, item in held.items()})

    def recorded_step() -> None:
        take()
        step()

    def recorded_step_if(finite: torch.Tensor) -> None:
        before = len(into)
        step_if(finite)
        if len(into) == before and bool(finite):  # fused optimizers make their step without `step`
            take()

    engine.optimizer.step = recorded_step  # type: ignore[method-assign]
    engine.optimizer.step_if = recorded_step_if  # type: ignore[method-assign]


def joined(part: np.ndarray, name: str, rank_cuts: Mapping[str, RankCut], engine: Engine) -> np.ndarray:
    """The whole tensor, from the parts of the ranks of `tensor` or `expert`."""
    cut, cuts = rank_cuts.get(name), engine.plan.layout.cuts
    if cut is None or cuts is None:
        return part
    group = engine.position.expert if name in cuts.of_experts else engine.position.tensor
    assert group is not None
    parts: list[Any] = [None] * cut.size
    distributed.all_gather_object(parts, part, group=group.group)
    found = np.full(cut.whole_shape(part.shape), np.nan, part.dtype)
    for index, each in enumerate(parts):
        for block in replace(cut, index=index).blocks(part.shape):
            into, place = (
                tuple(slice(begin, begin + size) for begin, size in zip(first, block.sizes, strict=True))
                for first in (block.whole, block.local)
            )
            found[into] = each[place]
    return found


def gathered(tensor: Any) -> torch.Tensor:
    """Of a DTensor; over the CPU, since gloo has no form of torch's own way for tensors of a GPU."""
    if tensor.device.type == "cpu":
        full: torch.Tensor = tensor.full_tensor()
        return full
    rows = local_rows(tensor)
    assert rows is not None
    group = tensor.device_mesh.get_group(tensor.device_mesh.ndim - 1)  # the axis of shards
    parts: list[Any] = [None] * distributed.get_world_size(group)
    distributed.all_gather_object(parts, (rows.first, rows.values.detach().cpu()), group=group)
    filled = sorted((part for part in parts if len(part[1])), key=lambda part: part[0])
    return torch.cat([values for _, values in filled])


def whole(tensor: torch.Tensor | nn.Parameter) -> np.ndarray:
    """A copy, gathered from its shards."""
    full = gathered(tensor) if hasattr(tensor, "full_tensor") else tensor
    found: np.ndarray = full.detach().cpu().clone().numpy()
    return found
