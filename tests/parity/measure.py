"""One cell: its gradients over a few steps, from the real engines on real ranks, next to one plain torch loop.

The reference knows nothing of our engines: the whole global batch in one forward, torch's own mean loss, torch's SGD.
"""

from __future__ import annotations

import json
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from declarative_train import recipe as recipe_room
from declarative_train.components.layers.modules.moe import MoeModule
from declarative_train.components.layers.sample_groups import SampleGroups, attach
from declarative_train.data.rank_batches import TrainingBatches
from declarative_train.data.tensor_sets import open_sets
from declarative_train.engine.engine import get_process_batch
from declarative_train.engine.step.precision import default_dtype
from declarative_train.graph.build import build
from declarative_train.graph.field_draws import FieldDraws
from declarative_train.graph.initialise import initialise
from declarative_train.plan.plan import Plan
from declarative_train.planner.compiler import compile as compile_plan
from tests.engine.parity import FLOOR, record_plan
from tests.parity.cells import NUM_SAMPLES, NUM_STEPS, VOCABULARY, Cell

BOUND = 1e-10
NUM_TEXTS = 62  # packed into more rows than a step takes, and fewer than two

Gradients = list[dict[str, np.ndarray]]  # by step


@dataclass(frozen=True, slots=True)
class Result:
    """`difference` is the largest over parameters and steps, by `relative`; `parameter` and `step` say where."""

    cell: Cell
    difference: float
    parameter: str
    step: int
    seconds: float

    @property
    def is_equal(self) -> bool:
        return self.difference <= BOUND


def measure(cell: Cell) -> Result:
    """Run the cell. Raises when a rank fails, when ranks disagree, or when they saw other samples."""
    begun_s = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        plan = plan_of(cell, Path(folder))
        reference, samples = reference_gradients(plan, cell)
        found = record_plan(plan, num_steps=NUM_STEPS)
    if found.sample_ids != samples:
        raise RuntimeError(f"{cell.name}: other samples than in one process: {found.sample_ids} instead of {samples}")
    difference, parameter, step = largest(reference, found.gradients)
    return Result(cell, difference, parameter, step, time.monotonic() - begun_s)


def plan_of(cell: Cell, folder: Path) -> Plan:
    data = folder / ("texts.jsonl" if cell.model == "packed" else "data.npz")
    random = np.random.default_rng(5)
    count = NUM_SAMPLES[cell.rows]
    tokens = random.integers(0, VOCABULARY, (count, cell.num_tokens))
    following = random.integers(1, VOCABULARY, (count, cell.num_tokens))
    if cell.rows == "masked":  # between none and all of a row
        following[random.random((count, cell.num_tokens)) < random.random((count, 1))] = 0
    if cell.model == "packed":
        sizes = random.integers(1, 24, NUM_TEXTS)
        texts = ["".join(map(chr, random.integers(97, 123, size))) for size in sizes]
        data.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    else:
        np.savez(data, tokens=tokens, next=following)
    path = folder / "recipe.yaml"
    path.write_text(cell.recipe(str(data), str(folder / "runs")))
    loaded = recipe_room.load(str(path))
    assert loaded.recipe is not None, (cell.name, loaded.diagnostics)
    plan, diagnostics = compile_plan(loaded.recipe)
    assert plan is not None, (cell.name, diagnostics)
    return plan


