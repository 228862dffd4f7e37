"""Conversion of the recipe's sections training, evaluation, checkpoint, logging and objective to the classes of the
plan: components become plain data, durations become steps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from declarative_train.components.data import Unit
from declarative_train.data.spec import BatchSpec, DataSpec
from declarative_train.files.open_files import local_path
from declarative_train.graph.check_objective import Measure, Term
from declarative_train.plan.plan import (
    CheckpointPlan,
    EarlyStopPlan,
    EvaluationPlan,
    LoggingPlan,
    MetricPlan,
    ObjectivePlan,
    PluginSinkPlan,
    TermPlan,
    TrainingPlan,
    UnitPlan,
)
from declarative_train.plan.precision import reduce_word
from declarative_train.plan.recomputation import Recomputation
from declarative_train.plan.timing import Timing
from declarative_train.recipe.metric_names import FINAL_SETS, list_evaluated_sets
from declarative_train.recipe.recipe import Recipe
from declarative_train.recipe.sections.evaluation import Evaluation
from declarative_train.recipe.sections.logging import RUNS, PluginSink


def plan_units(units: Mapping[str, tuple[str, Unit]], data: DataSpec) -> dict[str, UnitPlan]:
    """Return {metric: conversion of its input and target to the unit of the column that the target comes from}.

    `units`: {metric: (target field, unit of this field)}. If samples are windows of several rows, a conversion applies
    to each row.
    """
    fields = {field.name: field for field in data.fields}
    found = {}
    for metric, (name, unit) in units.items():
        shape = fields[name].tensor.shape
        if data.window is not None and not isinstance(fields[name].component.get("rows"), int):
            shape = shape[1:]
        found[metric] = UnitPlan(name, unit.multiply, unit.add, () if len(unit.add) == 1 else shape)
    return found


def plan_objective(
    terms: Iterable[Term], measures: Iterable[Measure], sources: Mapping[str, str], units: Mapping[str, UnitPlan]
) -> ObjectivePlan:
    """Return the plan of losses (`terms`) and metrics (`measures`). `sources`: {name of a tensor in the recipe: its
    name in the batch or among the outputs of the model}. `units`: {metric: conversion of its input and target to the
    unit of the target's columns}."""

    def source(name: str | None) -> str | None:
        return None if name is None else sources[name]

    return ObjectivePlan(
        tuple(
            TermPlan(
                name=term.name,
                component=term.component.as_data(),
                input=sources[term.edges.input],
                target=source(term.edges.target),
                mask=source(term.edges.mask),
                weight=term.weight,
            )
            for term in terms
        ),
        tuple(
            MetricPlan(
                name=measure.name,
                component=measure.component.as_data(),
                input=sources[measure.edges.input],
                target=source(measure.edges.target),
                mask=source(measure.edges.mask),
                ignore_index=measure.ignore_index,
                class_dim=measure.class_dim,
                unit=units.get(measure.name),
            )
            for measure in measures
        ),
    )


def plan_training(recipe: Recipe, timing: Timing) -> TrainingPlan:
    training = recipe.training
    schedule = training.lr_schedule
    early_stop = training.early_stop
    resolved = timing.resolve(schedule.component, schedule.warmup)
    num_warmup_steps = timing.warmup("training.lr_schedule.warmup", schedule.warmup)
    if num_warmup_steps < timing.num_steps:
        timing.check_lr(resolved, num_warmup_steps)
    return TrainingPlan(
        num_steps=timing.num_steps,
        num_epochs=training.epochs,
        optimizer=training.optimizer.as_data(),
        lr_schedule=resolved.as_data(),
        num_warmup_steps=num_warmup_steps,
        clip_grad_norm=training.clip_grad_norm,
        precision=training.precision.compute,
        compile=training.compile,
        activation_checkpointing=training.activation_checkpointing.policy,
        non_finite=training.non_finite,
        early_stop=None
        if early_stop is None
        else EarlyStopPlan(
            early_stop.metric,
            early_stop.mode,
            timing.interval("training.early_stop.patience", early_stop.patience) or 1,
        ),
        max_time_s=None if training.max_time is None else training.max_time.seconds,
        deterministic=training.deterministic,
        ema_decay=None if training.ema is None else timing.decay("training.ema.decay", training.ema.decay),
        reduce=reduce_word(training.precision),
        matmul=training.precision.matmul,
        checkpointing_every=Recomputation.of(training.activation_checkpointing).every,
        checkpointing_keep=training.activation_checkpointing.keep,
        channels_last=training.channels_last,
    )


def plan_evaluation(recipe: Recipe, timing: Timing, batch: BatchSpec) -> EvaluationPlan | None:
    """Return the plan of the evaluations, or None if the recipe has nothing to evaluate."""
    evaluation = recipe.evaluation
    sets = list_evaluated_sets(recipe.data.split, evaluation)
    final_sets = tuple(name for name in recipe.data.split if name in FINAL_SETS and name not in sets)
    if evaluation.sets is not None:
        final_sets = ()
    of_packs = type(evaluation).model_fields.keys() - Evaluation.model_fields.keys()
    if not sets and not final_sets and all(getattr(evaluation, name) is None for name in of_packs):
        return None
    every_steps = timing.interval("evaluation.every", evaluation.every)
    if every_steps is None and (recipe.training.early_stop is not None or recipe.checkpoint.best is not None):
        every_steps = (
            batch.steps_per_epoch
        )  # a single evaluation at the end could neither stop a run nor find its best step
    return EvaluationPlan(
        every_steps=every_steps,
        sets=sets,
        final_sets=final_sets,
        max_samples=None if evaluation.max is None else int(evaluation.max.value),
        batch_size=evaluation.batch_size or batch.microbatch_size,
        weights=evaluation.weights,
    )


def plan_checkpoint(recipe: Recipe, timing: Timing) -> CheckpointPlan | None:
    checkpoint = recipe.checkpoint
    if not checkpoint.keep:
        return None
    return CheckpointPlan(
        every_steps=timing.interval("checkpoint.every", checkpoint.every),
        keep=checkpoint.keep,
        best_metric=None if checkpoint.best is None else checkpoint.best.metric,
        best_mode="min" if checkpoint.best is None else checkpoint.best.mode,
        background=checkpoint.background,
        base=checkpoint.base,
        on_failure=checkpoint.on_failure,
    )


def plan_logging(recipe: Recipe, timing: Timing) -> LoggingPlan:
    logging, local = recipe.logging, local_path(recipe.logging.dir)
    folder, remote = (RUNS, logging.dir) if local is None else (local, None)
    sinks: dict[str, dict[str, object]] = {}
    plugins: dict[str, PluginSinkPlan] = {}
    for name, settings in logging.sinks:
        if isinstance(settings, PluginSink):  # the plugin's code has the defaults
            sinks[name] = settings.model_dump(by_alias=True, exclude_unset=True)
            plugins[name] = PluginSinkPlan(settings.plugin_path, settings.plugin_class)
        elif settings is not None and name != "jsonl":  # which every run has
            sinks[name] = settings.model_dump()
    if "mlflow" in sinks:
        sinks["mlflow"]["folder"] = folder
    every_steps = timing.interval("logging.every", logging.every) or 1
    return LoggingPlan(folder, every_steps, sinks, plugins, recipe.checkpoint.dir or remote, remote)
