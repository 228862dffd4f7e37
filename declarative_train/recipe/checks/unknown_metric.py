"""unknown-metric (K001)

Finds: a `best` or `early_stop` that watches something no evaluation computes.
Why:   the best checkpoint would never be found, and the run would never stop early.
Bad:
    checkpoint: {best: {metric: validation/acuracy, mode: max}}
Good:
    checkpoint: {best: {metric: validation/accuracy, mode: max}}
"""

from __future__ import annotations

from collections.abc import Iterator

from declarative_train.diagnostics.diagnostic import Diagnostic, error
from declarative_train.diagnostics.suggest import did_you_mean, respelt
from declarative_train.recipe.draft import Draft
from declarative_train.recipe.metric_names import FINAL_SETS, evaluated_sets, watched_names


def check(draft: Draft) -> Iterator[Diagnostic]:
    objective, split = draft.objective, draft.split
    if objective is None or split is None:
        return
    known = watched_names(evaluated_sets(split, draft.evaluation), objective)
    for path, metric, _ in watches(draft):
        if metric in known:
            continue
        first = metric.partition("/")[0]
        hint, span = did_you_mean(metric, known), draft.span(path)
        fixes = respelt(span, metric, known)
        if not split:
            hint = "there is no set to evaluate: add `data.split`"
        elif first == "training":
            hint = f"numbers of the training hold for a logging window only; {hint}"
        elif first in FINAL_SETS and first in split:
            hint = f"`{first}` is evaluated once, at the end: name it in evaluation.sets, or watch another set"
        yield error("K001", span, f"no evaluation computes `{metric}`", hint, fixes=fixes)


def watches(draft: Draft) -> Iterator[tuple[str, str, str]]:
    """Path, metric and mode of each place that watches."""
    if draft.checkpoint is not None and draft.checkpoint.best is not None:
        best = draft.checkpoint.best
        yield "checkpoint.best.metric", best.metric, best.mode
    if draft.training is not None and draft.training.early_stop is not None:
        early_stop = draft.training.early_stop
        yield "training.early_stop.metric", early_stop.metric, early_stop.mode
