"""Rules about modes of parallelism and their ranks.

Each public function that returns diagnostics is one rule. Its docstring is the manual page of its diagnostic code.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from declarative_train.components.component import Optimizer
from declarative_train.components.pipeline_schedules import PIPELINE_SCHEDULES
from declarative_train.core.amounts import format_count
from declarative_train.core.diagnostics.diagnostic import Diagnostic, Related, error, warning
from declarative_train.core.machine import NEEDED_TORCH, is_older_torch
from declarative_train.core.mesh import Axis, size_of
from declarative_train.core.span import Span
from declarative_train.recipe.batch import data_parallel_size, num_pipeline_ranks, num_shards
from declarative_train.recipe.draft import Draft
from declarative_train.recipe.sections.layout import Layout
from declarative_train.recipe.sections.parallelism import Axes

MOST_SHARDS = 1024


def ranks_do_not_divide(draft: Draft) -> Iterator[Diagnostic]:
    """ranks-do-not-divide (P001)

    Finds: a number of GPUs that the axes of parallelism do not fit: it is not divisible by the product of their sizes,
           or this product uses only a part of the GPUs. Also a number of stages that is not divisible by the number of
           ranks in a pipeline.
    Why:   all ranks of a group do the same share of the work. Remaining ranks would be idle or wait forever.
    Diff:
    -   parallelism: {data: {shard: all, replicate: 3}}
    +   parallelism: {data: {shard: all, replicate: 2}}
        layout: {gpus: 4}
    """
    axes, layout = draft.axes, draft.layout
    if axes is None or layout is None or len(axes.open_axes) > 1:
        return
    mesh = axes.mesh(layout.num_gpus)
    if mesh is None:
        yield _report_uneven(draft, axes, layout)
    elif axes.pipeline is not None and axes.pipeline.stages % (ranks := size_of(mesh, "pipeline")):
        stages = axes.pipeline.stages
        below = stages // ranks * ranks
        values = " or ".join(str(value) for value in (below, below + ranks) if value)
        yield error(
            "P001",
            draft.span("parallelism.pipeline.stages"),
            f"{format_count(stages, 'stage')} cannot be divided evenly over the {ranks} ranks of a pipeline",
            f"set parallelism.pipeline.stages to {values}",
            (Related(_gpus(draft), format_count(layout.num_gpus, "GPU")),),
        )


def _report_uneven(draft: Draft, axes: Axes, layout: Layout) -> Diagnostic:
    """Return the error for a number of GPUs that the axes cannot divide evenly or cannot use completely."""
    sizes: dict[Axis, int] = {name: size for name, size in axes.sizes.items() if size != "all"}
    number, gpus = axes.multiply_sizes(), format_count(layout.num_gpus, "GPU")
    related = (Related(_gpus(draft), gpus),)
    if axes.pipeline is not None and layout.num_gpus % number == 0:
        message = f"{gpus} cannot be divided evenly over pipelines of {axes.pipeline.most_ranks} ranks"
        hint = "set layout.gpus to a multiple of that, or set the number of pipelines, such as `replicate: 2`"
        return error("P001", draft.span("parallelism.pipeline.stages"), message, hint, related)
    first, size = next(iter(sizes.items()))
    is_inner = first in ("expert", "context", "tensor")
    path = f"parallelism.{first}" if is_inner else f"parallelism.data.{first}"
    what = " x ".join(f"{size} {_WHAT[name]}" for name, size in sizes.items())
    if layout.num_gpus % number == 0:
        message = f"{what} use only a part of the {gpus}"
        hint = "add `data: {replicate: all}`" if is_inner else f"write `all` for {first}"
        hint = f"{hint}, or set layout.gpus to {number}"
        return error("P001", draft.span(path), message, hint, related)
    others = number // size
    fits = [str(each) for each in range(1, layout.num_gpus + 1) if layout.num_gpus % (each * others) == 0]
    hint = f"set {path} to one of {', '.join(fits)}" if fits else f"set layout.gpus to a multiple of {number}"
    return error("P001", draft.span(path), f"{gpus} cannot be divided evenly over {what}", hint, related)


_WHAT: dict[Axis, str] = {
    "replicate": "copies of the model",
    "shard": "shards",
    "expert": "ranks of experts",
    "context": "ranks per sequence",
    "tensor": "ranks per layer",
}


def _gpus(draft: Draft) -> Span:
    return draft.span("layout.gpus" if draft.is_written("layout.gpus") else "layout.gpus_per_node")


def axes_of_no_size(draft: Draft) -> Iterator[Diagnostic]:
    """axes-of-no-size (P021)

    Finds: a `parallelism.data` without an axis, with two axes set to `all`, or with a `reshard` that has no effect.
    Why:   `all` is the number of ranks that remain after the other axes, so only one axis can have it. `reshard` needs
           the axis `shard`, and has no effect in a pipeline.
    Diff:
    -   parallelism: {data: {replicate: all, shard: all}}
    +   parallelism: {data: {replicate: 2, shard: all}}
        layout: {gpus: 4}
    """
    axes = draft.axes
    if axes is None or axes.data is None:
        return
    if len(axes.open_axes) > 1:
        message, hint = "two axes are `all`: their sizes are undetermined", "set one of them to a number"
        yield error("P021", draft.span.key("parallelism.data.shard"), message, hint)
    elif not axes.data.sizes:
        message = "`parallelism.data` has no axis"
        hint = "add `replicate: all` (each rank has the whole model) or `shard: all` (a part of it)"
        yield error("P021", draft.span.key("parallelism.data"), message, hint, rests_on="all files")
    elif draft.is_written("parallelism.data.reshard") and (not axes.is_sharded or axes.pipeline is not None):
        why = "stages of a pipeline remain gathered during a step" if axes.is_sharded else "there is no axis `shard`"
        message = f"`reshard` has no effect here: {why}"
        yield error("P021", draft.span.key("parallelism.data.reshard"), message, "remove it")


def pipeline_of_one(draft: Draft) -> Iterator[Diagnostic]:
    """pipeline-of-one (P009)

    Finds: a pipeline whose stages are all on one rank.
    Why:   there is no other rank to send to, so the pipeline would only cost time.
    Diff:
        parallelism: {pipeline: {stages: 2, microbatches: 2}}
    -   layout: {gpus: 1}
    +   layout: {gpus: 2}
    """
    axes, layout = draft.axes, draft.layout
    if axes is None or axes.pipeline is None or layout is None or num_pipeline_ranks(axes, layout) != 1:
        return
    pipelines = data_parallel_size(axes, layout)
    gpus = format_count(layout.num_gpus, "GPU")
    message = f"{gpus} {'makes' if layout.num_gpus == 1 else 'make'} {format_count(pipelines, 'pipeline')} of one rank"
    hint = f"set layout.gpus to {pipelines * axes.pipeline.stages}, or parallelism to " + (
        "single" if layout.num_gpus == 1 else "ddp"
    )
    yield error(
        "P009", draft.span("parallelism.pipeline.stages"), message, hint, (Related(draft.span("layout"), gpus),)
    )


def shards_of_one(draft: Draft) -> Iterator[Diagnostic]:
    """shards-of-one (P012)

    Finds: parameters that are sharded within each replica, with as many replicas as GPUs.
    Why:   each replica then has one rank, which holds all parameters. This saves no memory; the run is the same as
           `ddp`.
    Diff:
        parallelism: {data: {shard: all, replicate: 2}}
    -   layout: {gpus: 2}
    +   layout: {gpus: 4}
    """
    axes, layout = draft.axes, draft.layout
    if axes is None or not axes.is_sharded or layout is None or axes.pipeline is not None:
        return
    mesh = axes.mesh(layout.num_gpus) or ()
    if size_of(mesh, "shard") == 1 and (replicas := size_of(mesh, "replicate")) > 1:
        gpus = format_count(layout.num_gpus, "GPU")
        message = f"{format_count(replicas, 'replica')} on {gpus} leave one rank per replica: nothing is sharded"
        hint = "set parallelism to ddp, or replicate to a smaller number"
        related = (Related(draft.span("layout"), gpus),)
        yield warning("P012", draft.span("parallelism.data.replicate"), message, hint, related)


def too_many_shards(draft: Draft) -> Iterator[Diagnostic]:
    """too-many-shards (P027)

    Finds: parameters that are sharded over more than 1,024 ranks.
    Why:   in every step, each rank gathers every parameter from all of these ranks, although a small parameter has
           elements on only a few of them. When a checkpoint is saved, rank 0 plans for every tensor what each rank
           writes. With several replicas, a rank gathers parameters only from the ranks of its replica. All ranks
           communicate only once per step, to average the gradients.
    Diff:
    -   parallelism: {data: {shard: all}}
    +   parallelism: {data: {shard: all, replicate: 2}}
        layout: {nodes: 256, gpus_per_node: 8}
        training: {global_batch_size: 2048}
    """
    axes, layout = draft.axes, draft.layout
    if axes is None or not axes.is_sharded or layout is None:
        return
    shards = size_of(axes.mesh(layout.num_gpus) or (), "shard")
    if shards <= MOST_SHARDS:
        return
    parts = next(parts for parts in range(-(-shards // MOST_SHARDS), shards + 1) if shards % parts == 0)
    replicas = parts * size_of(axes.mesh(layout.num_gpus) or (), "replicate")
    message = f"each parameter is sharded over {shards:,} ranks"
    hint = (
        f"set parallelism.data to {{shard: all, replicate: {replicas}}}, for {shards // parts:,} ranks in each replica"
    )
    related = (Related(_gpus(draft), format_count(layout.num_gpus, "GPU")),)
    yield warning("P027", draft.span(_find_sharding_key(draft) or "parallelism"), message, hint, related)


def reshard_does_not_divide(draft: Draft) -> Iterator[Diagnostic]:
    """reshard-does-not-divide (P018)

    Finds: a number in `reshard` that is not a divisor of the number of ranks over which parameters are sharded, or is
           not below that number.
    Why:   with `reshard: 4`, for example, each group of 4 ranks holds a copy of the gathered parameters between forward
           and backward, so the ranks must form groups of 4. For one group of all ranks write `reshard: true`.
    Diff:
    -   parallelism: {data: {shard: all, reshard: 3}}
    +   parallelism: {data: {shard: all, reshard: 4}}
        layout: {gpus: 8}
    """
    axes, layout = draft.axes, draft.layout
    if axes is None or axes.reshard is None or layout is None or isinstance(axes.reshard, bool):
        return
    shards, number = num_shards(axes, layout), axes.reshard
    if axes.mesh(layout.num_gpus) is None or (shards % number == 0 and number < shards):
        return
    fits = [str(each) for each in range(2, shards) if shards % each == 0]
    yield error(
        "P018",
        draft.span("parallelism.data.reshard"),
        f"`reshard` is {number}, which is not a proper divisor of the {format_count(shards, 'rank')} with a shard",
        f"set parallelism.data.reshard to {' or '.join([*fits, 'true'])}",
    )


def channels_last_of_shards(draft: Draft) -> Iterator[Diagnostic]:
    """channels-last-of-shards (P022)

    Finds: `channels_last: true` with sharded parameters or pipeline stages.
    Why:   tensors that are gathered from shards, or sent between stages, have torch's default memory format, so the
           setting would have no effect.
    Diff:
    -   training: {channels_last: true}
    +   training: {channels_last: auto}
        parallelism: fsdp
        layout: {gpus: 2}
    """
    axes, training = draft.axes, draft.training
    if axes is None or training is None or training.channels_last is not True:
        return
    if axes.is_sharded or axes.pipeline is not None:
        found = "shards of parameters" if axes.is_sharded else "the stages of a pipeline"
        message = f"`channels_last: true` has no effect here: {found} keep the default memory format"
        place = (Related(draft.span("parallelism"), "the mode is set here"),)
        yield error("P022", draft.span("training.channels_last"), message, "remove it, or use single, dp or ddp", place)


def shards_refused(draft: Draft) -> Iterator[Diagnostic]:
    """shards-refused (P013)

    Finds: an optimizer that needs whole parameters, in a mode that shards them.
    Why:   adafactor, for example, computes norms of whole parameters, but each rank has only a shard: torch fails, or
           uses the norm of the shard.
    Diff:
        training:
    -     optimizer: {type: adafactor, lr: 0.01}
    +     optimizer: {type: adamw, lr: 0.001}
        parallelism: fsdp
        layout: {gpus: 2}
    """
    place = _find_sharding_key(draft)
    if place is None:
        return
    for optimizer, span in _list_optimizers(draft):
        if not optimizer.takes_shards:
            message = f"`{optimizer.type}` needs whole parameters, but in fsdp each rank has a shard of them"
            hint = "use another optimizer, such as adamw, or ddp"
            yield error("P013", span, message, hint, (Related(draft.span(place), "parameters are sharded here"),))


def parts_refused(draft: Draft) -> Iterator[Diagnostic]:
    """parts-refused (P024)

    Finds: an optimizer that needs whole parameters, in a run with the axis `tensor` or `expert`.
    Why:   a rank of these axes holds a part of each divided matrix. muon would orthogonalize the part instead of the
           matrix, and adafactor would use the norm of the part.
    Diff:
        training:
    -     optimizer: {type: muon, lr: 0.02}
    +     optimizer: {type: adamw, lr: 0.001}
        parallelism: {tensor: 2}
        layout: {gpus: 2}
    """
    axes = draft.axes
    axis = None if axes is None else "tensor" if axes.tensor is not None else "expert" if axes.expert else None
    if axis is None:
        return
    for optimizer, span in _list_optimizers(draft):
        if not optimizer.works_elementwise:
            message = f"`{optimizer.type}` needs whole parameters, but each rank of `{axis}` holds a part of them"
            place = Related(draft.span(f"parallelism.{axis}"), "layers are divided here")
            yield error("P024", span, message, "use another optimizer, such as adamw, or fsdp", (place,))


def tensor_across_nodes(draft: Draft) -> Iterator[Diagnostic]:
    """tensor-across-nodes (P025)

    Finds: a `tensor` axis whose size does not divide the number of GPUs of a node, so that its ranks are on several
           nodes.
    Why:   ranks of this axis wait for each other several times in every layer. The network between nodes is 10 to 20
           times slower than the links within a node.
    Diff:
    -   parallelism: {tensor: 16}
    +   parallelism: {tensor: 8, data: {shard: all}}
        layout: {nodes: 2, gpus_per_node: 8}
    """
    axes, layout = draft.axes, draft.layout
    if axes is None or axes.tensor is None or layout is None or layout.num_nodes == 1:
        return
    per_node = layout.num_gpus_per_node
    if per_node % axes.tensor.size:
        fits = [str(each) for each in range(2, per_node + 1) if per_node % each == 0]
        message = f"{axes.tensor.size} ranks share each layer, but a node has {format_count(per_node, 'GPU')}"
        hint = f"set parallelism.tensor to {' or '.join(fits)}" if fits else "use `data: {shard: all}` instead"
        yield warning("P025", draft.span("parallelism.tensor"), message, hint, (Related(_gpus(draft), "the GPUs"),))


def experts_across_nodes(draft: Draft) -> Iterator[Diagnostic]:
    """experts-across-nodes (P028)

    Finds: an `expert` axis that does not fit into a node: its size, times the sizes of `context` and `tensor`, does
           not divide the number of GPUs of a node.
    Why:   each `moe` layer sends rows to the ranks of this axis and back, four times in a step. The network between
           nodes is 10 to 20 times slower than the links within a node.
    Diff:
        model: {graph: {act: {type: moe, experts: 16, top_k: 2, hidden: 32}}}
    -   parallelism: {expert: 16}
    +   parallelism: {expert: 8, data: {shard: all}}
        training: {global_batch_size: 32}
        layout: {nodes: 2, gpus_per_node: 8}
    """
    axes, layout = draft.axes, draft.layout
    if axes is None or axes.expert is None or layout is None or layout.num_nodes == 1:
        return
    per_node = layout.num_gpus_per_node
    inner = prod(axis.size for axis in (axes.context, axes.tensor) if axis is not None)
    if per_node % (axes.expert * inner):
        fits = [str(each) for each in range(2, per_node + 1) if per_node % (each * inner) == 0]
        message = f"{axes.expert * inner} ranks share the experts, but a node has {format_count(per_node, 'GPU')}"
        hint = f"set parallelism.expert to {' or '.join(fits)} if the experts fit" if fits else None
        yield warning("P028", draft.span("parallelism.expert"), message, hint, (Related(_gpus(draft), "the GPUs"),))


def torch_too_old(draft: Draft) -> Iterator[Diagnostic]:
    """torch-too-old (P023)

    Finds: sharded parameters that are held as integers (`storage`), or the schedule zbv or dualpipev, with a version
           of torch before 2.13.
    Why:   before 2.13, `fully_shard` cannot shard integers, and torch's pipelines cannot send between two stages on
           the same rank, as these schedules do.
    Diff:
        model:
          parameters:
            hidden: {frozen: true, storage: int8}
    -   parallelism: fsdp
    +   parallelism: ddp
        layout: {gpus: 2}
    """
    found: list[tuple[Span, str]] = []
    if _find_sharding_key(draft) is not None:
        found += [(rule.span, "`storage` in fsdp") for rule in draft.rules if rule.settings.storage is not None][:1]
    if draft.pipeline is not None and PIPELINE_SCHEDULES[draft.pipeline.schedule].is_v:
        found.append((draft.span("parallelism.pipeline.schedule"), f"the schedule {draft.pipeline.schedule}"))
    if found and is_older_torch():
        fix = f"pip install 'torch>={NEEDED_TORCH}'"
        yield from (error("P023", span, f"{what} needs torch {NEEDED_TORCH} or newer", fix) for span, what in found)


def _find_sharding_key(draft: Draft) -> str | None:
    """Return the dotted path of the key that shards the parameters; None if they are not sharded."""
    return "parallelism.data.shard" if draft.axes is not None and draft.axes.is_sharded else None


def _list_optimizers(draft: Draft) -> Iterator[tuple[Optimizer, Span]]:
    """Yield (optimizer, span) for the optimizer of the run, and for each optimizer that `model.parameters` sets for
    some parameters."""
    if draft.training is not None:
        yield draft.training.optimizer, draft.span("training.optimizer.type")
    for rule in draft.rules:
        if rule.settings.optimizer is not None:
            yield rule.settings.optimizer, rule.span


def ranks_of_one(draft: Draft) -> Iterator[Diagnostic]:
    """ranks-of-one (S010)

    Finds: `ddp`, `fsdp` or `dp` on one GPU.
    Why:   the run is the same as `single`, except that `ddp` and `fsdp` also pay for a process group. Often the number
           of GPUs is missing in `layout`.
    Diff:
        parallelism: ddp
    -   layout: {gpus: 1}
    +   layout: {gpus: 2}
    """
    parallelism, layout = draft.parallelism, draft.layout
    if parallelism is None or parallelism.mode in ("single", "pipeline") or layout is None or layout.num_gpus > 1:
        return
    if parallelism.mesh(layout.num_gpus) is None:
        return  # another rule reports this
    said = "`layout` gives 1 GPU" if draft.is_written("layout") else "`layout` is not set: 1 GPU"
    message = f"{parallelism.mode} divides a batch over GPUs, but {said}"
    hint = "set layout.gpus to 2 or more, or parallelism to single"
    yield warning("S010", draft.span("parallelism"), message, hint)
