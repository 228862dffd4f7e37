"""Rules about evaluated sets, watched metrics, and intervals.

Each public function that returns diagnostics is one rule. Its docstring is the manual page of its diagnostic code.
"""

from __future__ import annotations

from collections.abc import Iterator

from declarative_train.core.diagnostics.diagnostic import Diagnostic, Related, error, warning
from declarative_train.core.diagnostics.suggest import did_you_mean, suggest_fix
from declarative_train.core.duration import Duration
from declarative_train.recipe.draft import Draft
from declarative_train.recipe.metric_names import FINAL_SETS, list_evaluated_sets, list_watched_names
from declarative_train.recipe.sections.training import share_of_run


def unknown_metric(draft: Draft) -> Iterator[Diagnostic]:
    """unknown-metric (K001)

    Finds: a `best` or `early_stop` whose `metric` is not computed by any evaluation during the run.
    Why:   no checkpoint would be marked as the best, and the run would never stop early.
    Bad:
        checkpoint: {best: {metric: validation/acuracy, mode: max}}
    Good:
        checkpoint: {best: {metric: validation/accuracy, mode: max}}
    """
    objective, split = draft.objective, draft.split
    if objective is None or split is None:
        return
    known = list_watched_names(list_evaluated_sets(split, draft.evaluation), objective)
    for path, metric, _ in list_watched(draft):
        if metric in known:
            continue
        first = metric.partition("/")[0]
        hint, span = did_you_mean(metric, known), draft.span(path)
        fixes = suggest_fix(span, metric, known)
        if not split:
            hint = "there is no set to evaluate: add `data.split`"
        elif first == "training":
            hint = f"metrics of the training set are computed per logging window; {hint}"
        elif first in FINAL_SETS and first in split:
            hint = f"`{first}` is evaluated once, at the end: watch another set"
        yield error("K001", span, f"no evaluation computes `{metric}`", hint, fixes=fixes)


def list_watched(draft: Draft) -> Iterator[tuple[str, str, str]]:
    """Yield (path of the key, metric, `min` or `max`) for each metric that the recipe watches, in `checkpoint.best`
    and `training.early_stop`."""
    if draft.checkpoint is not None and draft.checkpoint.best is not None:
        best = draft.checkpoint.best
        yield "checkpoint.best.metric", best.metric, best.mode
    if draft.training is not None and draft.training.early_stop is not None:
        early_stop = draft.training.early_stop
        yield "training.early_stop.metric", early_stop.metric, early_stop.mode


def worst_is_best(draft: Draft) -> Iterator[Diagnostic]:
    """worst-is-best (K002)

    Finds: a `best`, `early_stop` or `sweep` whose `mode` does not fit its metric: `min` for an accuracy, `max` for a
           loss.
    Why:   the worst checkpoint would be kept as the best, the run would stop while it improves, or the sweep would
           choose the worst point.
    Bad:
        checkpoint: {best: {metric: validation/accuracy, mode: min}}
    Good:
        checkpoint: {best: {metric: validation/accuracy, mode: max}}
    """
    if draft.objective is None or draft.split is None:
        return
    known = list_watched_names((*draft.split, "training"), draft.objective)
    for path, metric, mode in (*list_watched(draft), *_list_compared(draft)):
        if mode is not None and metric in known and known[metric] is not (mode == "max"):
            place = path.removesuffix("metric") + "mode"
            message = f"a {'higher' if known[metric] else 'lower'} `{metric}` is better"
            hint = f"set `mode: {'max' if known[metric] else 'min'}`"
            yield warning("K002", draft.span(place), message, hint, (Related(draft.span(path), metric),))


def _list_compared(draft: Draft) -> Iterator[tuple[str, str, str | None]]:
    """Yield ("sweep.metric", metric, `sweep.mode`) if the recipe sets `sweep.metric`, by which a sweep compares its
    runs. `sweep.mode` is `min`, `max`, or None if it is not set."""
    if draft.sweep is not None and draft.sweep.metric is not None:
        yield "sweep.metric", draft.sweep.metric, draft.sweep.mode


