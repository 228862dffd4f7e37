"""Rules about stages, cuts and schedules of a pipeline.

Each public function that returns diagnostics is one rule. Its docstring is the manual page of its diagnostic code.
"""

from __future__ import annotations

from collections.abc import Iterator

from declarative_train.components.pipeline_schedules import PIPELINE_SCHEDULES
from declarative_train.core.amounts import format_count
from declarative_train.core.diagnostics.diagnostic import Diagnostic, Related, error
from declarative_train.recipe.batch import accumulation, num_pipeline_ranks
from declarative_train.recipe.draft import Draft
from declarative_train.recipe.model.tree import BlockNode, Scope
from declarative_train.recipe.model.walk import Frame, all_layers, all_nodes


def schedule_needs_stages(draft: Draft) -> Iterator[Diagnostic]:
    """schedule-needs-stages (P006)

    Finds: a number of stages per rank that the pipeline schedule does not support.
    Why:   gpipe and 1f1b have one stage on each rank, zbv and dualpipev exactly two, and the looped schedules two or
           more.
    Diff:
    -   parallelism: {pipeline: {stages: 4, schedule: 1f1b, microbatches: 4}}
    +   parallelism: {pipeline: {stages: 2, schedule: 1f1b, microbatches: 4}}
        layout: {gpus: 2}
    """
    pipeline, layout = draft.pipeline, draft.layout
    if pipeline is None or layout is None:
        return
    ranks = num_pipeline_ranks(draft.parallelism, layout)
    if ranks is None or ranks == 1 or pipeline.stages % ranks:
        return
    held = pipeline.stages // ranks
    schedule = PIPELINE_SCHEDULES[pipeline.schedule]
    if schedule.holds(held):
        return
    least, most = schedule.stages_per_rank
    wanted = f"{least} or more" if most is None else f"exactly {least}"
    others = [name for name, each in PIPELINE_SCHEDULES.items() if each.holds(held)]
    yield error(
        "P006",
        draft.span("parallelism.pipeline.stages"),
        f"{pipeline.schedule} needs {wanted} {'stage' if wanted.endswith('1') else 'stages'} on each rank; "
        f"{pipeline.stages} stages on {ranks} ranks give {held}",
        f"set parallelism.pipeline.stages to {ranks * least}, or parallelism.pipeline.schedule to {', '.join(others)}",
        (Related(draft.span("parallelism.pipeline.schedule"), pipeline.schedule),),
    )


def schedule_needs_microbatches(draft: Draft) -> Iterator[Diagnostic]:
    """schedule-needs-microbatches (P007)

    Finds: a number of microbatches, over all accumulation steps, that the pipeline schedule does not support.
    Why:   1f1b and dualpipev need at least one microbatch for each stage, because they fill all stages before the
           first backward. An interleaved schedule processes the microbatches in several rounds, and each round must
           have the same number of them.
    Diff:
    -   parallelism: {pipeline: {stages: 2, schedule: 1f1b, microbatches: 1}}
    +   parallelism: {pipeline: {stages: 2, schedule: 1f1b, microbatches: 2}}
        layout: {gpus: 2}
    """
    pipeline, layout, training = draft.pipeline, draft.layout, draft.training
    if pipeline is None or layout is None or training is None:
        return
    ranks = num_pipeline_ranks(draft.parallelism, layout)
    steps = accumulation(training, draft.parallelism, layout)
    if ranks is None or steps is None or pipeline.stages % ranks:
        return
    if draft.scope is not None and _lacks_nodes(draft.scope, pipeline.stages):
        return  # P017 reports too many stages; with fewer stages the microbatches may be enough
    number, schedule = steps * pipeline.microbatches, PIPELINE_SCHEDULES[pipeline.schedule]
    most = 2 * number + pipeline.stages
    fits = [each for each in range(1, most + 1) if schedule.takes(each, ranks, pipeline.stages)]
    if number in fits:
        return
    made = f" ({steps} accumulation steps x {pipeline.microbatches})" if steps > 1 else ""
    rule = (
        f"at least {format_count(pipeline.stages, 'microbatch')}, one for each stage"
        if schedule.fills_first
        else f"a multiple of its {format_count(number // ranks, 'round')} over {ranks} ranks"
    )
    near = [max((each for each in fits if each < number), default=0), min(each for each in fits if each > number)]
    values = " or ".join(str(each) for each in near if each and each % steps == 0) or str(near[1])
    message = f"{pipeline.schedule} needs {rule}, but there {'is' if number == 1 else 'are'} {number}{made}"
    hint = f"set the total to {values}" if steps > 1 else f"set parallelism.pipeline.microbatches to {values}"
    yield error("P007", draft.span("parallelism.pipeline.microbatches"), message, hint)


