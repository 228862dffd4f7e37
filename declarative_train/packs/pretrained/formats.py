"""Weights of published models (`format` in `model.weights`): finding the files, and mapping their tensors to
parameters."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from declarative_train.core.amounts import format_count, list_names
from declarative_train.core.diagnostics.diagnostic import Diagnostic
from declarative_train.core.machine import extra_for
from declarative_train.files.weight_files import header_of
from declarative_train.graph.build import build
from declarative_train.graph.lower import Lowered
from declarative_train.packs.pretrained.mxfp4 import unpack, unpack_header
from declarative_train.packs.pretrained.published import (
    TIMM,
    TRANSFORMERS,
    WEIGHTS,
    Family,
    PublishedError,
    families,
    family_of,
    find_published_folder,
    is_of_timm,
    kind_of,
    params_of,
    read_config,
)
from declarative_train.plan.checks.parameters import head_is_drawn, new_tokens_are_frozen, weights_do_not_fit
from declarative_train.plan.plan import ParameterPlan, PublishedPlan, TensorMapPlan, WeightsPlan
from declarative_train.plan.renames import apply_renames, find_join, find_same_name, idle_renames, renames_of
from declarative_train.plan.tensor_maps import (
    ModelTensors,
    check_published,
    find_drawn,
    is_ignored,
    plan_published,
    respell,
)
from declarative_train.recipe.recipe import Recipe, Weights
from declarative_train.recipe.sections.model import WeightsSection

if TYPE_CHECKING:
    from declarative_train.engine.step.tensor_files import Tensors

_SHOWN = 3
_ROWS_OF_TOKENS = (
    "embed.weight",
    "logits.weight",
    "logits.bias",
)  # parameters with a row for each token, in all blocks
_BUFFERS = (".running_mean", ".moe.bias")  # buffers in published files; only a built model shows their shapes


class PublishedWeights:
    """Loader for weights of published models, in the formats `huggingface`, `timm` and `torchvision`."""

    @staticmethod
    def locate(values: WeightsSection, path: str) -> str:
        """Return the path of the weights: a folder for the format `huggingface`, otherwise a file. `path`: absolute
        path of `values.path`. Raises PublishedError."""
        if values.format == TRANSFORMERS:
            return find_published_folder(values.path, path)
        if "://" in path:
            raise PublishedError(f"`{values.path}` is not on this machine", "copy the file, and use its path")
        if os.path.isdir(path):
            raise PublishedError(
                f"`{values.path}` is a folder, but `format: {values.format}` needs a file of tensors",
                f"use the file, or `format: {TRANSFORMERS}` for a folder with a config.json",
            )
        if not path.endswith((".safetensors", ".pt", ".pth", ".bin")):
            raise PublishedError(f"`{values.path}` is not a file format for weights", "use a .pth or .safetensors")
        return path

    @staticmethod
    def unpack(source: Tensors) -> Tensors:
        """Return the tensors `source` of a file. Those that are stored in four bits (MXFP4) are unpacked when they are
        read."""
        return unpack(source)

    @staticmethod
    def plan(
        recipe: Recipe, lowered: Lowered | None, parameters: Sequence[ParameterPlan] | None, weights: Weights
    ) -> tuple[WeightsPlan | None, list[Diagnostic]]:
        diagnostics: list[Diagnostic] = []
        plan, problem = _plan(recipe, lowered, parameters, weights, diagnostics)
        if problem is not None:
            diagnostics.append(weights_do_not_fit(weights.span, weights.path, *problem))
        elif plan is not None and plan.drawn:
            sizes = {each.name: each.num_elements for each in parameters or () if each.name in plan.drawn}
            diagnostics.append(head_is_drawn(weights.span, plan.node, sizes))
        if problem is None and plan is not None and (names := _find_frozen_tables(recipe, plan, parameters or ())):
            diagnostics.append(new_tokens_are_frozen(weights.span, names))
        if weights.format == TRANSFORMERS and (how := extra_for("safetensors")) is not None:
            diagnostics.append(weights_do_not_fit(weights.span, weights.path, "needs the package safetensors", how))
        return plan, diagnostics


def _find_frozen_tables(recipe: Recipe, plan: WeightsPlan, parameters: Sequence[ParameterPlan]) -> list[str]:
    """Return the names of frozen parameters that must be trained because the recipe adds tokens: tables with one row
    for each token, such as embeddings. The rows of the added tokens have no trained values. Return [] if no tokens are
    added, or if the whole published model is frozen (such as a teacher)."""
    assert plan.tensors is not None
    fields = recipe.data.fields.values()
    if not plan.tensors.grown and not any(getattr(field, "adds_tokens", False) for field in fields):
        return []
    prefix = f"{plan.node}." if plan.node else ""
    below = [each for each in parameters if each.name.startswith(prefix) and each.tie is None]
    if all(each.frozen for each in below):  # for example a teacher, or the reference model of preference optimisation
        return []
    return [each.name for each in below if each.frozen and each.name.removeprefix(prefix) in _ROWS_OF_TOKENS]


def _plan(
    recipe: Recipe,
    lowered: Lowered | None,
    parameters: Sequence[ParameterPlan] | None,
    weights: Weights,
    diagnostics: list[Diagnostic],
) -> tuple[WeightsPlan | None, tuple[str, str | None] | None]:
    """Plan how the files of a published model fill a node. Return (WeightsPlan, None) or, if they do not fit,
    (WeightsPlan or None, (problem, hint)). Append to `diagnostics` an error for each entry of `rename` that matches no
    tensor."""
    known = plan_published(recipe.model.scope)
    fitting = [each for each in known if weights.node in ("", each.node)]
    if len(fitting) != 1:
        listed = ", ".join(f"`{each.node}`" for each in known)
        if known:
            hint = f"set the node: `weights: {{{known[0].node}: {{path: ..., format: huggingface}}}}`; it is {listed}"
        else:
            hint = f"a node of a shipped block can have them: {', '.join(families())}"
        what = f"`{weights.node}`" if weights.node else "the model"
        problem = (
            f"cannot fill {what}, which {'are several blocks' if fitting else 'is not a block with published models'}"
        )
        return None, (problem, hint)
    try:
        is_folder = weights.format == TRANSFORMERS
        path = find_weights_file(weights.path) if is_folder else weights.path
        config = read_config(weights.path) if is_folder else None
        tensors = tensor_map(fitting[0], library_of(weights.path) if is_folder else str(weights.format), config)
        rename = renames_of(weights)
        if key := find_join(rename):
            return None, (f"has `{key}` under `rename`, but its `format` already joins tensors", None)
        plan = WeightsPlan(fitting[0].node, path, rename, tensors, list(weights.exclude))
        if not is_folder and (other := other_param(fitting[0], str(weights.format))):
            return plan, other
        header = header_of(path)
        if is_folder and header is not None and len(opened := unpack_header(header)) < len(header):
            header, tensors = opened, replace(tensors, packed=TRANSFORMERS)
            plan = replace(plan, tensors=tensors)
        if header is not None:
            unmet = idle_renames(recipe, weights, rename, header)
            if unmet:
                diagnostics += unmet
                return plan, None
            if twice := find_same_name(header, rename):
                return plan, twice
            header = {respell(tensors, name): item for name, item in apply_renames(header, rename).items()}
    except PublishedError as problem:
        return None, (f"cannot be used: {problem}", problem.hint)
    except (OSError, ValueError) as problem:
        return None, (f"cannot be read: {problem}", None)
    if header is None:
        return plan, None
    odd = _find_odd_dtype({name: dtype for name, (_, dtype) in header.items() if not is_ignored(tensors, name)})
    if odd is not None:
        return plan, (f"cannot be used: {odd}", "use the model without quantization")
    if lowered is None or parameters is None:
        return plan, None
    ties = {each.name: each.tie for each in parameters if each.tie is not None}
    held = ModelTensors(lowered.parameters, ties)
    if any(name.endswith(_BUFFERS) for name in tensors.entries):
        held = ModelTensors.by(build(lowered.graph, recipe.plugins, device="meta", ties=ties))
    found = {name: shape for name, (shape, _) in header.items()}
    plan = replace(plan, drawn=find_drawn(held, plan, found))
    return plan, check_published(held, plan, found)


def tensor_map(
    found: PublishedPlan, library: str = TRANSFORMERS, config: Mapping[str, object] | None = None
) -> TensorMapPlan:
    """Return the map from the parameters of a block to the tensors in a library's files. `config`: config of these
    files, which decides the names of their tensors; None: the config from which the node was made. Raises
    PublishedError if the library has no such model."""
    family = family_of(found.block)
    assert family is not None
    if library not in family.names:
        raise PublishedError(f"{library} has no model like `{found.block}`", f"use one of {', '.join(family.names)}")
    config = found.config if config is None else config
    kind = None if config is None else kind_of(family, config)
    if kind is not None and family.kinds[kind].library != library:
        kind = None
    names = family.map(found.params, library, kind)
    return TensorMapPlan(
        {name: list(parts) for name, parts in names.entries.items()},
        names.prefix,
        names.ignored,
        hints=dict(family.hints),
        drawn=names.drawn,
        respelt=dict(names.respelt),
        grown=_find_grown(found, config, kind, family),
    )


def _find_grown(
    found: PublishedPlan, config: Mapping[str, object] | None, kind: str | None, family: Family
) -> dict[str, tuple[int, int]]:
    """Return which parameters have more rows in the model than in the published files, because the model has more
    tokens: {parameter: (rows in the files, rows in the model)}. `found`: the node that loads the files. `config`: the
    published config. `kind`: kind of model that it describes; None if unknown."""
    if config is None or kind is None or "vocabulary" not in found.params:
        return {}
    before, after = params_of(family, config).get("vocabulary"), found.params["vocabulary"]
    if not isinstance(before, int) or not isinstance(after, int) or after <= before:
        return {}
    return dict.fromkeys(_ROWS_OF_TOKENS, (before, after))


def other_param(found: PublishedPlan, library: str) -> tuple[str, str | None] | None:
    """Return (problem, hint) for the first param of a node that has another value than in all models of the library;
    None if there is none."""
    family = family_of(found.block)
    assert family is not None
    for name, value in family.names[library].params.items():
        if found.params.get(name) != value:
            text = str(value).lower() if isinstance(value, bool) else str(value)
            return f"does not match `{found.node}`: all of {library} have `{name}: {text}`", f"set it at `{found.node}`"
    return None


def names_without_head(tensors: TensorMapPlan) -> TensorMapPlan:
    """Return a copy of the map `tensors` without the prefix `tensors.prefix` in its tensor names, for the files of a
    model that was saved without its output layer (head)."""
    cut = {
        name: [replace(part, name=part.name.removeprefix(tensors.prefix)) for part in parts]
        for name, parts in tensors.entries.items()
    }
    return replace(tensors, entries=cut)


def library_of(folder: str) -> str:
    """Return the name of the library that wrote a folder, according to its config. Raises PublishedError."""
    return TIMM if is_of_timm(read_config(folder)) else TRANSFORMERS


def find_weights_file(folder: str) -> str:
    """Return the path of the file in a folder that has all tensors. If the tensors are in several files, it is the
    index that lists these files. Raises PublishedError."""
    for name in WEIGHTS:
        if os.path.exists(os.path.join(folder, name)):
            return os.path.join(folder, name)
    if any(name.endswith(".bin") for name in os.listdir(folder)):
        raise PublishedError(f"{folder} has only pickled weights", "save it again with `save_pretrained`")
    raise PublishedError(f"there is neither {' nor '.join(WEIGHTS[::-1])} in {folder}", "`hf download` gets all files")


def _find_odd_dtype(dtypes: Mapping[str, str]) -> str | None:
    """Return a message if a tensor of a file has another dtype than float16, bfloat16, float32 or float64; otherwise
    None. `dtypes`: {name of a tensor: its dtype in safetensors' notation}."""
    odd = [f"{name} ({dtype})" for name, dtype in dtypes.items() if dtype not in ("F64", "F32", "F16", "BF16")]
    if not odd:
        return None
    return (
        f"{format_count(len(odd), 'tensor')} of it not in floating point of 16 bits or more: {list_names(odd, _SHOWN)}"
    )
