"""Trained model, loaded from a run or one of its checkpoints, with everything that is needed to use it.

A copy of a `step_*` folder is enough, because it contains the plan.

    UsageError           there is no such run, output or setting: exit code 2
    CheckpointFailure    the run exists but cannot be read: exit code 3
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from declarative_train.components.layers import LAYERS
from declarative_train.components.plugin_components import PLUGIN
from declarative_train.core.diagnostics.suggest import did_you_mean
from declarative_train.core.packs import hooks
from declarative_train.engine.checkpoints.find import NoCheckpoint, find_checkpoint
from declarative_train.engine.checkpoints.store import CheckpointEntry, damage, read_entry
from declarative_train.engine.failures import CheckpointFailure
from declarative_train.files.open_files import format_path, local_path
from declarative_train.graph.check_targets import unit_of
from declarative_train.graph.graph import Graph
from declarative_train.plan.checkpoint_files import CHECKPOINTS, PLAN, owner_of
from declarative_train.plan.codec import PlanError, find_unset_for_model, from_json
from declarative_train.plan.output_semantics import classes_of
from declarative_train.plan.subgraph import UnknownOutputError, nodes_of, prune
from declarative_train.run.run_state import RunState

if TYPE_CHECKING:
    import torch
    from torch import fx, nn

    from declarative_train.components.data import Unit
    from declarative_train.data.spec import FieldSpec
    from declarative_train.engine.step.load_weights import WeightSource
    from declarative_train.plan.plan import Plan

Weights = Literal["trained", "ema"]


class UsageError(Exception):
    """Error: a request of the user cannot be met. The user sees the message. The command's exit code is 2."""


@dataclass(frozen=True)
class Network:
    """Model from fields to selected outputs, in evaluation mode. `module` takes a tensor (B, ...) for each of `inputs`,
    by position, and returns a tuple with a tensor for each of `outputs`. `graph`: the graph from which it was built."""

    module: fx.GraphModule
    graph: Graph

    @property
    def inputs(self) -> tuple[str, ...]:
        return tuple(self.graph.inputs)

    @property
    def outputs(self) -> tuple[str, ...]:
        return tuple(self.graph.outputs)