def chosen_by_test_set(draft: Draft) -> Iterator[Diagnostic]:
    """chosen-by-test-set (K005)

    Finds: a `best`, `early_stop` or `sweep` that compares a metric of the set `test`.
    Why:   a checkpoint or setting that is chosen by the test set fits its rows better than new rows, so the test error
           would be lower than the error on new data. The set `test` is evaluated once, at the end. Choose by another
           set.
    Bad:
        data: {split: {test: 0.2, validation: 0.2}}
        evaluation: {sets: [validation, test]}
        checkpoint: {best: {metric: test/accuracy, mode: max}}
    Good:
        data: {split: {test: 0.2, validation: 0.2}}
        checkpoint: {best: {metric: validation/accuracy, mode: max}}
    """
    split = draft.split or ()
    evaluated = list_evaluated_sets(split, draft.evaluation)
    for path, metric, _ in (*list_watched(draft), *_list_compared(draft)):
        name, _, measure = metric.partition("/")
        if name not in FINAL_SETS or name not in (split if path == "sweep.metric" else evaluated):
            continue
        other = next((each for each in split if each not in FINAL_SETS), None)
        hint = (
            f"write `metric: {other}/{measure}`" if other else "call this set `validation`, and keep others for `test`"
        )
        chosen = {"checkpoint": "the best checkpoint", "training": "the end of the run"}.get(
            path.partition(".")[0], "the best point"
        )
        yield warning(
            "K005", draft.span(path), f"the set `{name}` decides {chosen}, so its metrics look too good", hint
        )


def unknown_set(draft: Draft) -> Iterator[Diagnostic]:
    """unknown-set (K003)

    Finds: a name in `evaluation.sets` that `data.split` does not have.
    Why:   only sets of `data.split` can be evaluated.
    Bad:
        evaluation: {sets: [valid]}
    Good:
        evaluation: {sets: [validation]}
    """
    evaluation, split = draft.evaluation, draft.split
    if evaluation is None or evaluation.sets is None or split is None:
        return
    for position, name in enumerate(evaluation.sets):
        if name not in split:
            hint = did_you_mean(name, split) if split else f"add `{name}` to data.split"
            span = draft.span(("evaluation", "sets", position))
            yield error("K003", span, f"data.split has no set `{name}`", hint, fixes=suggest_fix(span, name, split))


def nothing_to_evaluate(draft: Draft) -> Iterator[Diagnostic]:
    """nothing-to-evaluate (K004)

    Finds: an `evaluation` section in a recipe that has no set to evaluate.
    Why:   the section has no effect, and the run ends without any validation metric.
    Diff:
        data:
    -     split: null
    +     split: {validation: 0.2}
        evaluation: {every: 1 epoch}
    """
    evaluation = draft.evaluation
    if evaluation is not None and not evaluation.sets and draft.split == () and draft.is_written("evaluation"):
        message = "there is no set to evaluate: this has no effect"
        yield warning("K004", draft.span.key("evaluation"), message, "add `split: {validation: 0.1}` to data")


def longer_than_run(draft: Draft) -> Iterator[Diagnostic]:
    """longer-than-run (R006)

    Finds: an interval (`every`) or a `patience` that is longer than the run.
    Why:   an action every 10 epochs, for example, never happens in a run of 5 epochs.
    Diff:
        training: {epochs: 5}
    -   evaluation: {every: 10 epochs}
    +   evaluation: {every: 1 epoch}
    """
    training = draft.training
    if training is None:
        return
    length = "training.epochs" if training.epochs is not None else "training.steps"
    for path, duration in _durations(draft):
        share = share_of_run(duration, training)
        if share is not None and share > 1 and draft.is_written(path):
            message = f"{duration} is longer than the run: it never happens"
            related = (Related(draft.span(length), "the length of the run"),)
            yield warning("R006", draft.span(path), message, "shorten it, or remove it", related)


def _durations(draft: Draft) -> Iterator[tuple[str, Duration]]:
    if draft.evaluation is not None and draft.evaluation.every is not None:
        yield "evaluation.every", draft.evaluation.every
    if draft.checkpoint is not None and draft.checkpoint.every is not None:
        yield "checkpoint.every", draft.checkpoint.every
    if draft.logging is not None:
        yield "logging.every", draft.logging.every
    if draft.training is not None and draft.training.early_stop is not None:
        yield "training.early_stop.patience", draft.training.early_stop.patience


def no_average(draft: Draft) -> Iterator[Diagnostic]:
    """no-average (R008)

    Finds: `evaluation.weights: ema` in a run that keeps no moving average.
    Why:   there are no averaged weights to evaluate.
    Diff:
    +   training: {ema: {decay: 0.99}}
        evaluation: {every: 1 epoch, weights: ema}
    """
    evaluation, training = draft.evaluation, draft.training
    if evaluation is None or training is None or evaluation.weights != "ema" or training.ema is not None:
        return
    message = "there is no moving average of the weights to evaluate"
    yield error("R008", draft.span("evaluation.weights"), message, "add `ema: {decay: 0.9999}` to `training`")