def cut_count(draft: Draft) -> Iterator[Diagnostic]:
    """cut-count (P008)

    Finds: a `cut_before` whose number of names is not `stages` - 1, or that has a name twice.
    Why:   each name is the node at which a new stage starts. The first stage starts at the first node and needs no
           name.
    Diff:
    -   parallelism: {pipeline: {stages: 2, microbatches: 2, cut_before: [act, logits]}}
    +   parallelism: {pipeline: {stages: 2, microbatches: 2, cut_before: [logits]}}
        layout: {gpus: 2}
    """
    pipeline = draft.pipeline
    if pipeline is None or pipeline.cut_before == "auto":
        return
    cuts = pipeline.cut_before
    for position, name in enumerate(cuts):
        if name in cuts[:position]:
            yield error(
                "P008",
                draft.span(("parallelism", "pipeline", "cut_before", position)),
                f"`{name}` already starts a stage",
            )
    wanted = pipeline.stages - 1
    if len(cuts) != wanted:
        made = f"{format_count(len(cuts), 'cut')} {'makes' if len(cuts) == 1 else 'make'}"
        message = f"{made} {format_count(len(cuts) + 1, 'stage')}, but `stages` is {pipeline.stages}"
        more = f"set parallelism.pipeline.stages to {len(cuts) + 1}"
        hint = f"name {format_count(wanted, 'node')}, {more}, or remove cut_before"
        related = (Related(draft.span("parallelism.pipeline.stages"), format_count(pipeline.stages, "stage")),)
        yield error("P008", draft.span("parallelism.pipeline.cut_before"), message, hint, related)


def zero_bubble_compile(draft: Draft) -> Iterator[Diagnostic]:
    """zero-bubble-compile (P010)

    Finds: `compile: true` with the schedule interleaved_zero_bubble, zbv or dualpipev.
    Why:   these schedules split each backward in two, which torch does not support for compiled stages.
    Diff:
    -   parallelism: {pipeline: {stages: 4, schedule: zbv, microbatches: 4}}
    +   parallelism: {pipeline: {stages: 2, schedule: 1f1b, microbatches: 4}}
        layout: {gpus: 2}
        training: {compile: true}
    """
    pipeline, training = draft.pipeline, draft.training
    if pipeline is None or training is None or not PIPELINE_SCHEDULES[pipeline.schedule].splits_backward:
        return
    related = (Related(draft.span("parallelism.pipeline.schedule"), pipeline.schedule),)
    if training.compile:
        message = f"torch cannot compile stages for {pipeline.schedule}"
        hint = "set training.compile to false, or parallelism.pipeline.schedule to interleaved_1f1b"
        yield error("P010", draft.span("training.compile"), message, hint, related)


def more_stages_than_nodes(draft: Draft) -> Iterator[Diagnostic]:
    """more-stages-than-nodes (P017)

    Finds: more pipeline stages than the model has nodes.
    Why:   a stage needs at least one node. Nodes are not split, except models of `transformers` (see P114).
    Bad:
        parallelism: {pipeline: {stages: 64, microbatches: 64}}
        layout: {gpus: 64}
        training: {global_batch_size: 64}
    Good:
        parallelism: {pipeline: {stages: 2, microbatches: 2}}
        layout: {gpus: 2}
        training: {global_batch_size: 8}
    """
    if (pipeline := draft.pipeline) is None or draft.scope is None:
        return
    if _lacks_nodes(draft.scope, pipeline.stages):
        nodes = _num_nodes(draft.scope)
        message = f"{format_count(pipeline.stages, 'stage')}, but the model has only {format_count(nodes, 'node')}"
        yield error("P017", draft.span("parallelism.pipeline.stages"), message, f"at most {nodes}")


def _num_nodes(scope: Scope) -> int:
    """Return the number of nodes of a model, counting the nodes inside blocks instead of the blocks."""
    return sum(not isinstance(node, BlockNode) for _, node in all_nodes(Frame(scope)))


def _lacks_nodes(scope: Scope, stages: int) -> bool:
    """Return whether the model has too few nodes for `stages` stages. Always False if it contains a model of a
    library, whose layers are not counted here."""
    return _num_nodes(scope) < stages and not any(node.layer.is_library for node in all_layers(scope))
