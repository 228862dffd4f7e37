"""Rules about a mode of parallelism and the ranks that it gets.

Each public function that returns diagnostics is one rule; its docstring is the manual page of its code.
"""

from __future__ import annotations

from collections.abc import Iterator

from declarative_train.components.component import Optimizer
from declarative_train.diagnostics.diagnostic import Diagnostic, Related, error, warning
from declarative_train.recipe.batch import data_parallel_size, num_pipeline_ranks, num_shards
from declarative_train.recipe.draft import Draft
from declarative_train.recipe.sections.layout import Layout
from declarative_train.recipe.sections.parallelism import Ddp, Dp, Fsdp, Pipeline
from declarative_train.terms.amounts import counted
from declarative_train.terms.span import Span


def ranks_do_not_divide(draft: Draft) -> Iterator[Diagnostic]:
    """ranks-do-not-divide (P001)

    Finds: GPUs that do not divide over pipelines, replicas or stages.
    Why:   every rank of a group does the same share of the work; a rest would stand idle or wait for ever.
    Bad:
        parallelism: {mode: fsdp, replicate: 3}
        layout: {gpus: 4}
    Good:
        parallelism: {mode: fsdp, replicate: 2}
        layout: {gpus: 4}
    """
    parallelism, layout = draft.parallelism, draft.layout
    if layout is None:
        return
    if isinstance(parallelism, Fsdp) and parallelism.mesh(layout.num_gpus) is None:
        yield _uneven(draft, layout, "parallelism.replicate", parallelism.replicate, "groups that hold a model each")
    if isinstance(parallelism, Pipeline):
        ranks = num_pipeline_ranks(parallelism, layout)
        if ranks is None:
            size = data_parallel_size(parallelism, layout)
            yield _uneven(draft, layout, "parallelism.data_parallel.size", size, "pipelines")
        elif parallelism.stages % ranks:
            below = parallelism.stages // ranks * ranks
            values = " or ".join(str(value) for value in (below, below + ranks) if value)
            yield error(
                "P001",
                draft.span("parallelism.stages"),
                f"{counted(parallelism.stages, 'stage')} cannot be shared out evenly over the {ranks} ranks of a "
                "pipeline",
                f"set parallelism.stages to {values}",
                (Related(_gpus(draft), counted(layout.num_gpus, "GPU")),),
            )


def _uneven(draft: Draft, layout: Layout, path: str, number: int, what: str) -> Diagnostic:
    fits = [str(each) for each in range(1, layout.num_gpus + 1) if layout.num_gpus % each == 0]
    message = f"{counted(layout.num_gpus, 'GPU')} cannot be shared out evenly over {number} {what}"
    hint = f"set {path} to one of {', '.join(fits)}"
    return error("P001", draft.span(path), message, hint, (Related(_gpus(draft), counted(layout.num_gpus, "GPU")),))


def _gpus(draft: Draft) -> Span:
    return draft.span("layout.gpus" if draft.is_written("layout.gpus") else "layout.gpus_per_node")


def pipeline_of_one(draft: Draft) -> Iterator[Diagnostic]:
    """pipeline-of-one (P009)

    Finds: a pipeline whose stages all lie on one rank.
    Why:   there is no other rank to pass anything to; it would only cost time.
    Bad:
        parallelism: {mode: pipeline, stages: 2, microbatches: 2}
        layout: {gpus: 1}
    Good:
        parallelism: {mode: pipeline, stages: 2, microbatches: 2}
        layout: {gpus: 2}
    """
    parallelism, layout = draft.pipeline, draft.layout
    if parallelism is None or layout is None or num_pipeline_ranks(parallelism, layout) != 1:
        return
    pipelines = data_parallel_size(parallelism, layout)
    gpus = counted(layout.num_gpus, "GPU")
    message = f"{gpus} {'is' if layout.num_gpus == 1 else 'are'} {counted(pipelines, 'pipeline')} of one rank each"
    hint = f"set layout.gpus to {pipelines * parallelism.stages}, or parallelism to " + (
        "single" if layout.num_gpus == 1 else "ddp"
    )
    yield error("P009", draft.span("parallelism.stages"), message, hint, (Related(draft.span("layout"), gpus),))


def shards_of_one(draft: Draft) -> Iterator[Diagnostic]:
    """shards-of-one (P012)

    Finds: hybrid sharding with as many replicas as GPUs.
    Why:   each model is then sharded over one rank, which saves no memory: that is ddp.
    Bad:
        parallelism: {mode: fsdp, replicate: 2}
        layout: {gpus: 2}
    Good:
        parallelism: {mode: fsdp, replicate: 2}
        layout: {gpus: 4}
    """
    parallelism, layout = draft.parallelism, draft.layout
    if isinstance(parallelism, Fsdp) and layout and 1 < parallelism.replicate == layout.num_gpus:
        gpus = counted(layout.num_gpus, "GPU")
        message = f"with {counted(parallelism.replicate, 'replica')} on {gpus} nothing is left to shard over"
        hint = "set parallelism to ddp, or replicate to a smaller number"
        related = (Related(draft.span("layout"), gpus),)
        yield warning("P012", draft.span("parallelism.replicate"), message, hint, related)


