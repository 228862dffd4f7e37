"""Settings that a sweep varies. Their values keep their spans, so an error in one run of the sweep is reported at the
value that causes it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from declarative_train.core.span import Span
from declarative_train.recipe.metric_names import FINAL_SETS, list_evaluated_sets, list_watched_names
from declarative_train.recipe.recipe import Recipe
from declarative_train.source.node import Mapping, Node, Scalar, Sequence, find, to_value
from declarative_train.source.setting import wrap_in_path


class SweepChoice(NamedTuple):
    """Setting that a sweep varies, and its possible values. `key`: dotted path of the setting. The values are a list,
    `values`, or a range of numbers from `low` to `high`. `log`: whether numbers of the range are chosen on a
    logarithmic scale. `step`: distance between the possible numbers of the range; None if the recipe does not set it.
    """

    key: str
    span: Span
    values: tuple[Node, ...] = ()
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    step: float | None = None

    @property
    def is_range(self) -> bool:
        return not self.values

    @property
    def is_whole(self) -> bool:
        """True if the range has only whole numbers: `low`, `high` and the step are whole."""
        return all(isinstance(each, int) for each in (self.low, self.high, 1 if self.step is None else self.step))

    def at(self, number: float) -> Node:
        """Return `number`, a value of this setting, as a YAML node. Its span is that of the setting in the recipe."""
        return Scalar(number, repr(number), self.span)

    def samples(self) -> tuple[Node, ...]:
        """Return the values with which lint checks the setting: all values of a list, or both ends of a range."""
        return (self.at(self.low), self.at(self.high)) if self.is_range else self.values


def choices(recipe: Recipe) -> tuple[SweepChoice, ...]:
    """Return the settings that a sweep varies, in the order in which the recipe has them."""
    over = find(recipe.tree, ("sweep", "over"))
    assert isinstance(over, Mapping)
    return tuple(_choice(entry.name, entry.value) for entry in over)


def _choice(key: str, node: Node) -> SweepChoice:
    if isinstance(node, Sequence):
        return SweepChoice(key, node.span, node.items)
    found = to_value(node)
    assert isinstance(found, dict)
    return SweepChoice(key, node.span, (), found["low"], found["high"], found.get("log", False), found.get("step"))


def overlay(key: str, node: Node) -> Mapping:
    """Return a mapping with `node` at the dotted path `key`, to be merged over the recipe."""
    placed = wrap_in_path(key, node)
    assert placed is not None
    return placed


def one_at_a_time(recipe: Recipe) -> Iterator[tuple[SweepChoice, Node]]:
    """Yield (setting, value) for each value of the sweep that lint checks. Lint changes one setting at a time, because
    there may be too many combinations."""
    for choice in choices(recipe):
        yield from ((choice, node) for node in choice.samples())


def find_metric(recipe: Recipe) -> tuple[str, bool]:
    """Return the name of the metric by which the runs of a sweep are compared, and True if larger values are better."""
    assert recipe.sweep is not None
    known = list_metrics(recipe)
    best, early = recipe.checkpoint.best, recipe.training.early_stop
    name = recipe.sweep.metric or (best.metric if best else None) or (early.metric if early else None)
    if name is None:
        watched = [each for each in known if not each.startswith("training/")]
        name = next((each for each in watched if "/loss" not in each), next(iter(watched), "training/loss"))
    mode = recipe.sweep.mode
    return name, known.get(name, False) if mode is None else mode == "max"


def list_metrics(recipe: Recipe) -> dict[str, bool]:
    """Return {name: True if larger values are better} for all losses and metrics of a run, those of the final
    evaluation included."""
    sets = list_evaluated_sets(recipe.data.split, recipe.evaluation)
    final = tuple(each for each in recipe.data.split if each in FINAL_SETS and each not in sets)
    return list_watched_names((*sets, *final, "training"), recipe.objective)
