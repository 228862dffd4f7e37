"""Initial values from files. The names and shapes in local files are compared with the parameters that they fill.

Files on other machines are read when the run starts. They are compared in the same way then, with the same messages.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from declarative_train.components.adapters.adapted import is_added
from declarative_train.core.amounts import list_names
from declarative_train.core.diagnostics.diagnostic import Diagnostic
from declarative_train.core.diagnostics.suggest import nearest
from declarative_train.core.machine import extra_for
from declarative_train.core.packs import find_row
from declarative_train.core.untrusted import parse_json
from declarative_train.files.open_files import local_path
from declarative_train.files.safetensors_header import Header, read_header
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
    import torch
    from torch import nn

    from declarative_train.graph.lower import Lowered

INDEX = ".safetensors.index.json"  # ending of the index of a model in several files
KINDS = (".safetensors", INDEX, ".pt", ".pth", ".bin")
MORE_THAN_TENSORS = "it contains more than tensors, and its code is not executed; save a state_dict()"
# largest file in torch's old format that is read: it has no index, so that it is read completely
_MOST_OLD_BYTES = 256 << 20
TORCH_BEGINS = (b"PK\x03\x04", b"\x80")  # first bytes of a file of torch: an archive, or an older pickle
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
                    hint = "a null removes the base's entry: remove it here to keep that entry"
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
    """Return the path of the run to use, if `path` is a folder of runs; otherwise return `path`. `local`: the same path
    as a local path; None if it is on another machine.

    The plan has the statistics of this run, so a later run in the same folder must not be loaded instead.
    """
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
    if path.endswith(INDEX):
        with open(path, "rb") as file:
            return _shapes_of_index(files_of_index(path, parse_json(file.read())))
    return _shapes_in_safetensors(path) if path.endswith(".safetensors") else _shapes_in_torch(path)


def files_of_index(path: str, index: object) -> dict[str, str]:
    """Return a dict from tensor name to the path of its file. `index`: content of the index file at `path`. Raises
    ValueError if it is malformed."""
    named = index.get("weight_map") if isinstance(index, Mapping) else None
    if not isinstance(named, Mapping) or not named or not all(isinstance(file, str) for file in named.values()):
        raise ValueError("it has no `weight_map` from names to files")
    folder = f"{path.rpartition('/')[0]}/" if "/" in path else ""
    return {str(name): f"{folder}{file}" for name, file in named.items()}


def header_of(path: str) -> Header | None:
    """Return the names, shapes and dtypes of the tensors in a weights file; None if they cannot be read before the run.
    Raises ValueError and OSError."""
    if path.endswith(INDEX):
        return _header_of_index(path)
    if path.endswith(".safetensors"):
        return read_header(path)
    found = _tensors_in_torch(path)
    if found is None:
        return None
    return {name: (tuple(item.shape), _dtype_words(item.dtype)) for name, item in found.items()}


def _dtype_words(dtype: torch.dtype) -> str:
    """Return a dtype in the spelling of safetensors: `F32`, `BF16`, `I64`."""
    name = str(dtype).removeprefix("torch.")
    return re.sub(r"^(float|bfloat|u?int)(?=\d)", lambda kind: _LETTERS[kind[1]], name)


_LETTERS = {"float": "F", "bfloat": "BF", "int": "I", "uint": "U"}


def _header_of_index(path: str) -> Header:
    with open(path, "rb") as file:
        files = files_of_index(path, parse_json(file.read()))
    _shapes_of_index(files)
    held = {file: read_header(file) for file in sorted(set(files.values()))}
    return {name: held[file][name] for name, file in files.items()}


def _shapes_of_index(files: Mapping[str, str]) -> Shapes:
    found: dict[str, tuple[int, ...]] = {}
    for file in sorted(set(files.values())):
        if not os.path.exists(file):
            raise ValueError(f"it refers to {os.path.basename(file)}, which does not exist in its folder")
        found.update(_shapes_in_safetensors(file))
    lacking = next((name for name in files if name not in found), None)
    if lacking is not None:
        raise ValueError(f"{lacking} is not in {os.path.basename(files[lacking])}")
    return {name: found[name] for name in files}


def _shapes_in_safetensors(path: str) -> Shapes:
    return {name: shape for name, (shape, _) in read_header(path).items()}


def _shapes_in_torch(path: str) -> Shapes | None:
    found = _tensors_in_torch(path)
    return None if found is None else {name: tuple(tensor.shape) for name, tensor in found.items()}


def _tensors_in_torch(path: str) -> dict[str, torch.Tensor] | None:
    """Return the tensors of a file that torch saved, as meta tensors. Raises ValueError if the file has something other
    than tensors.

    Return None for a large file in torch's old format, which would have to be read completely, and for a file that
    torch cannot load now.
    """
    import pickle

    import torch

    with open(path, "rb") as file:
        begin = file.read(4)
    if not begin.startswith(TORCH_BEGINS):
        raise ValueError("it is not a torch file")
    is_archive = begin.startswith(TORCH_BEGINS[0])
    if not is_archive and os.path.getsize(path) > _MOST_OLD_BYTES:
        return None
    try:
        found = torch.load(path, map_location="meta", weights_only=True, mmap=is_archive)
    except pickle.UnpicklingError:
        raise ValueError(MORE_THAN_TENSORS) from None
    except Exception:  # an older format, or a file without weights: the run reports it
        return None
    for key in ("state_dict", "model"):
        if isinstance(found, Mapping) and isinstance(found.get(key), Mapping):
            found = found[key]
    if not isinstance(found, Mapping) or not all(isinstance(item, torch.Tensor) for item in found.values()):
        raise ValueError("it does not contain a mapping of names to tensors")
    return {str(name): tensor for name, tensor in found.items()}


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
    """Return prefixes of names that match all of `names` and none of `others`, as short as possible. A prefix ends with
    a dot; a name that has no such prefix is returned itself."""
    found: dict[str, None] = {}
    for name in names:
        parts = name.split(".")
        heads = ["".join(f"{part}." for part in parts[:count]) for count in range(1, len(parts))]
        found[next((head for head in heads if not any(other.startswith(head) for other in others)), name)] = None
    return list(found)


def _suggest_rename(missing: list[str], unexpected: list[str]) -> str:
    """Return an entry of `rename` to suggest, such as `{"encoder.": "vit."}`. `missing`: parameters without a value.
    `unexpected`: names in the file.

    The entry is made from the two names that have the most parts at their end in common.
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
