"""Compiler from recipe to plan. Its passes, in order: describe the data, lower the graph, divide the batch, assign
ranks, predict memory and time, sign the plan."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property

import torch

from declarative_train.core.diagnostics.diagnostic import Diagnostic
from declarative_train.core.machine import own_version
from declarative_train.core.packs import hooks
from declarative_train.data.build_spec import describe
from declarative_train.data.length_buckets import tokens_saved
from declarative_train.data.resemblance import check_resemblance
from declarative_train.data.shared_sets import sample
from declarative_train.data.spec import BatchSpec, DataSpec
from declarative_train.data.split_checks import find_missing_classes, find_undefined_metrics
from declarative_train.graph.check_targets import check_targets, units
from declarative_train.graph.lower import Lowered, lower
from declarative_train.graph.target_leakage import check_disguises
from declarative_train.plan.assign_ranks import assign_ranks
from declarative_train.plan.bucket_models import check_layout, lower_buckets, with_output_shapes
from declarative_train.plan.channels_last import check_channels_last
from declarative_train.plan.checks import linear_after_linear, metric_of_another_kind
from declarative_train.plan.checks.stages import does_not_fit
from declarative_train.plan.class_weights import balance_terms
from declarative_train.plan.codec import sign, through_json
from declarative_train.plan.file_fingerprints import recipe_files
from declarative_train.plan.first_step import check_first_step
from declarative_train.plan.flops import mean_flops, plan_flops
from declarative_train.plan.input_scale import check_inputs
from declarative_train.plan.model_parts import split_models
from declarative_train.plan.parameters import plan_parameters
from declarative_train.plan.plan import PLAN_VERSION, ParameterPlan, Plan, WeightsPlan
from declarative_train.plan.plugins import check_plugins, check_shards, unrun_plugins
from declarative_train.plan.predictions import TAKEN, ChoicePlan
from declarative_train.plan.recomputation import Recomputation
from declarative_train.plan.run_fields import inherit_fields
from declarative_train.plan.sample_groups import check_draws, check_mixing
from declarative_train.plan.sections import (
    plan_checkpoint,
    plan_evaluation,
    plan_logging,
    plan_objective,
    plan_training,
    plan_units,
)
from declarative_train.plan.settings import settings_of
from declarative_train.plan.suspect_answers import check_answers
from declarative_train.plan.suspect_values import check_values
from declarative_train.plan.tensor_maps import plan_published
from declarative_train.plan.timing import Timing, batch_of, num_steps_of
from declarative_train.plan.weights import plan_weights
from declarative_train.planner.auto.choose import choose, judge_all, judge_divided
from declarative_train.planner.auto.judge import Judge, LayoutVerdict
from declarative_train.planner.auto.target import target_of
from declarative_train.planner.estimate.memory import MemoryScale
from declarative_train.planner.estimate.model import ModelFacts
from declarative_train.planner.estimate.tracing import Tracer
from declarative_train.planner.estimates import depends_on_memory, suggest_changes, with_estimates
from declarative_train.recipe.batch import accumulation
from declarative_train.recipe.recipe import Recipe
from declarative_train.recipe.sections.parallelism import Auto, Axes, DataAxes

MOST_TRIED_S = 20.0  # approximate CPU time after which `auto` traces no more doubtful candidates
MOST_TOO_LARGE = 4  # traces that may find a candidate too large, if it fits by the estimate or is the smallest one
SCALE_ROWS = 2


@contextmanager
def _float32_is_default() -> Iterator[None]:
    """Make float32 torch's default dtype within the `with` block, even if the caller has set another one."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@_float32_is_default()