@dataclass(frozen=True)
class Trained:
    """Trained model.

    `path`         the checkpoint's folder, or its URL
    `plan`         the plan of the run
    `step`         number of optimizer steps that produced the weights
    `is_best`      it was the run's best checkpoint when it was saved
    `values`       results of the evaluation after this step, by metric (`validation/accuracy`)
    `passed_over`  reasons why other checkpoints of the run were skipped
    `weights`      `trained`, or `ema` for their moving average
    `plugins`      the code of the run's plugins may be run
    """

    path: str
    plan: Plan
    step: int
    is_best: bool
    values: Mapping[str, float]
    passed_over: tuple[str, ...] = ()
    weights: Weights = "trained"
    plugins: bool = False

    @property
    def name(self) -> str:
        """Name of the model in messages, such as `runs/wine/20261122-101500 step 40`."""
        return f"{format_path(self.run or self.path)} step {self.step}"

    @cached_property
    def run(self) -> str | None:
        """Path of the run's folder; None if the checkpoint is a copy outside of a run."""
        root, _, _ = self.path.rpartition("/")
        if (owner := owner_of(root)) is not None:
            return owner
        run, _, folder = root.rpartition("/")
        return run if folder == CHECKPOINTS and run else None

    @property
    def run_dir(self) -> Path | None:
        """Path of the run's folder; None if it is not on this machine."""
        local = None if self.run is None else local_path(self.run)
        return None if local is None else Path(local)

    @property
    def recipe(self) -> str:
        """Text of the recipe file, or "" if the plan has no text. The files that the recipe extends are only in
        `plan.recipe`."""
        return next(iter(self.plan.recipe.values()), "")

    @cached_property
    def fields(self) -> dict[str, FieldSpec]:
        """Fields of the run by name, with their statistics and vocabularies."""
        return {field.name: field for field in self.plan.data.fields}

    def class_names(self, field: str) -> tuple[str, ...] | None:
        """Return the class names of a category field, in the order of the class indices; None for other fields. For a
        field of several columns, they are those of the first column."""
        return classes_of(self.plan, self.fields[field])

    def unit(self, field: str) -> Unit | None:
        """Return the numbers (multiply, add) that convert a value of the field to the value in its column: value *
        multiply + add. Return None if no conversion is needed."""
        return unit_of(self.fields[field])

    @property
    def outputs(self) -> list[str]:
        """Names that the argument `outputs` of `network` can contain."""
        return nodes_of(self.plan)

    def module(self, device: torch.device | str = "cpu", *, keep_quantized: bool = False) -> nn.Module:
        """Return the trained model in evaluation mode. It takes the tensors of `plan.graph.inputs` by position, and
        returns a tuple in the order of `plan.graph.outputs`. Modules and parameters have the names of the recipe.
        `keep_quantized`: keep weights in the number format in which the run stored them; otherwise they are converted
        to float32. Raises CheckpointFailure."""
        return self._build(self.plan.graph, device, keep_quantized)

    def network(
        self, outputs: Sequence[str], device: torch.device | str = "cpu", *, keep_quantized: bool = False
    ) -> Network:
        """Return a model that computes the given outputs from the fields. An output is a name that losses and metrics
        read, a node, or a node in a block (`gpt.layers.0.attn`). `keep_quantized`: keep weights in the number format in
        which the run stored them; otherwise they are converted to float32. Raises UsageError for an unknown name."""
        graph = self.graph(outputs)
        return Network(self._build(graph, device, keep_quantized), graph)

    def graph(self, outputs: Sequence[str]) -> Graph:
        """Return the graph that computes the given outputs from fields, without all other nodes. Raises UsageError for
        an unknown name."""
        try:
            return prune(self.plan, outputs)
        except UnknownOutputError as unknown:
            raise UsageError(f"{unknown}; help: {did_you_mean(unknown.name, unknown.known)}") from None

    @cached_property
    def _source(self) -> WeightSource:
        """Tensors of the checkpoint, which is opened at the first use: the trained weights, or their moving averages if
        `weights` is `ema`. Weights that are stored in fewer bits are converted when they are read."""
        from declarative_train.engine.step.load_weights import open_averages, open_source

        return open_source(self.path) if self.weights == "trained" else open_averages(self.path)

    def merge_adapters(self) -> Trained:
        """Return the model with its adapters merged into their weights, and all weights in full precision. A model
        without adapters is returned unchanged."""
        from declarative_train.components.adapters.adapted import is_added
        from declarative_train.engine.step.tensor_files import Tensors
        from declarative_train.graph.merge import adapters_of, make_merged_reader

        if not adapters_of(self.plan.graph):
            return self
        source, found = self._source, replace(self, plan=drop_quantization(self.base_plan))
        read = make_merged_reader(self.plan.graph, source.shapes, source.whole)
        shapes = {name: shape for name, shape in source.shapes.items() if not is_added(name)}
        found.__dict__["_source"] = Tensors(shapes, lambda name, *_: read(name))
        return found

    @property
    def base_plan(self) -> Plan:
        """Plan of the same model without its adapters."""
        from declarative_train.components.adapters.adapted import is_added
        from declarative_train.graph.merge import adapters_of, without_adapters
        from declarative_train.plan.codec import sign

        plan = self.plan
        if not adapters_of(plan.graph):
            return plan
        kept = tuple(item for item in plan.parameters if not is_added(item.name))
        return sign(replace(plan, graph=without_adapters(plan.graph), parameters=kept))

    def _build(self, graph: Graph, device: torch.device | str, keep_quantized: bool) -> fx.GraphModule:
        import torch

        from declarative_train.components.layers.modules.packed import find_packed, hold
        from declarative_train.engine.step.load_weights import write_packed
        from declarative_train.engine.step.model_preparation import materialise, storages_of
        from declarative_train.graph.build import build, tie
        from declarative_train.graph.initialise import initialise

        plan, shapes = self.plan, self._source.shapes
        storages = storages_of(plan) if keep_quantized else {}
        module = build(graph, plan.plugins, seed=plan.seed, device="meta" if storages else None)
        names = dict(module.named_parameters(remove_duplicate=False))
        ties = {item.name: item.tie for item in plan.parameters if item.tie is not None and item.name in names}
        tie(module, {name: source for name, source in ties.items() if source in names})
        if storages:
            hold([module], storages)
            materialise([module], torch.device("cpu"))
            initialise(module, graph, (), plan.seed, plan.plugins)  # buffers that the recipe determines
        if plan.training.precision == "fp64":
            module.double()
        persistent = module.state_dict(keep_vars=True)
        saved = {id(held) for name, held in persistent.items() if name in shapes}
        into: dict[str, torch.Tensor] = {}
        again: list[tuple[torch.Tensor, str]] = []
        for name, held in persistent.items():
            # a tied parameter is loaded under its own name if the node that it is tied to is not in this graph
            source = ties.get(name, name)
            if source in into:
                again.append((held, source))
                continue
            if source not in shapes and id(held) in saved:
                continue  # a library's model has one parameter under two names, and the checkpoint has one of them
            if source not in shapes:
                raise CheckpointFailure(f"the checkpoint {format_path(self.path)} lacks {source}")
            into[source] = held
        packed = {ties.get(name, name): each for name, each in find_packed(module).items()}
        with torch.no_grad():
            write_packed(self._source, {name: held.detach() for name, held in into.items()}, packed)
            for held, source in again:
                held.copy_(into[source])
        return module.to(device).eval().requires_grad_(False)


