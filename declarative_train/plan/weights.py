"""Initial values from files. The names and shapes in local files are compared with the parameters that they fill.

Files on other machines are read when the run starts. They are compared in the same way then, with the same messages.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from declarative_train.components.adapters.adapted import is_added
from declarative_train.core.amounts import list_names
from declarative_train.core.diagnostics.diagnostic import Diagnostic
from declarative_train.core.diagnostics.suggest import nearest
from declarative_train.core.machine import extra_for
from declarative_train.core.packs import find_row
from declarative_train.files.open_files import local_path
from declarative_train.files.weight_files import INDEX, KINDS, header_of
from declarative_train.graph.build import build
from declarative_train.plan.checkpoint_files import Shapes, find_in_folder, shapes_in_folder
from declarative_train.plan.checks.parameters import (
    weights_do_not_fit,
    weights_not_found,
)
from declarative_train.plan.plan import ParameterPlan, WeightsPlan
from declarative_train.plan.renames import (
    find_bad_rename,
    find_removed,
    idle_renames,
    renames_of,
    shapes_by,
)
from declarative_train.plan.tensor_maps import idle_exclusion, is_selected
from declarative_train.recipe.recipe import Recipe, Weights

if TYPE_CHECKING:
    from torch import nn

    from declarative_train.graph.lower import Lowered

_SHOWN = 3


def plan_weights(
    recipe: Recipe, lowered: Lowered | None, parameters: Sequence[ParameterPlan] | None
) -> tuple[tuple[WeightsPlan, ...], list[Diagnostic]]:
    """Return a WeightsPlan for each entry of `model.weights` and each published adapter, and errors for files that do
    not fit the parameters."""
    plans, diagnostics = [], []
    module = None
    for weights in recipe.model.weights:
        if bad := find_bad_rename(renames_of(weights)):
            diagnostics.append(weights_do_not_fit(weights.span, weights.path, *bad))
            continue
        if weights.format is not None:
            if not os.path.exists(weights.path):
                diagnostics.append(weights_not_found(weights.span, weights.path))
                continue
            plan, found_diagnostics = find_row("formats", weights.format).plan(recipe, lowered, parameters, weights)
            plans += [] if plan is None else [plan]
            diagnostics += found_diagnostics
            continue
        local = local_path(weights.path)
        plan = WeightsPlan(
            weights.node, _pin_run(weights.path, local), renames_of(weights), exclude=list(weights.exclude)
        )
        plans.append(plan)
        if local is None:
            continue
        if not os.path.exists(local):
            diagnostics.append(weights_not_found(weights.span, weights.path))
        elif lowered is not None and parameters is not None:
            ties = {each.name: each.tie for each in parameters if each.tie is not None}
            module = module or build(lowered.graph, recipe.plugins, device="meta", ties=ties)
            if not os.path.isdir(local) and not local.endswith(KINDS):
                problem = "is not a file format for weights"
                advice = f"use one of {', '.join(KINDS)}, or a run's folder"
                diagnostics.append(weights_do_not_fit(weights.span, weights.path, problem, advice))
                continue
            try:
                found = _shapes_in(local)
            except (OSError, ValueError) as problem:
                diagnostics.append(weights_do_not_fit(weights.span, weights.path, f"cannot be read: {problem}", None))
                continue
            unmet = [] if found is None else idle_renames(recipe, weights, plan.rename, found)
            diagnostics += unmet
            problem_and_hint = None
            if found is not None and not unmet:
                shapes, wrong = shapes_by(plan.rename, found, is_run=os.path.isdir(local))
                problem_and_hint = wrong or check_shapes(module, plan, shapes)
            if problem_and_hint is not None:
                message, hint = problem_and_hint
                gone = find_removed(recipe, weights.node)
                if gone:
                    hint = "remove the null here to keep that entry"
                weight_error = weights_do_not_fit(weights.span, weights.path, message, hint)
                diagnostics.append(weight_error._replace(related=gone))
    diagnostics += _check_package(recipe.model.weights)
    if lowered is not None:
        adapters = [(rule, rule.settings.adapter) for rule in recipe.model.rules if rule.settings.adapter is not None]
        made = {adapter.made_from: (rule, adapter) for rule, adapter in adapters if adapter.made_from is not None}
        for rule, adapter in made.values():
            given, found_diagnostics = adapter.plan_weights(recipe, lowered, rule.span)
            plans.append(given)
            diagnostics += found_diagnostics
    return tuple(plans), diagnostics


def _check_package(given: Sequence[Weights]) -> Iterator[Diagnostic]:
    """Report that the package safetensors is not installed, if a file in `model.weights` needs it. The check of a
    recipe works without this package, but the run does not."""
    how = extra_for("safetensors")
    for weights in given if how is not None else ():
        if weights.path.endswith((".safetensors", INDEX)):
            yield weights_do_not_fit(weights.span, weights.path, "needs the package safetensors", how)


def _pin_run(path: str, local: str | None) -> str:
    """Return the path of the run that is loaded if `path` is a folder of runs; otherwise return `path`. The plan names
    this run, so that a later run in the same folder is not loaded instead. `local`: `path` as a local path; None if it
    is on another machine."""
    if local is None or not os.path.isdir(local):
        return path
    try:
        taken = find_in_folder(local, offline=True)
    except (ValueError, OSError):
        return path
    run = None if taken is None else taken.run
    return run if run is not None and os.path.dirname(run) == os.path.normpath(local) else path


def _shapes_in(path: str) -> Shapes | None:
    """Return the shapes of the tensors in a weights file or in a run's folder, without reading values; None if the
    shapes cannot be read before the run. Raises ValueError and OSError."""
    if os.path.isdir(path):
        return shapes_in_folder(path)
    header = header_of(path)
    return None if header is None else {name: shape for name, (shape, _) in header.items()}


def check_shapes(
    module: nn.Module, plan: WeightsPlan, found: Shapes, *, whole: bool = True
) -> tuple[str, str | None] | None:
    """Return (problem, hint) if names or shapes in a file do not fit the parameters of the plan's node; None if every
    parameter gets a value.

    `found`: shapes in the file. `whole`: False if `module` is only a part of the model. Names that it lacks are then
    not a problem, because they may belong to other ranks.
    """
    from torch import nn

    from declarative_train.components.layers.modules.packed import as_computed

    prefix = f"{plan.node}." if plan.node else ""
    persistent = as_computed(module)
    below = {name.removeprefix(prefix): item for name, item in persistent.items() if name.startswith(prefix)}
    if whole and (idle := idle_exclusion(plan.exclude, below)):
        return idle
    excluded = {name for name in below if is_selected(plan.exclude, name)}
    found = {name: shape for name, shape in found.items() if name not in excluded}
    first_of = {id(item): name for name, item in reversed(below.items())}
    # a tied parameter may be in the file under either name, or under both
    present = {first_of[id(below[name])] for name in found if name in below}
    parameters = {name for name, item in below.items() if isinstance(item, nn.Parameter)}
    missing = [
        name
        for name in below
        if name in parameters
        and first_of[id(below[name])] not in present
        and not is_added(name)
        and name not in excluded
    ]
    unexpected = [name for name in found if name not in below]
    wrong = [
        f"{name} is {found[name]} in the file, but {tuple(below[name].shape)} in the model"
        for name in found
        if name in below and found[name] != tuple(below[name].shape)
    ]
    if not (missing or unexpected or wrong):
        return None
    where = f" below `{plan.node}`" if plan.node else ""
    parts = []
    if missing:
        parts.append(f"{list_names(missing, _SHOWN)} of the model{where} not in the file")
    if unexpected:
        parts.append(f"{list_names(unexpected, _SHOWN)} of the file not in the model{where}")
    if wrong:
        parts.append(list_names(wrong, _SHOWN))
    kept = [name for name in found if name in below]
    return f"does not fit: {'; '.join(parts)}", _hint_of(missing, unexpected, kept, list(below))


def _hint_of(missing: list[str], unexpected: list[str], kept: list[str], known: list[str]) -> str | None:
    if not unexpected:
        return None
    if missing:
        return f"`rename` maps the file's names to the model's, as in {_suggest_rename(missing, unexpected)}"
    close = nearest(unexpected[0], known)
    also = f"did you mean {close}? " if close else ""
    left_out = ", ".join(f"{json.dumps(each)}: drop" for each in _prefixes(unexpected, kept))
    return f"{also}to remove them: rename: {{{left_out}}}"


def _prefixes(names: list[str], others: list[str]) -> list[str]:
    """Return the shortest prefixes, each with a dot at its end, that match all of `names` and none of `others`. A name
    that has no such prefix is returned whole."""
    found: dict[str, None] = {}
    for name in names:
        parts = name.split(".")
        heads = ["".join(f"{part}." for part in parts[:count]) for count in range(1, len(parts))]
        found[next((head for head in heads if not any(other.startswith(head) for other in others)), name)] = None
    return list(found)


def _suggest_rename(missing: list[str], unexpected: list[str]) -> str:
    """Return an entry of `rename` that may give a parameter its value, such as `{"encoder.": "vit."}`. `missing`:
    parameters without a value. `unexpected`: names in the file that no parameter has.

    From each list, one name is chosen, such that the two names have the longest end in common. The entry replaces the
    beginning of the name in the file by the beginning of the parameter's name.
    """
    shared, name, other = max(
        ((_count_shared_parts(name, other), name, other) for name in unexpected for other in missing),
        key=lambda found: found[0],
    )
    if not shared:
        return f"{{{json.dumps(unexpected[0])}: {json.dumps(missing[0])}}}"
    begins = ["".join(f"{part}." for part in each.split(".")[:-shared]) for each in (name, other)]
    return f"{{{json.dumps(begins[0])}: {json.dumps(begins[1])}}}"


def _count_shared_parts(name: str, other: str) -> int:
    pairs = zip(reversed(name.split(".")), reversed(other.split(".")), strict=False)
    return next((count for count, (a, b) in enumerate(pairs) if a != b), min(name.count("."), other.count(".")) + 1)
