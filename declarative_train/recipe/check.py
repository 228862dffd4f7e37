"""The rules of this room that look at more than one value: a draft in, diagnostics out. None of them needs torch."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from declarative_train.diagnostics.diagnostic import Diagnostic
from declarative_train.recipe.checks import (
    activation_before_loss,
    cut_count,
    deprecated_key,
    dp_across_nodes,
    exclusive_keys,
    gpu_numbers_on_cpu,
    half_a_layout,
    hardware_elsewhere,
    idle_gpus,
    implausible_lr,
    key_without_effect,
    longer_than_run,
    loss_target,
    metric_edges_twice,
    metric_of_which_loss,
    metric_target,
    more_stages_than_nodes,
    no_losses,
    no_run_length,
    nothing_to_evaluate,
    pipeline_of_one,
    ranks_do_not_divide,
    ranks_of_one,
    repeated_gpu,
    schedule_needs_microbatches,
    schedule_needs_stages,
    secret_in_recipe,
    shards_of_one,
    shards_refused,
    swapped_betas,
    taken_name,
    target_in_view,
    too_many_workers,
    two_orders_of_last,
    uneven_batch,
    unknown_hardware,
    unknown_metric,
    unknown_set,
    unknown_term,
    unusable_folder,
    warmup_longer_than_run,
    worst_is_best,
    zero_bubble_compile,
)
from declarative_train.recipe.checks.bad_name import bad_name
from declarative_train.recipe.draft import Draft
from declarative_train.source.node import Mapping, find

CHECKS: tuple[Callable[[Draft], Iterator[Diagnostic]], ...] = (
    activation_before_loss.check,
    cut_count.check,
    dp_across_nodes.check,
    gpu_numbers_on_cpu.check,
    half_a_layout.check,
    hardware_elsewhere.check,
    idle_gpus.check,
    implausible_lr.check,
    key_without_effect.check,
    longer_than_run.check,
    loss_target.check,
    metric_edges_twice.check,
    metric_of_which_loss.check,
    metric_target.check,
    more_stages_than_nodes.check,
    no_losses.check,
    no_run_length.check,
    nothing_to_evaluate.check,
    pipeline_of_one.check,
    ranks_do_not_divide.check,
    ranks_of_one.check,
    repeated_gpu.check,
    schedule_needs_microbatches.check,
    schedule_needs_stages.check,
    shards_of_one.check,
    shards_refused.check,
    swapped_betas.check,
    taken_name.check,
    target_in_view.check,
    too_many_workers.check,
    two_orders_of_last.check,
    uneven_batch.check,
    unknown_hardware.check,
    unknown_metric.check,
    unknown_set.check,
    unknown_term.check,
    warmup_longer_than_run.check,
    worst_is_best.check,
    unusable_folder.check,
    zero_bubble_compile.check,
)


NAME = re.compile(r"[a-z][a-z0-9_]*")
NAMED = {  # what has a name besides nodes and blocks
    "a field": ("data", "fields"),
    "a set": ("data", "split"),
    "a loss": ("objective", "losses"),
    "a metric": ("objective", "metrics"),
}


def check(draft: Draft, written: Mapping) -> list[Diagnostic]:
    """`written` is the merged tree before its templates are rendered."""
    found = [*exclusive_keys.check(draft.tree), *_bad_names(draft.tree), *secret_in_recipe.check(written)]
    found += deprecated_key.check(written)
    for rule in CHECKS:
        found += rule(draft)
    return found


def _bad_names(tree: Mapping) -> Iterator[Diagnostic]:
    for what, path in NAMED.items():
        holder = find(tree, path)
        for entry in holder if isinstance(holder, Mapping) else ():
            if what == "a metric" and isinstance(entry.value, Mapping) and entry.value.get("type") is None:
                continue  # its name is its type, and told as one
            if not NAME.fullmatch(entry.name):
                yield bad_name(entry.key.span, entry.name, what)
