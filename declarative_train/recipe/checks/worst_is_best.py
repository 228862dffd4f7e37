"""worst-is-best (K002)

Finds: a `best` or `early_stop` whose mode goes against its metric: the least accuracy, the most loss.
Why:   the checkpoint kept as the best one would be the worst.
Bad:
    checkpoint: {best: {metric: validation/accuracy, mode: min}}
Good:
    checkpoint: {best: {metric: validation/accuracy, mode: max}}
"""

from __future__ import annotations

from collections.abc import Iterator

from declarative_train.diagnostics.diagnostic import Diagnostic, Related, warning
from declarative_train.recipe.checks.unknown_metric import watches
from declarative_train.recipe.draft import Draft
from declarative_train.recipe.metric_names import evaluated_sets, watched_names


def check(draft: Draft) -> Iterator[Diagnostic]:
    if draft.objective is None or draft.split is None:
        return
    known = watched_names(evaluated_sets(draft.split, draft.evaluation), draft.objective)
    for path, metric, mode in watches(draft):
        if metric in known and known[metric] is not (mode == "max"):
            place = path.removesuffix("metric") + "mode"
            yield warning(
                "K002",
                draft.span(place),
                f"of `{metric}`, {'more' if known[metric] else 'less'} is better",
                f"write `mode: {'max' if known[metric] else 'min'}`",
                (Related(draft.span(path), metric),),
            )