def reference_gradients(plan: Plan, cell: Cell) -> tuple[Gradients, list[tuple[int, ...]]]:
    """A plain loop: one process, the whole batch at once."""
    with default_dtype(plan):
        ties = {item.name: item.tie for item in plan.parameters if item.tie is not None}
        model = build(plan.graph, ties=ties)
        initialise(model, plan.graph, plan.parameters, plan.seed)
        model.double().train()
        for module in model.modules():
            if isinstance(lengths := getattr(module, "lora_magnitude_vector", None), torch.nn.Parameter):
                weight, a, b = (
                    module.get_parameter(each).data for each in ("weight", "lora_A.weight", "lora_B.weight")
                )
                lengths.data.copy_(torch.linalg.vector_norm(weight + 3 / 2 * b @ a, dim=1))
        frozen = {item.name for item in plan.parameters if item.frozen}
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name not in frozen)
        groups = SampleGroups(None)
        attach(model, groups)
        draws = FieldDraws(plan.seed)
        batch_model = build(plan.batch_graph, field_draws=draws) if plan.batch_graph.nodes else None
        optimizer = torch.optim.SGD([group_of(name, item, cell) for name, item in model.named_parameters()], lr=0.1)
        sets = open_sets(plan.data)
        batches = TrainingBatches(plan.data, get_process_batch(plan), 0, sets)
        gradients, samples = [], []
        for step in range(1, NUM_STEPS + 1):
            ids = step_samples(plan, batches, step)
            tensors = sets["training"].gather(ids)
            if batch_model is not None:
                draws.begin(ids, (step - 1) // plan.batch.steps_per_epoch, len(ids), torch.device("cpu"))
                outputs = batch_model(*[tensors[name] for name in plan.batch_graph.inputs])
                tensors |= dict(zip(plan.batch_graph.outputs, outputs, strict=True))
            groups.begin()
            if cell.model == "packed":
                optimizer.zero_grad()
                one_by_one(model, plan, tensors).backward()
                gradients.append({name: item.grad.numpy().copy() for name, item in model.named_parameters()})
                optimizer.step()
                samples.append(tuple(ids.tolist()))
                continue
            made = model(*[tensors[name] for name in plan.graph.inputs])
            values = tensors | dict(zip(plan.graph.outputs, made, strict=True))
            optimizer.zero_grad()
            reference_loss(cell, values).backward()
            if cell.options == "clipped":
                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05)
            graded = {name: item.grad for name, item in model.named_parameters() if item.grad is not None}
            gradients.append({name: gradient.numpy().copy() for name, gradient in graded.items()})
            optimizer.step()
            move_biases(model)
            samples.append(tuple(ids.tolist()))
        return gradients, samples


def move_biases(model: torch.nn.Module) -> None:
    """Move the biases of experts by what the whole batch chose."""
    for module in model.modules():
        if isinstance(module, MoeModule) and module.bias is not None:
            counts = module.take_pending()
            module.bias += 0.1 * torch.sign(counts.mean() - counts)


def one_by_one(model: torch.nn.Module, plan: Plan, rows: dict[str, torch.Tensor]) -> torch.Tensor:
    """The loss of packed texts, each alone in a forward of its own."""
    total, count = torch.zeros(()), 0
    for tokens, segments in zip(rows["text"], rows["text.segments"], strict=True):
        for number in range(1, int(segments.max()) + 1):
            text = tokens[segments == number]
            if len(text) < 2:
                continue
            alone = {
                "tokens": text[None, :-1],
                "segments": torch.zeros(1, len(text) - 1, dtype=torch.int64),
                "places": torch.arange(len(text) - 1)[None],
            }
            (logits,) = model(*[alone[name] for name in plan.graph.inputs])
            total = total + F.cross_entropy(logits[0], text[1:], reduction="sum")
            count += len(text) - 1
    return total / count


def group_of(name: str, parameter: torch.nn.Parameter, cell: Cell) -> dict[str, Any]:
    """What the selectors of the model with several optimizers say, in torch's words."""
    group: dict[str, Any] = {"params": [parameter]}
    if cell.model == "optimizers":
        lrs = {"layers.2.": 0.03, "layers.5.": 0.1 * 0.5, "logits.": 0.02 * 3}
        group["lr"] = next((lr for start, lr in lrs.items() if name.startswith(start)), 0.1)
        group["weight_decay"] = 0.01 if name.endswith("bias") else 0.0
    return group


