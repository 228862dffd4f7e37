"""Checks of nodes and losses that compute with several samples at once (batch norm, contrastive losses). Their groups
of samples (key `over`) must fit the batch, and each statistic needs more than one value."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from declarative_train.components.layers.sample_groups import group_size
from declarative_train.core.diagnostics.diagnostic import Diagnostic
from declarative_train.core.span import Span
from declarative_train.data.mixup import mixing_types
from declarative_train.data.spec import BatchSpec, DataSpec
from declarative_train.graph.lower import Lowered
from declarative_train.plan.checks.samples import (
    draws_of_layout,
    group_across_replicas,
    group_does_not_divide,
    group_of_microbatch,
    group_of_one,
    padded_group,
    pairs_torn,
)
from declarative_train.plan.checks.shapes import lone_sample
from declarative_train.recipe.batch import has_axis
from declarative_train.recipe.recipe import Recipe


@dataclass(frozen=True, slots=True)
class Mixer:
    """Node or loss that computes with several samples at once.

    `over`      which samples, as in the recipe (`8 samples`, `microbatch`)
    `span`      position of `over`, or of the node or loss, in the recipe
    `in_model`  it is a node, which in mode `dp` sees only the samples of its model copy
    `values`    for a node, number of values of each sample for which one mean is computed; 0 for a loss
    """

    name: str
    over: str
    span: Span
    in_model: bool
    values: int = 0


def check_mixing(recipe: Recipe, lowered: Lowered, batch: BatchSpec, data: DataSpec) -> list[Diagnostic]:
    """Report batch norms and other operations that mix samples, if they do not fit the batch or the layout: the size of
    their groups does not divide the batch, a group has one sample, or a pair of samples is split."""
    mixers = list(_mixers(recipe, lowered))
    diagnostics = []
    if batch.microbatch_size % 2:
        for at, name in list(mixing_types(data))[:1]:
            diagnostics.append(pairs_torn(recipe.span(("data", "transforms", at, "type")), name, batch))
    fixed = {mixer.span: mixer for mixer in reversed(mixers) if group_size(mixer.over) is not None}
    for mixer in reversed(fixed.values()):  # the copies of a block have one place, and are reported once
        size = group_size(mixer.over)
        assert size is not None
        if not fits(size, batch):
            near = _nearest(size, batch)
            diagnostics.append(group_does_not_divide(mixer.span, mixer.name, size, near, batch))
        elif mixer.in_model and size > batch.microbatch_size and recipe.mode.scatters:
            diagnostics.append(group_across_replicas(mixer.span, mixer.name, size, batch))
    alone = [mixer for mixer in mixers if _size(mixer, batch) == 1 and (mixer.values == 1 or not mixer.in_model)]
    diagnostics += [lone_sample(mixer.span, mixer.name) for mixer in {each.span: each for each in alone}.values()]
    mixers = [mixer for mixer in mixers if mixer not in alone]
    free = [mixer for mixer in mixers if group_size(mixer.over) is None]
    if free and num_slices(batch) > 1:
        diagnostics.append(group_of_microbatch(free[0].span, [mixer.name for mixer in free], batch))
    num_rows = data.set("training").num_samples
    rest = num_rows % batch.global_batch_size if data.last_batch == "keep" else 0
    if mixers and rest and has_axis(recipe.mode, recipe.layout, "pipeline"):
        diagnostics.append(padded_group(mixers[0].span, mixers[0].name))
        return diagnostics
    single = [mixer for mixer in mixers if mixer.values == 1 and rest % _size(mixer, batch) == 1]
    if single and fits(_size(single[0], batch), batch):
        diagnostics.append(group_of_one(single[0].span, single[0].name, num_rows, batch.global_batch_size))
    return diagnostics


def _size(mixer: Mixer, batch: BatchSpec) -> int:
    return group_size(mixer.over) or batch.microbatch_size


def num_slices(batch: BatchSpec) -> int:
    """Return the number of parts in which a global batch is computed: the number of microbatches of all ranks."""
    return batch.data_parallel_size * batch.accumulation * batch.num_microbatches


def fits(size: int, batch: BatchSpec) -> bool:
    """Return whether the batch can be divided into groups of `size` samples. Either a microbatch is several whole
    groups, or a group is the microbatches of n ranks, where n divides the number of data-parallel ranks."""
    if batch.microbatch_size % size == 0:
        return True
    ranks, rest = divmod(size, batch.microbatch_size)
    return rest == 0 and ranks > 0 and batch.data_parallel_size % ranks == 0


def _nearest(size: int, batch: BatchSpec) -> list[int]:
    """Return the nearest group sizes into which the batch can be divided: the next below `size` and the next above, if
    they exist."""
    most = batch.microbatch_size * batch.data_parallel_size
    ranks = [n for n in range(1, batch.data_parallel_size + 1) if batch.data_parallel_size % n == 0]
    rows = [n for n in range(1, batch.microbatch_size + 1) if batch.microbatch_size % n == 0]
    known = sorted({*rows, *(n * batch.microbatch_size for n in ranks), most})
    below, above = [n for n in known if n < size], [n for n in known if n > size]
    return below[-1:] + above[:1]


def _mixers(recipe: Recipe, lowered: Lowered) -> Iterator[Mixer]:
    for fact in lowered.facts:
        if fact.kind == "mixes_samples" and fact.layer is not None:
            span = fact.field_spans.get("over", fact.span)
            values = prod(fact.shape[1:]) if fact.shape else 0
            yield Mixer(fact.path, getattr(fact.layer, "over", "microbatch"), span, in_model=True, values=values)
    for term in lowered.terms:
        if term.component.mixes_samples:
            span = recipe.span(("objective", "losses", term.name, "over"))
            yield Mixer(term.name, getattr(term.component, "over", "microbatch"), span, in_model=False)


def check_draws(recipe: Recipe, lowered: Lowered, batch: BatchSpec) -> list[Diagnostic]:
    """Return one diagnostic about all nodes that draw random numbers, if the layout divides each batch over ranks or
    microbatches, because the numbers then depend on the layout. Otherwise return []."""
    random = [fact for fact in lowered.facts if fact.kind == "random"]
    if not random or (num_slices(batch) == 1 and "context" not in getattr(recipe.mode, "sizes", ())):
        return []
    unknown = [fact for fact in random if fact.habits is not None and fact.habits.draws is None]
    random = [fact for fact in random if fact not in unknown] + unknown  # certain ones first
    return [draws_of_layout(random[0].span, [fact.path for fact in random], is_certain=random[0] not in unknown)]
