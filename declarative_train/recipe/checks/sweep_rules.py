"""Rules about the settings that a sweep varies.

Each public function that returns diagnostics is one rule. Its docstring is the manual page of its diagnostic code.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeGuard

from declarative_train.core.diagnostics.diagnostic import Diagnostic, error, unverified
from declarative_train.core.diagnostics.suggest import did_you_mean, suggest_fix
from declarative_train.recipe.draft import Draft
from declarative_train.recipe.metric_names import FINAL_SETS, list_evaluated_sets, list_watched_names
from declarative_train.recipe.sections.sweep import Sweep
from declarative_train.recipe.sections.top import SECTIONS
from declarative_train.source.node import Entry, Mapping, Scalar, Sequence, find, to_value
from declarative_train.source.setting import wrap_in_path

_KEYS = {"grid": (), "random": ("trials", "seed"), "optuna": ("trials", "seed", "sampler", "pruner")}
_SWEPT = (*(each for each in SECTIONS if each not in ("sweep", "logging")), "seed", "vars")
_RANGE = ("low", "high", "log", "step")


def sweep_key_without_effect(draft: Draft) -> Iterator[Diagnostic]:
    """sweep-key-without-effect (K010)

    Finds: a key of `sweep` that has no effect for the sweep's type, or a sweep of a type that needs `trials` but does
           not set it.
    Why:   a grid runs every combination of values. The other types need to know how many points to try, `trials`.
    Bad:
        sweep: {type: grid, trials: 10, over: {training.optimizer.lr: [0.1, 0.01]}}
    Good:
        sweep: {type: random, trials: 10, over: {training.optimizer.lr: [0.1, 0.01]}}
    """
    sweep = draft.sweep
    if sweep is None:
        return
    for key in ("trials", "seed", "sampler", "pruner"):
        is_there = getattr(sweep, key) is not None
        if is_there and key not in _KEYS[sweep.type]:
            kinds = " and ".join(f"`{kind}`" for kind, keys in _KEYS.items() if key in keys)
            span = draft.span.key(f"sweep.{key}")
            yield error(
                "K010", span, f"`{key}` has no effect for a sweep of type `{sweep.type}`", f"it belongs to {kinds}"
            )
        elif key == "trials" and not is_there and key in _KEYS[sweep.type]:
            span = draft.span("sweep.type")
            yield error("K010", span, f"a sweep of type `{sweep.type}` needs `trials`", "set the number of points")


def sweep_values(draft: Draft) -> Iterator[Diagnostic]:
    """sweep-values (K011)

    Finds: an entry of `sweep.over` that is neither a list of values nor a valid range; or a range whose `high`, at most
           1, is at least 1,000 times `low`, without `log: true`.
    Why:   a range is `low` and `high`, with `low` below `high`, and both above 0 with `log: true`. A grid needs lists.
           Without `log: true`, nine of ten points between 1e-5 and 0.1 are above 0.01; with it, each factor of 10 gets
           as many points as the others.
    Bad:
        sweep: {type: random, trials: 10, over: {training.optimizer.lr: {low: 0.1, high: 0.001, log: true}}}
    Good:
        sweep: {type: random, trials: 10, over: {training.optimizer.lr: {low: 0.001, high: 0.1, log: true}}}
    """
    for entry in _over(draft):
        assert draft.sweep is not None
        wrong = _wrong(entry, draft.sweep)
        if wrong is not None:
            yield error("K011", entry.value.span, f"`{entry.name}`: {wrong[0]}", wrong[1])
        elif isinstance(entry.value, Mapping):
            yield from _find_magnitudes(entry)


def _find_magnitudes(entry: Entry) -> Iterator[Diagnostic]:
    found = to_value(entry.value)
    assert isinstance(found, dict)
    low, high = found["low"], found["high"]
    if "log" not in found and "step" not in found and 0 < 1000 * low <= high <= 1:
        message = f"of the points from {low:g} to {high:g}, 90% are above {low + 0.1 * (high - low):.2g}"
        yield unverified("K011", entry.value.span, message, "add `log: true`: as many points for each factor of 10")


def _wrong(entry: Entry, sweep: Sweep) -> tuple[str, str] | None:
    node = entry.value
    if isinstance(node, Sequence):
        return None if node.items else ("there is no value to try", "write a list of values")
    if isinstance(node, Scalar):
        return f"`{node.text}` is a single value", f"write a list, `[{node.text}, ...]`, or set it in its section"
    found = to_value(node)
    assert isinstance(found, dict)
    unknown = next((key for key in found if key not in _RANGE), None)
    if unknown is not None:
        return (
            f"a range has no `{unknown}`",
            "a range is `{low, high, log, step}`; put a mapping that is a value in a list",
        )
    if sweep.type == "grid":
        return "a grid needs lists of values, not ranges", "list the values, or use `type: random`"
    low, high, step, log = (found.get(key) for key in ("low", "high", "step", "log"))
    if not is_number(low) or not is_number(high):
        return "a range needs the numbers `low` and `high`", "write `{low: 1e-4, high: 1e-1, log: true}`"
    if low >= high:
        return f"`low` ({low:g}) is not below `high` ({high:g})", "swap them"
    if log not in (None, True, False) or (step is not None and not (is_number(step) and step > 0)):
        return "`log` is true or false, `step` a number above 0", "remove them"
    if log and low <= 0:
        return f"`log: true` needs a `low` above 0, but it is {low:g}", "raise it, or remove `log`"
    if log and step is not None:
        return "`log` and `step` cannot be combined", "remove one"
    return None


def is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def sweep_path(draft: Draft) -> Iterator[Diagnostic]:
    """sweep-path (K012)

    Finds: a path in `sweep.over` that is not a setting that a sweep can vary.
    Why:   a path is written as for `--set`, from the section on. If it were wrong, all points of the sweep would be
           the same.
    Bad:
        sweep: {type: grid, over: {optimizer.lr: [0.1, 0.01]}}
    Good:
        sweep: {type: grid, over: {training.optimizer.lr: [0.1, 0.01]}}
    """
    for entry in _over(draft):
        placed = wrap_in_path(entry.name, entry.value)
        first = "" if placed is None else next(iter(placed)).name
        if first not in _SWEPT:
            whole = f"training.{entry.name}" if first in ("optimizer", "lr_schedule") else None
            hint = f"write `{whole}`" if whole else f"start with a section: {did_you_mean(first, _SWEPT)}"
            fixes = () if whole is None else suggest_fix(entry.key.span, entry.name, [whole])
            yield error("K012", entry.key.span, f"`{entry.name}` cannot be set by a sweep", hint, fixes=fixes)


def sweep_metric(draft: Draft) -> Iterator[Diagnostic]:
    """sweep-metric (K013)

    Finds: a `sweep.metric` that no run computes; or a sweep with a pruner, whose metric is not computed during the
           run.
    Why:   without the metric, points cannot be compared. A pruner stops runs early, by the metrics computed so far.
    Bad:
        sweep: {type: grid, metric: validation/acuracy, over: {training.optimizer.lr: [0.1, 0.01]}}
    Good:
        sweep: {type: grid, metric: validation/accuracy, over: {training.optimizer.lr: [0.1, 0.01]}}
    """
    sweep, objective, split = draft.sweep, draft.objective, draft.split
    if sweep is None or objective is None or split is None:
        return
    on_the_way = list_evaluated_sets(split, draft.evaluation)
    final = tuple(each for each in split if each in FINAL_SETS and each not in on_the_way)
    known = list_watched_names((*on_the_way, *final, "training"), objective)
    if sweep.metric is not None and sweep.metric not in known:
        span = draft.span("sweep.metric")
        fixes = suggest_fix(span, sweep.metric, known)
        yield error("K013", span, f"no run computes `{sweep.metric}`", did_you_mean(sweep.metric, known), fixes=fixes)
    elif sweep.pruner not in (None, "none"):
        seen = list_watched_names(on_the_way, objective)
        if not seen or (sweep.metric is not None and sweep.metric not in seen):
            what = f"`{sweep.metric}`" if sweep.metric else "nothing"
            message = f"a pruner needs evaluations during the run, but {what} is evaluated then"
            yield error(
                "K013", draft.span("sweep.pruner"), message, "use a metric of a set that is evaluated regularly"
            )


def _over(draft: Draft) -> Iterator[Entry]:
    over = find(draft.tree, ("sweep", "over"))
    if draft.sweep is not None and isinstance(over, Mapping):
        yield from over