def step_samples(plan: Plan, batches: TrainingBatches, step: int) -> np.ndarray:
    """The samples of a global batch in their order, from the order alone."""
    size = plan.batch.global_batch_size
    epoch, position = divmod(step - 1, plan.batch.steps_per_epoch)
    total = plan.data.set("training").num_samples
    return batches.sample_indices(epoch, np.arange(position * size, min(total, (position + 1) * size)))


def reference_loss(cell: Cell, values: dict[str, torch.Tensor]) -> torch.Tensor:
    """The objective of the cell in torch's own words."""
    if cell.model == "contrast":
        return contrast(values["a"], values["b"], cell.over)
    if cell.model == "averaged":
        return kto(values["a"], values["tokens"][:, 0] > 4, cell.over)
    if cell.model == "drawn":
        chosen = values["chosen"]
        return F.cross_entropy(values["logits"][chosen], values["tokens"][chosen])
    target = values["next"].flatten()
    smoothing = 0.1 if cell.model in ("terms", "chunked") else 0.0
    logits = values["lm" if cell.model == "mixtral" else "logits"].flatten(0, 1)
    loss = F.cross_entropy(logits, target, ignore_index=0, label_smoothing=smoothing)
    if cell.model == "terms":
        loss = loss + 0.3 * values["size"][values["next"] != 0].mean() + 0.1 * values["flat"].mean()
    if cell.model in ("moe", "mixtral"):
        loss = loss + 0.05 * values["layers.balance" if cell.model == "moe" else "lm.balance"].mean()
    return loss


def contrast(a: torch.Tensor, b: torch.Tensor, over: int) -> torch.Tensor:
    """Both ways, over consecutive groups, the last perhaps smaller."""
    a, b = F.normalize(a, dim=1), F.normalize(b, dim=1)
    total = a.new_zeros(())
    for first in range(0, len(a), over):
        scores = a[first : first + over] @ b[first : first + over].T / 0.5
        own = torch.arange(len(scores))
        total = total + F.cross_entropy(scores, own, reduction="sum") + F.cross_entropy(scores.T, own, reduction="sum")
    return total / 2 / len(a)


def kto(a: torch.Tensor, good: torch.Tensor, over: int) -> torch.Tensor:
    """TRL's loss of each group as a microbatch over all ranks, and a distance to the mean of the group."""
    total = a.new_zeros(())
    for rows, wanted in zip(a.split(over), good.split(over), strict=True):
        zero = (rows[:, 2] + 0.02 - rows[:, 3]).mean().detach().clamp(min=0)
        added, centre = rows[:, 0] - rows[:, 1], rows[:, 4].mean()
        good_loss = (1 - torch.sigmoid(2.0 * (added[wanted] - zero))).sum()
        bad_loss = (1 - torch.sigmoid(2.0 * (zero - added[~wanted]))).sum() * 0.5
        total = total + good_loss + bad_loss + ((rows[:, 4] - centre) ** 2 + 0.1 * centre).sum()
    return total / len(a) + 0.1 * a.mean()


def largest(reference: Gradients, found: Gradients) -> tuple[float, str, int]:
    """(difference, parameter, step) of |d| / max(|g_ref| of the parameter, 1e-6 of |g_ref| of the model): a bias before
    a norm has gradient 0. A gradient that is missing or too many is an infinite difference."""
    worst = (0.0, "", 0)
    for step, (wanted, got) in enumerate(zip(reference, found, strict=True), 1):
        floor = FLOOR * max(float(np.abs(gradient).max()) for gradient in wanted.values())
        for name in wanted.keys() | got.keys():
            if name not in got or name not in wanted:
                return float("inf"), name, step
            scale = max(float(np.abs(wanted[name]).max()), floor)
            difference = float(np.abs(got[name] - wanted[name]).max()) / scale
            worst = max(worst, (difference if np.isfinite(difference) else float("inf"), name, step))
    return worst
