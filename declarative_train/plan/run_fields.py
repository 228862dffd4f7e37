"""Statistics of fields (mean, vocabulary, columns) from the earlier runs whose checkpoints `model.weights` names.

A checkpoint contains the plan of its run, which has the statistics of each field.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from pydantic import TypeAdapter, ValidationError

from declarative_train.components.component import Layer
from declarative_train.core.diagnostics.diagnostic import Diagnostic
from declarative_train.data.checks.samples import field_of_another_run
from declarative_train.data.spec import FieldSpec
from declarative_train.data.statistics import Inherited
from declarative_train.files.open_files import format_path, local_path
from declarative_train.plan.checkpoint_files import PLAN, find_in_folder, find_remote
from declarative_train.plan.checks.parameters import weights_do_not_fit
from declarative_train.plan.checks.samples import weights_without_statistics
from declarative_train.recipe.model.tree import ExpressionNode, LayerNode, ModelNode, ReuseNode, Scope
from declarative_train.recipe.model.walk import Frame, inputs_before
from declarative_train.recipe.recipe import Recipe, Weights

Read = Callable[[str], bytes]


class _CheckpointFields(NamedTuple):
    """Data fields of the run that wrote a checkpoint. `step`: the step after which the checkpoint was saved."""

    step: int
    fields: Mapping[str, FieldSpec]


def inherit_fields(recipe: Recipe, *, offline: bool = False) -> tuple[dict[str, Inherited], list[Diagnostic]]:
    """Return a dict from field to its statistics in an earlier run, and errors. `offline`: do not read from other
    machines.

    A checkpoint that cannot be read gives no error here, because `plan_weights` or the start of the run reports it.
    """
    found: dict[str, Inherited] = {}
    diagnostics: list[Diagnostic] = []
    for weights in recipe.model.weights:
        if weights.statistics == "data":
            continue
        try:
            kept = _read_checkpoint_fields(weights.path, offline)
        except ValueError as problem:
            diagnostics.append(weights_do_not_fit(weights.span, weights.path, f"cannot be used: {problem}", None))
            continue
        if kept is None:
            continue
        names = fields_of(recipe, weights)
        if not kept.fields:
            if any(_has_statistics(recipe, name) for name in names):
                diagnostics.append(weights_without_statistics(weights.span, format_path(weights.path)))
            continue
        origin = f"{format_path(weights.path)} step {kept.step}"
        for name in names:
            if name not in kept.fields:
                continue
            new = Inherited(kept.fields[name], origin, weights.span)
            before = found.setdefault(name, new)
            if (before.spec.component, before.statistics) != (new.spec.component, new.statistics):
                text = f"it is read differently in {before.origin} and"
                diagnostics.append(field_of_another_run(weights.span, name, text, origin, before.span))
    return found, diagnostics


def _has_statistics(recipe: Recipe, name: str) -> bool:
    """Return whether a field of the recipe has statistics that are computed from the training rows."""
    field = recipe.data.fields.get(name)
    return field is not None and (field.type != "tensor" or getattr(field, "normalize", None) is not None)


def _read_checkpoint_fields(path: str, offline: bool) -> _CheckpointFields | None:
    """Return the fields in the plan of the checkpoint at `path`, or no fields if the checkpoint has no plan. Raises
    ValueError if the plan was changed after it was written.

    Return None if there is no usable checkpoint, or if `offline` is true and the checkpoint is on another machine.
    """
    local = local_path(path)
    if os.path.splitext(path)[1] or (local is None and offline) or (local is not None and not os.path.isdir(local)):
        return None  # a file of tensors, or nothing that could be looked at here
    try:
        taken = find_remote(path) if local is None else find_in_folder(local, offline=offline)
        if taken is None:
            return None
    except (ValueError, OSError, ImportError):  # `plan_weights` reports it
        return None
    return _CheckpointFields(int(taken.manifest["step"]), _fields(taken.folder, taken.manifest, taken.read))


def _fields(folder: str, manifest: Mapping[str, Any], read: Read) -> Mapping[str, FieldSpec]:
    """Return the fields in the plan of a checkpoint, by name; {} if the checkpoint has no plan. `manifest`: content of
    the checkpoint's manifest. `read`: function from the path of a file to its content. Raises ValueError if the plan
    was changed after it was written."""
    record = manifest["files"].get(PLAN)
    if record is None:
        return {}
    content = read(f"{folder}/{PLAN}")
    if hashlib.sha256(content).hexdigest() != record["sha256"]:
        raise ValueError(f"the checksum of {PLAN} does not match")
    return _fields_in(json.loads(content))


def _fields_in(plan: Mapping[str, Any]) -> Mapping[str, FieldSpec]:
    try:
        fields = TypeAdapter(tuple[FieldSpec, ...]).validate_python(plan["data"]["fields"])
    except (ValidationError, KeyError, TypeError) as problem:
        raise ValueError(f"{PLAN} does not record how fields were read: {problem}") from None
    return {field.name: field for field in fields}


def fields_of(recipe: Recipe, weights: Weights) -> tuple[str, ...]:
    """Return the names of the fields on which loaded weights depend. These fields must keep the statistics with which
    the weights were trained.

    For weights of the whole model, these are all fields. For weights of one node, they are the fields from which the
    node's inputs are computed, and the target fields of losses that read its output, directly or through nodes without
    parameters.
    """
    if not weights.node:
        return tuple(recipe.data.fields)
    scope = recipe.model.scope
    loaded = [node for node in scope.nodes if _overlaps(node.path, weights.node)]
    read = inputs_before(Frame(scope), [wire for node in loaded for wire in node.inputs.values()])
    after = _after(scope, {node.name for node in loaded})
    for term in recipe.objective.losses.values():
        wire = scope.outputs.get(term.input, term.input)
        if wire.partition(":")[0] in after and term.target is not None:
            target = scope.outputs.get(term.target, term.target)
            read |= inputs_before(Frame(scope), [target])
    return tuple(name for name in recipe.data.fields if name in {wire.partition(".")[0] for wire in read})


def _overlaps(path: str, node: str) -> bool:
    """Return whether two dotted paths are equal or one contains the other (`a` contains `a.b`)."""
    return path == node or path.startswith(f"{node}.") or node.startswith(f"{path}.")


def _after(scope: Scope, names: set[str]) -> set[str]:
    """Return `names`, and the names of the nodes without parameters that read their outputs, directly or through each
    other. `reuse` nodes that call a returned node again are returned too."""
    found = set(names)
    for node in scope.nodes:
        reads = {wire.partition(":")[0] for wire in node.inputs.values()}
        if (reads & found and _is_without_parameters(node)) or (isinstance(node, ReuseNode) and node.target in found):
            found.add(node.name)
    return found


def _is_without_parameters(node: ModelNode) -> bool:
    if isinstance(node, LayerNode):
        return type(node.layer).init_of is Layer.init_of  # layers with parameters define how they start
    return isinstance(node, ExpressionNode)