def compile(  # noqa: A001 (hides the builtin; callers read `planner.compile`)
    recipe: Recipe, *, offline: bool = False, tracer: Tracer | None = None, traces_all: bool = False
) -> tuple[Plan | None, list[Diagnostic]]:
    """Return the plan, or None if there is an error, and the diagnostics of all passes.

    `offline`     do not read sources on other machines; a recipe with such a source gets no plan
    `tracer`      predicts the memory of a step by tracing it; None: memory is computed from shapes
    `traces_all`  use the tracer even if nothing depends on the memory"""
    waiting = unrun_plugins(recipe)
    inherited, found = inherit_fields(recipe, offline=offline)
    data, diagnostics = describe(
        recipe.data,
        recipe.seed,
        recipe.span,
        floats=recipe.training.precision.of_fields,
        offline=offline,
        inherited=inherited,
        read=recipe.wires_read,
    )
    diagnostics = [*found, *diagnostics]
    if data is None:
        return None, [*diagnostics, *waiting]
    rows = sample(data)
    diagnostics += check_targets(recipe, data)
    if waiting:
        return None, [*diagnostics, *waiting]
    lowered, found = lower(recipe, {field.name: field.tensor for field in data.fields}, rows)
    diagnostics = [*diagnostics, *found]
    parameters = None
    if lowered is not None:
        diagnostics += check_inputs(recipe, data, rows)
        diagnostics += check_values(recipe, data, rows)
        diagnostics += check_answers(recipe, lowered, data, rows)
        diagnostics += check_disguises(recipe, data, rows)
        diagnostics += check_resemblance(data, *_targets(recipe), recipe.span)
        diagnostics += check_channels_last(recipe, lowered.graph)
        diagnostics += linear_after_linear.check(recipe.model.scope, lowered.graph)
        parameters, found = plan_parameters(recipe, lowered)
        diagnostics += found
        diagnostics += [each for check in hooks("check_recipe") for each in check(recipe, data, parameters or ())]
    if lowered is not None and parameters is not None:
        parameters, found = check_first_step(recipe, lowered, parameters, rows)
        diagnostics += found
    by_length: Sequence[tuple[float, Lowered]] = ()
    if lowered is not None and parameters is not None:
        by_length, found = lower_buckets(recipe, lowered, data)
        diagnostics += found
    weights, found = plan_weights(recipe, lowered, parameters)
    diagnostics += found
    is_auto = isinstance(recipe.parallelism, Auto)
    if is_auto and (lowered is None or parameters is None):
        return None, diagnostics
    site = None
    if lowered is not None:
        site = CompileContext(
            data, lowered, by_length, weights, parameters, tracer if traces_all or depends_on_memory(recipe) else None
        )
    if is_auto:
        assert site is not None
        plan, found = _choose_mode(recipe, site)
    else:
        if site is None:
            return None, diagnostics + batch_of(recipe, data)[1]
        plan, found = _make_plan(recipe, site, None)
    diagnostics += found
    if plan is None or any(item.is_error for item in diagnostics):
        return None, diagnostics
    return sign(through_json(plan)), diagnostics  # the plan is the same as after saving


@dataclass(frozen=True)
class CompileContext:
    """Facts about a recipe that do not depend on its mode, computed once for all modes that `auto` tries.

    `by_length`: for each length bucket, (share of the samples, lowered model). `parameters`: None if the settings of a
    parameter have an error. `tracer`: predicts the memory of a step by tracing the step; None: the memory is computed
    from shapes.
    """

    data: DataSpec
    lowered: Lowered
    by_length: Sequence[tuple[float, Lowered]]
    weights: tuple[WeightsPlan, ...]
    parameters: tuple[ParameterPlan, ...] | None
    tracer: Tracer | None

    @cached_property
    def scales(self) -> ScaleCache:
        return ScaleCache(self)


def _choose_mode(recipe: Recipe, site: CompileContext) -> tuple[Plan | None, list[Diagnostic]]:
    """Return the plan in the mode that `auto` chooses, or None if there is no such mode, and diagnostics.

    All candidates are compared by estimates. The best one is traced, to check that it fits into memory; if not, the
    next one is tried. After a time limit no candidate is traced, and the plan lists those that were not.
    """
    assert site.parameters is not None
    target, tracer = target_of(recipe.layout), site.tracer
    judge = Judge.of(recipe, site.lowered, site.parameters, site.data, target, site.scales)
    verdicts, known = judge_all(judge), dict[str, int]()
    if any(each.step_s for each in verdicts) or not any(each.fits for each in verdicts):
        verdicts += judge_divided(judge)
    num_hopeless = num_too_large = 0
    begun_s = 0.0 if tracer is None else tracer.spent_s
    while True:
        may_trace = tracer is not None and tracer.spent_s - begun_s < MOST_TRIED_S and num_hopeless < MOST_TOO_LARGE
        choice = choose(judge, verdicts, known, may_trace=may_trace)
        if choice.bounded is not None:
            exact = judge.verdict_of_divided(choice.bounded, is_exact=True)
            assert exact is not None
            verdicts[_find(verdicts, choice.bounded.words)] = exact
            continue
        if choice.doubtful is not None:
            tried, found = _try_mode(recipe._replace(parallelism=choice.doubtful.parallelism), site)
            words = choice.doubtful.words
            at = _find(verdicts, words)
            if found:
                verdicts[at] = LayoutVerdict(choice.doubtful, found[0])
            else:
                known[words] = verdicts[at].memory_bytes if tried is None else _peak_bytes(tried)
            num_hopeless += choice.is_last_hope
            continue
        if choice.recipe is None or choice.plan is None:
            return None, choice.diagnostics
        plan, more = _make_plan(choice.recipe, site, choice.plan)
        taken = next(each.parallelism for each in choice.plan.candidates if each.verdict == TAKEN)
        refusals = _errors_of_mode(recipe, more)
        if refusals:
            at = _find(verdicts, taken)
            verdicts[at] = LayoutVerdict(verdicts[at].candidate, refusals[0])
            continue
        if tracer is not None and plan is not None and plan.memory and taken not in known:
            known[taken] = _peak_bytes(plan)
            if not target.holds(known[taken]):
                num_too_large += not may_trace
                if num_too_large < MOST_TOO_LARGE:
                    continue
                assert target.memory_bytes is not None
                place, certain = recipe.span("parallelism"), target.hardware is not None
                room = target.memory_bytes
                more = [
                    *more,
                    does_not_fit(place, taken, known[taken], room, suggest_changes(plan), is_certain=certain),
                ]
        return _with_num_traced(plan, len(known)), [*choice.diagnostics, *more]