def drop_quantization(plan: Plan) -> Plan:
    """Return the plan of the same model with unquantized weights: none of them is stored as nf4 or int8."""
    from declarative_train.plan.codec import sign

    return sign(replace(plan, parameters=tuple(replace(item, storage=None) for item in plan.parameters)))


def open_trained(
    path: str | os.PathLike[str],
    *,
    plugins: bool = False,
    look: Callable[[CheckpointEntry], str | None] = damage,
    weights: Weights | None = None,
) -> Trained:
    """Return the model of a checkpoint. Raises UsageError if there is no run, or if plugins are needed and may not be
    imported; CheckpointFailure if the checkpoint cannot be read.

    `path`     path or fsspec URL of a checkpoint, of a run (its best checkpoint, else the newest), or of a folder of
               runs (the newest run)
    `plugins`  whether the code of the run's plugins may be imported
    `look`     function that takes a checkpoint and returns a reason to skip it, or None
    `weights`  `trained`, or `ema` for their moving average; None: those that the run evaluated"""
    text = os.fspath(path)
    place = local_path(text) or text
    entry, passed_over = _find(place.rstrip("/") or "/", look)
    plan = _plan_of(entry)
    own = [f"the layer `{each}`" for each in _plugin_layers(plan)] + _plugin_components(plan)
    if own and not plugins:
        raise UsageError(f"{format_path(text)} has {own[0]} of a plugin; help: {_plugins_hint(plan)}")
    if own:
        _check_plugins(plan)
    state = RunState.from_json(entry.manifest["state"])
    values = {name: value for name, value in state.values.items() if state.value_steps.get(name) == entry.step}
    is_best = bool(entry.manifest.get("is_best"))
    if weights == "ema" and plan.training.ema_decay is None:
        raise UsageError(
            f"{format_path(text)} has no moving average; help: --weights trained, or train with training.ema"
        )
    used = weights or ("trained" if plan.evaluation is None else plan.evaluation.weights)
    return Trained(entry.path, plan, entry.step, is_best, values, tuple(passed_over), used, plugins)


def _find(path: str, look: Callable[[CheckpointEntry], str | None]) -> tuple[CheckpointEntry, list[str]]:
    try:
        return find_checkpoint(path, look)
    except NoCheckpoint:
        if path.rpartition("/")[2].startswith("step_") and (local_path(path) is None or os.path.isdir(path)):
            read_entry(path)  # raises with the reason why it is incomplete
        raise UsageError(_no_run(path)) from None
    except (ImportError, ValueError) as error:  # fsspec has no file system of that name, or lacks its package
        raise UsageError(f"cannot open {format_path(path)}: {error}") from None


def _no_run(path: str) -> str:
    wanted = "help: give a run's folder (runs/NAME/TIME), or a checkpoint's (.../checkpoints/step_NUMBER)"
    if local_path(path) is None or os.path.isdir(path):
        return f"{format_path(path)} is not a run: there is no checkpoint in it; {wanted}"
    if os.path.exists(path):
        return f"{format_path(path)} is a file, and a run is a folder; {wanted}"
    folder = os.path.dirname(path) or "."
    others = [each for each in os.listdir(folder) if os.path.isdir(f"{folder}/{each}")] if os.path.isdir(folder) else []
    hint = f"help: {did_you_mean(os.path.basename(path), others)}" if others else wanted
    return f"there is no run {format_path(path)}; {hint}"