def reshard_does_not_divide(draft: Draft) -> Iterator[Diagnostic]:
    """reshard-does-not-divide (P018)

    Finds: a `reshard` whose number of neighbours is not a part of the ranks that share a parameter out.
    Why:   between forward and backward each group of that many ranks holds a whole copy of what was gathered; as many as
           all of them is `true`, and a group that is not full would lack a part.
    Bad:
        parallelism: {mode: fsdp, reshard: 3}
        layout: {gpus: 8}
    Good:
        parallelism: {mode: fsdp, reshard: 4}
        layout: {gpus: 8}
    """  # noqa: E501
    parallelism, layout = draft.parallelism, draft.layout
    if not isinstance(parallelism, Fsdp) or layout is None or isinstance(parallelism.reshard, bool):
        return
    shards, number = num_shards(parallelism, layout), parallelism.reshard
    if parallelism.mesh(layout.num_gpus) is None or (shards % number == 0 and number < shards):
        return
    fits = [str(each) for each in range(2, shards) if shards % each == 0]
    yield error(
        "P018",
        draft.span("parallelism.reshard"),
        f"{number} neighbours, where {counted(shards, 'rank')} {'shares' if shards == 1 else 'share'} a parameter out",
        f"set parallelism.reshard to {' or '.join([*fits, 'true'])}",
    )


def shards_refused(draft: Draft) -> Iterator[Diagnostic]:
    """shards-refused (P013)

    Finds: an optimizer that cannot update sharded parameters, where parameters are sharded.
    Why:   adafactor takes norms over a whole parameter, and a rank of fsdp holds only its shard: torch stops, or would take
           the norm of the shard for that of the parameter.
    Bad:
        training:
          optimizer: {type: adafactor, lr: 0.01}
        parallelism: fsdp
        layout: {gpus: 2}
    Good:
        training:
          optimizer: {type: adamw, lr: 0.001}
        parallelism: fsdp
        layout: {gpus: 2}
    """  # noqa: E501
    place = _sharded_by(draft)
    if place is None:
        return
    for optimizer, span in _optimizers(draft):
        if not optimizer.takes_shards:
            message = f"`{optimizer.type}` needs whole parameters, and fsdp gives each rank a shard of them"
            hint = "take another optimizer, such as adamw, or ddp"
            yield error("P013", span, message, hint, (Related(draft.span(place), "parameters are sharded here"),))


def _sharded_by(draft: Draft) -> str | None:
    """The key that has the parameters sharded."""
    parallelism = draft.parallelism
    if isinstance(parallelism, Fsdp):
        return "parallelism.mode"
    if draft.pipeline is not None and draft.pipeline.is_sharded:
        return "parallelism.data_parallel.mode"
    return None


def _optimizers(draft: Draft) -> Iterator[tuple[Optimizer, Span]]:
    """That of the run, and those of some parameters."""
    if draft.training is not None:
        yield draft.training.optimizer, draft.span("training.optimizer.type")
    for rule in draft.rules:
        if rule.settings.optimizer is not None:
            yield rule.settings.optimizer, rule.span


def ranks_of_one(draft: Draft) -> Iterator[Diagnostic]:
    """ranks-of-one (S010)

    Finds: `ddp`, `fsdp` or `dp` on one GPU.
    Why:   there is no other rank to share the batch with: the run is that of `single`, with the cost of a process group.
           Often the number of GPUs was forgotten in `layout`.
    Bad:
        parallelism: ddp
        layout: {gpus: 1}
    Good:
        parallelism: ddp
        layout: {gpus: 2}
    """  # noqa: E501
    parallelism, layout = draft.parallelism, draft.layout
    if not isinstance(parallelism, Ddp | Dp | Fsdp) or layout is None or layout.num_gpus > 1:
        return
    if isinstance(parallelism, Fsdp) and parallelism.replicate > 1:
        return  # which is refused by its own rule
    said = "`layout` gives 1 GPU" if draft.is_written("layout") else "`layout` is left out: 1 GPU"
    message = f"{parallelism.mode} shares a batch out over GPUs, and {said}"
    hint = "set layout.gpus to 2 or more, or parallelism to single"
    yield warning("S010", draft.span("parallelism.mode"), message, hint)