def _find(verdicts: Sequence[LayoutVerdict], words: str) -> int:
    return next(at for at, each in enumerate(verdicts) if each.candidate.words == words)


def _targets(recipe: Recipe) -> tuple[set[str], set[str]]:
    """Return two sets of field names: the fields that are targets of losses, and the fields that are targets of losses
    over classes."""
    terms = [term for term in recipe.objective.losses.values() if term.target is not None]
    return {str(term.target) for term in terms}, {
        str(term.target) for term in terms if term.component.about == "classes"
    }


def _try_mode(recipe: Recipe, site: CompileContext) -> tuple[Plan | None, list[Diagnostic]]:
    """Compile `recipe`, whose mode is one candidate of `auto`. Return the plan, and the errors that may be absent in
    other modes. The plan is None if there is an error, or if the plan's memory is unknown."""
    plan, found = _make_plan(recipe, site, None)
    return (plan if plan is not None and plan.memory else None), _errors_of_mode(recipe, found)


def _make_plan(recipe: Recipe, site: CompileContext, choice: ChoicePlan | None) -> tuple[Plan | None, list[Diagnostic]]:
    batch, found = batch_of(recipe, site.data)
    if batch is None:
        return None, found
    plan, more = _assemble(recipe, site, batch, choice)
    return plan, [*found, *more]


def _errors_of_mode(recipe: Recipe, diagnostics: list[Diagnostic]) -> list[Diagnostic]:
    """Return the errors in `diagnostics` that point to the recipe's key `parallelism`: its value causes them."""
    places = (recipe.span("parallelism"), recipe.span("parallelism.pipeline"), recipe.span("parallelism.data"))
    return [each for each in diagnostics if each.is_error and each.span in places]


def _peak_bytes(plan: Plan) -> int:
    return max(each.of_step for each in plan.memory)


def _with_num_traced(plan: Plan | None, num_traced: int) -> Plan | None:
    """Return the plan with `ChoicePlan.num_traced` set to `num_traced`, the number of candidates whose memory was
    traced. If there is no plan, or it has no ChoicePlan, return `plan` unchanged."""
    if plan is None or plan.choice is None:
        return plan
    return replace(plan, choice=replace(plan.choice, num_traced=num_traced))


class ScaleCache:
    """Cache of `MemoryScale`, the factors with which the bytes of a model are computed from its counted elements. There
    is one for each precision and recomputation policy. A call returns None without a tracer.

    The factors are measured in a trace of the recipe in mode fsdp on all GPUs. If the model or the batch does not allow
    this mode, the trace uses one device.
    """

    def __init__(self, site: CompileContext) -> None:
        self._site = site
        self._known: dict[tuple[str, Recomputation], MemoryScale | None] = {}

    def __call__(self, recipe: Recipe, model: ModelFacts) -> MemoryScale | None:
        tracer, training = self._site.tracer, recipe.training
        if tracer is None:
            return None
        key = (training.precision.compute, Recomputation.of(training.activation_checkpointing))
        if key not in self._known:
            plan = self._reference(recipe)
            self._known[key] = None if plan is None else tracer.scale(plan, model)
        return self._known[key]

    def _reference(self, recipe: Recipe) -> Plan | None:
        site = replace(self._site, tracer=None)
        sharded = recipe._replace(parallelism=Axes(data=DataAxes(shard="all")))
        divides = accumulation(recipe.training, sharded.mode, recipe.layout) is not None
        if divides and recipe.layout.num_gpus > 1 and not check_shards(sharded, site.lowered):
            batch, _ = batch_of(sharded, site.data)
            plan = None if batch is None else _assemble(sharded, site, batch, None)[0]
            if plan is not None:
                return plan
        batch = BatchSpec(SCALE_ROWS, 1, 1, SCALE_ROWS, 1, steps_per_epoch=1)
        return _assemble(recipe._replace(parallelism=Axes()), site, batch, None)[0]