def _plan_of(entry: CheckpointEntry) -> Plan:
    """Return the plan in a checkpoint. Raises CheckpointFailure."""
    from fsspec.core import url_to_fs

    fs, inner = url_to_fs(entry.path)
    record = entry.manifest["files"].get(PLAN)
    reason = "it has no plan"
    if record is not None:
        try:
            content: bytes = fs.cat_file(f"{inner}/{PLAN}")
            if hashlib.sha256(content).hexdigest() != record["sha256"]:
                raise CheckpointFailure(
                    f"the checkpoint {format_path(entry.path)} is damaged: the checksum of {PLAN} does not match"
                )
            plan = from_json(content.decode("utf-8", "replace"))
        except OSError:
            pass
        except PlanError as problem:
            reason = f"{PLAN} was written by another version of dtrain: {problem}"
        else:
            if unset := find_unset_for_model(plan):
                run, names = inner.rsplit("/", 2)[0], ", ".join(f"`{name}`" for name in unset)
                message = f"the run {format_path(run)} uses values of the environment, in which {names} is not set"
                raise CheckpointFailure(message)
            return _use_checkpoint_files(plan, entry)
    raise CheckpointFailure(
        f"the checkpoint {format_path(entry.path)} cannot be used alone: {reason}; help: use it with the dtrain that "
        f"wrote it ({entry.manifest.get('dtrain_version', 'an earlier one')})"
    )


def _use_checkpoint_files(plan: Plan, entry: CheckpointEntry) -> Plan:
    """Return the plan with the paths of files such as tokenizers replaced by the paths of their copies in the
    checkpoint."""

    def use_own(component: dict[str, Any]) -> dict[str, Any]:
        for use_checkpoint_files in hooks("use_checkpoint_files"):
            component = use_checkpoint_files(component, entry.path, entry.manifest["files"])
        return component

    fields = tuple(replace(each, component=use_own(each.component)) for each in plan.data.fields)
    source = use_own(plan.data.source)
    if source == plan.data.source and fields == plan.data.fields:
        return plan
    return replace(plan, data=replace(plan.data, source=source, fields=fields))


def _plugin_layers(plan: Plan) -> list[str]:
    """Return the types of the plan's layers that plugins define."""

    def of(graph: Graph) -> list[str]:
        types = [str(node.component["type"]) for node in graph.nodes if node.component is not None]
        return [*types, *(each for node in graph.nodes if node.graph is not None for each in of(node.graph))]

    return [each for graph in (plan.batch_graph, plan.graph) for each in of(graph) if each not in LAYERS]


def _plugin_components(plan: Plan) -> list[str]:
    """Return the plan's losses, metrics, fields and transforms that are defined in plugins, as text such as "the loss
    `mine`". Sources are left out, because predictions for new rows do not need them."""
    parts = [("loss", each.component) for each in plan.objective.terms]
    parts += [("metric", each.component) for each in plan.objective.metrics]
    parts += [("field", each.component) for each in plan.data.fields]
    parts += [("transform", each) for each in plan.data.transforms]
    return [f"the {word} `{component['type']}`" for word, component in parts if PLUGIN in component]


def _plugins_hint(plan: Plan) -> str:
    return f"--plugins runs the code of {', '.join(format_path(file) for file in plan.plugins)}"


def check_source(trained: Trained, name: str) -> None:
    """Raise UsageError if the set `name` has rows from a plugin's source, and `trained` was opened without permission
    to run the code of plugins."""
    data = trained.plan.data
    source = data.set(name).source or data.source
    if PLUGIN in source and not trained.plugins:
        raise UsageError(f"the rows of {name} come from the source `{source['type']}` of a plugin; help: "
                         f"{_plugins_hint(trained.plan)}")  # fmt: skip


def _check_plugins(plan: Plan) -> None:
    from declarative_train.components.plugins import plugin_layers

    for file in plan.plugins:
        try:
            plugin_layers(file)
        except (OSError, ValueError) as error:
            reason = error.strerror.lower() if isinstance(error, OSError) and error.strerror else str(error)
            raise UsageError(f"the run's plugin {format_path(file)} cannot be read: {reason}") from None
