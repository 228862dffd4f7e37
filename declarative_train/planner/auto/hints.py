"""Hints for a model that does not fit in any mode: one or two values of the recipe are changed, and the result is
judged like the original."""

from __future__ import annotations

from collections.abc import Iterator

from declarative_train.core.amounts import amount
from declarative_train.planner.auto.candidates import candidates
from declarative_train.planner.auto.judge import Judge
from declarative_train.planner.auto.target import target_of
from declarative_train.recipe.recipe import Recipe
from declarative_train.recipe.sections.training import ActivationCheckpointing, Training

MOST = 3  # largest number of hints
FACTORS = (2, 4, 8, 16, 32, 64)  # on the number of GPUs


def hints(judge: Judge) -> list[str]:
    """Return a few changes of the recipe, as text; with each of them the model would fit. The list is empty if none
    was found."""
    found: list[str] = []
    for way, recipe in _variants(judge.recipe):
        target = target_of(recipe.layout)
        changed = Judge.of(recipe, judge.lowered, judge.parameters, judge.data, target, judge.scales)
        for candidate in candidates(recipe, most_stages=0):  # without pipelines: one mode that fits is enough
            verdict = changed.verdict(candidate)
            if verdict.fits:
                found.append(f"{way} ({candidate.words}, {amount(verdict.memory_bytes, 'B')})")
                break
        if len(found) == MOST or (found and way.startswith("layout")):
            break
    return found


def _variants(recipe: Recipe) -> Iterator[tuple[str, Recipe]]:
    """Yield pairs (description of a change, the changed recipe)."""
    training, layout = recipe.training, recipe.layout
    policy = training.activation_checkpointing.policy
    again = _with(training, activation_checkpointing=ActivationCheckpointing(policy="blocks"))
    if policy == "none":
        kept = _with(training, activation_checkpointing=ActivationCheckpointing(policy="selective"))
        yield "training.activation_checkpointing: selective", recipe._replace(training=kept)
    if policy in ("none", "selective"):
        yield "training.activation_checkpointing: blocks", recipe._replace(training=again)
    steps = _most_accumulation(recipe)
    if steps is not None:
        less = {"gradient_accumulation_steps": steps, "microbatch_size": None}
        yield f"training.gradient_accumulation_steps: {steps}", recipe._replace(training=_with(training, **less))
        if policy == "none":
            both = f"training.gradient_accumulation_steps: {steps} with activation_checkpointing: blocks"
            yield both, recipe._replace(training=_with(again, **less))
    for factor in FACTORS:
        number = layout.num_gpus * factor
        if training.global_batch_size % number:
            return
        if layout.gpus is None:
            changed, way = {"nodes": layout.num_nodes * factor}, f"layout.nodes: {layout.num_nodes * factor}"
        else:
            changed, way = {"gpus": number}, f"layout.gpus: {number}"
        yield way, recipe._replace(layout=layout.model_copy(update=changed))


def _most_accumulation(recipe: Recipe) -> int | None:
    """Return the number of accumulation steps with which each GPU computes one sample at a time. Return None if the
    recipe already has that number, or if the batch does not divide evenly over the GPUs."""
    share, rest = divmod(recipe.training.global_batch_size, recipe.layout.num_gpus)
    return share if not rest and share > (recipe.training.gradient_accumulation_steps or 1) else None


def _with(training: Training, **values: object) -> Training:
    return training.model_copy(update=values)