def _assemble(
    recipe: Recipe, site: CompileContext, batch: BatchSpec, choice: ChoicePlan | None
) -> tuple[Plan | None, list[Diagnostic]]:
    """Run the passes of the compiler that depend on the parallelism mode. Return (plan, diagnostics); the plan is None
    if there is an error. `choice`: how `parallelism: auto` chose the mode, which the plan records; None if the recipe
    sets the mode."""
    data, lowered, weights, parameters = site.data, site.lowered, site.weights, site.parameters
    diagnostics = [*check_mixing(recipe, lowered, batch, data), *check_draws(recipe, lowered, batch)]
    diagnostics += check_plugins(recipe, lowered, batch)
    classes = {term.edges.target for term in lowered.terms if term.component.about == "classes" and term.edges.target}
    diagnostics += find_missing_classes(data, classes, recipe.span)
    diagnostics += find_undefined_metrics(
        data, [(each.name, each.component, each.edges.target or "") for each in lowered.measures], recipe.span
    )
    diagnostics += metric_of_another_kind.check(recipe, lowered, data)
    of_targets, found = units(recipe, data)
    diagnostics += found
    terms, found = balance_terms(recipe, lowered, data)
    diagnostics += found
    timing = Timing(recipe, batch, num_steps_of(recipe, batch), _tokens_per_sample(lowered, data))
    sections = (plan_training(recipe, timing), plan_evaluation(recipe, timing, batch))
    keeping = (plan_checkpoint(recipe, timing), plan_logging(recipe, timing))
    diagnostics += timing.diagnostics
    if parameters is None:
        return None, diagnostics
    lowered, parameters, found = split_models(recipe, lowered, parameters)
    diagnostics += found
    if any(item.is_error for item in found):
        return None, diagnostics
    layout, found = assign_ranks(recipe, lowered, parameters, batch)
    diagnostics += found
    if layout is None:
        return None, diagnostics
    asked = recipe.layout
    shorter = [split_models(recipe, each, ())[0] for _, each in site.by_length[:-1]]
    diagnostics += check_layout(layout, recipe, parameters, data, shorter)
    objective = plan_objective(terms, lowered.measures, lowered.sources, plan_units(of_targets, data))
    layout = with_output_shapes(layout, objective.terms, [*shorter, lowered])
    layout = replace(layout, hardware=asked.hardware, min_nodes=asked.min_nodes, max_restarts=asked.num_restarts)
    plan = Plan(
        version=PLAN_VERSION,
        dtrain_version=own_version(),
        name=recipe.name,
        seed=recipe.seed,
        language=recipe.language,
        files=recipe_files(recipe),
        overrides=recipe.document.overrides,
        plugins=recipe.plugins,
        recipe={file.path: file.text for file in recipe.document.files if file.role != "block"},
        data=data,
        batch=batch,
        batch_graph=lowered.batch_graph,
        graph=lowered.graph,
        parameters=parameters,
        objective=objective,
        training=sections[0],
        evaluation=sections[1],
        checkpoint=keeping[0],
        logging=keeping[1],
        layout=layout,
        weights=weights,
        published=plan_published(recipe.model.scope),
        meta=dict(recipe.meta),
        draws=tuple(fact.path for fact in lowered.facts if fact.kind == "random"),
        settings=settings_of(recipe),
        flops=mean_flops(
            (
                share,
                plan_flops(
                    each.graph,
                    parameters,
                    layout.units,
                    Recomputation.of(recipe.training.activation_checkpointing),
                    lowered.heads,
                ),
            )
            for share, each in site.by_length
        ),
    )
    for plan_more in hooks("plan_evaluation"):
        plan, more = plan_more(plan, recipe)
        diagnostics += more
    graphs = [each.graph for each in (*shorter, lowered)]
    by_length = [(share, graph) for (share, _), graph in zip(site.by_length, graphs, strict=False)]
    plan, found = with_estimates(plan, recipe, choice, site.tracer, site.scales, by_length)
    return plan, [*diagnostics, *found]


def _tokens_per_sample(lowered: Lowered, data: DataSpec) -> int | None:
    """Return the length of the model's first input of token ids, or None if the model has no such input. With length
    buckets, return the mean length."""
    specs = lowered.graph.inputs.values()
    return next(
        (spec.shape[0] - tokens_saved(data) for spec in specs if spec.num_values is not None and len(spec.shape) == 1),
        None,
    )
