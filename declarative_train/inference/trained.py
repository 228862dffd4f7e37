"""A run or one of its checkpoints -> the trained model with all that it needs to be used.

A checkpoint holds the plan of its run: the graph, how each field was read with its statistics, vocabularies and class
names, and the recipe as it was typed. So a copied `step_*` folder is enough, on this machine or at any fsspec URL.

    UsageError           there is no such run, output or setting: exit 2
    CheckpointFailure    the run is there, and cannot be read: exit 3
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from declarative_train.components.layers import LAYERS
from declarative_train.components.plugin_components import PLUGIN
from declarative_train.components.texts.tokenizer import use_checkpoint_copies
from declarative_train.core.diagnostics.suggest import did_you_mean
from declarative_train.engine.checkpoints.find import NoCheckpoint, find_checkpoint
from declarative_train.engine.checkpoints.store import CheckpointEntry, damage, read_entry
from declarative_train.engine.failures import CheckpointFailure
from declarative_train.files.open_files import local_path, shown
from declarative_train.graph.graph import Graph
from declarative_train.plan.codec import PlanError, from_json, unset_for_model
from declarative_train.plan.output_semantics import classes_of, unit_of
from declarative_train.plan.run_folder import CHECKPOINTS, PLAN, owner_of
from declarative_train.plan.subgraph import UnknownOutputError, nodes_of, prune
from declarative_train.run.run_state import RunState

if TYPE_CHECKING:
    import torch
    from torch import fx, nn

    from declarative_train.components.data import Unit
    from declarative_train.data.spec import FieldSpec
    from declarative_train.engine.step.load_weights import Source
    from declarative_train.plan.plan import Plan

Weights = Literal["trained", "ema"]


class UsageError(Exception):
    """What was asked for cannot be had: one message for the user, exit 2."""


@dataclass(frozen=True)
class Network:
    """From fields to some outputs: `module` takes a tensor (B, ...) for each of `inputs`, by position, and returns a
    tuple of one for each of `outputs`. In evaluation mode; `graph` is what it was built from."""

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
    """A trained model.

    path      the checkpoint's folder, or its URL
    plan      that of the run
    step      how many optimizer steps the weights have seen
    is_best   it was the best of its run when it was saved
    values    what evaluations found at this step, by metric (`validation/accuracy`); of the run's end, if at another
              step, nothing is here
    passed_over  why other checkpoints of the run were not taken
    weights      those that were trained, or their moving average
    plugins      the code of the run's plugins may be run
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
        """`runs/wine/20261122-101500 step 40`."""
        return f"{shown(self.run or self.path)} step {self.step}"

    @cached_property
    def run(self) -> str | None:
        """The folder of the run that the checkpoint is of; None for one that was copied elsewhere."""
        root, _, _ = self.path.rpartition("/")
        if (owner := owner_of(root)) is not None:
            return owner
        run, _, folder = root.rpartition("/")
        return run if folder == CHECKPOINTS and run else None

    @property
    def run_dir(self) -> Path | None:
        """The same, where it is on this machine."""
        local = None if self.run is None else local_path(self.run)
        return None if local is None else Path(local)

    @property
    def recipe(self) -> str:
        """The recipe's own file as it was typed. What it extends is in `plan.recipe` beside it; "" where the plan holds
        no texts."""
        return next(iter(self.plan.recipe.values()), "")

    @cached_property
    def fields(self) -> dict[str, FieldSpec]:
        """How each field was read, with the run's statistics and vocabularies."""
        return {field.name: field for field in self.plan.data.fields}

    def class_names(self, field: str) -> tuple[str, ...] | None:
        """The classes of a category field by number; None for a field that has none. Of several columns: those of the
        first."""
        return classes_of(self.plan, self.fields[field])

    def unit(self, field: str) -> Unit | None:
        """How values of a field go back to what stands in its columns: value * multiply + add; None where they are as
        in the columns."""
        return unit_of(self.fields[field])

    @property
    def outputs(self) -> list[str]:
        """Every node that can be asked for, as `network` takes it."""
        return nodes_of(self.plan)

    def module(self, device: torch.device | str = "cpu", *, as_held: bool = False) -> nn.Module:
        """The model as it was trained, in evaluation mode, under the recipe's names. It takes what `plan.graph.inputs`
        names, by position, and returns a tuple in the order of `plan.graph.outputs`. `as_held`: what the run held in
        fewer bits is so here, as bytes; else it is what is left of it, in float32. Raises CheckpointFailure."""
        return self._built(self.plan.graph, device, as_held)

    def network(self, outputs: Sequence[str], device: torch.device | str = "cpu", *, as_held: bool = False) -> Network:
        """From fields to these outputs: names of what the objective reads, of nodes, or of nodes inside of blocks
        (`gpt.layers.0.attn`). `as_held`: as `module` has it. Raises UsageError for a name that is none of them."""
        graph = self.graph(outputs)
        return Network(self._built(graph, device, as_held), graph)

    def graph(self, outputs: Sequence[str]) -> Graph:
        """What `network` builds. Raises UsageError."""
        try:
            return prune(self.plan, outputs)
        except UnknownOutputError as unknown:
            raise UsageError(f"{unknown}; help: {did_you_mean(unknown.name, unknown.known)}") from None

    @cached_property
    def _source(self) -> Source:
        """Every tensor by its name; of a base in fewer bits what is left of it."""
        from declarative_train.engine.step.load_weights import open_averages, open_source

        return open_source(self.path) if self.weights == "trained" else open_averages(self.path)

    def merged(self) -> Trained:
        """The same model without adapters, and with all weights in float32: what adapters change is in the weights
        beside them."""
        from declarative_train.components.adapters.adapted import is_added
        from declarative_train.engine.step.tensor_files import Tensors
        from declarative_train.graph.merge import adapters_of, make_merged_reader

        if not adapters_of(self.plan.graph):
            return self
        source, found = self._source, replace(self, plan=unheld(self.base_plan))
        read = make_merged_reader(self.plan.graph, source.shapes, source.whole)
        shapes = {name: shape for name, shape in source.shapes.items() if not is_added(name)}
        found.__dict__["_source"] = Tensors(shapes, lambda name, *_: read(name))
        return found

    @property
    def base_plan(self) -> Plan:
        """The plan of the same model without adapters."""
        from declarative_train.components.adapters.adapted import is_added
        from declarative_train.graph.merge import adapters_of, without_adapters
        from declarative_train.plan.codec import sign

        plan = self.plan
        if not adapters_of(plan.graph):
            return plan
        kept = tuple(item for item in plan.parameters if not is_added(item.name))
        return sign(replace(plan, graph=without_adapters(plan.graph), parameters=kept))

    def _built(self, graph: Graph, device: torch.device | str, as_held: bool) -> fx.GraphModule:
        import torch

        from declarative_train.components.layers.modules.packed import find_packed, hold
        from declarative_train.engine.step.load_weights import write_packed
        from declarative_train.engine.step.model import materialise, storages_of
        from declarative_train.graph.build import build, tie
        from declarative_train.graph.initialise import initialise

        plan, shapes = self.plan, self._source.shapes
        storages = storages_of(plan) if as_held else {}
        module = build(graph, plan.plugins, seed=plan.seed, device="meta" if storages else None)
        names = dict(module.named_parameters(remove_duplicate=False))
        ties = {item.name: item.tie for item in plan.parameters if item.tie is not None and item.name in names}
        tie(module, {name: source for name, source in ties.items() if source in names})
        if storages:
            hold([module], storages)
            materialise([module], torch.device("cpu"))
            initialise(module, graph, (), plan.seed, plan.plugins)  # buffers that follow from the recipe
        if plan.training.precision == "fp64":
            module.double()
        persistent = module.state_dict(keep_vars=True)
        saved = {id(held) for name, held in persistent.items() if name in shapes}
        into: dict[str, torch.Tensor] = {}
        again: list[tuple[torch.Tensor, str]] = []
        for name, held in persistent.items():
            # one that is tied to a parameter of a node that is not here is filled by its own name
            source = ties.get(name, name)
            if source in into:
                again.append((held, source))
                continue
            if source not in shapes and id(held) in saved:
                continue  # a library's model holds one parameter under two names, and it is saved under one
            if source not in shapes:
                raise CheckpointFailure(f"the checkpoint {shown(self.path)} lacks {source}")
            into[source] = held
        packed = {ties.get(name, name): each for name, each in find_packed(module).items()}
        with torch.no_grad():
            write_packed(self._source, {name: held.detach() for name, held in into.items()}, packed)
            for held, source in again:
                held.copy_(into[source])
        return module.to(device).eval().requires_grad_(False)


def unheld(plan: Plan) -> Plan:
    """The same with all weights in the dtype that is computed in."""
    from declarative_train.plan.codec import sign

    return sign(replace(plan, parameters=tuple(replace(item, storage=None) for item in plan.parameters)))


def open_trained(
    path: str | os.PathLike[str],
    *,
    plugins: bool = False,
    look: Callable[[CheckpointEntry], str | None] = damage,
    weights: Weights | None = None,
) -> Trained:
    """Of a run's folder the best checkpoint, else the newest; of the folder of a recipe's runs that of the newest run;
    or the checkpoint at the path, wherever it was copied to. Local, or any fsspec URL.

    `weights`: the trained ones or their moving average; None: those that the run evaluated.

    `plugins`: the code of the run's own layers may be imported. `look` reads a checkpoint before it is taken. Raises
    UsageError where there is no run, or one that needs plugins, and CheckpointFailure for one that cannot be read.
    """
    text = os.fspath(path)
    place = local_path(text) or text
    entry, passed_over = _found(place.rstrip("/") or "/", look)
    plan = _plan_of(entry)
    own = [f"the layer `{each}`" for each in _own_layers(plan)] + _own_parts(plan)
    if own and not plugins:
        raise UsageError(f"{shown(text)} has {own[0]} of a plugin; help: {_allowed(plan)}")
    if own:
        _check_plugins(plan)
    state = RunState.from_json(entry.manifest["state"])
    values = {name: value for name, value in state.values.items() if state.value_steps.get(name) == entry.step}
    is_best = bool(entry.manifest.get("is_best"))
    if weights == "ema" and plan.training.ema_decay is None:
        raise UsageError(f"{shown(text)} kept no moving average; help: --weights trained, or train with training.ema")
    used = weights or ("trained" if plan.evaluation is None else plan.evaluation.weights)
    return Trained(entry.path, plan, entry.step, is_best, values, tuple(passed_over), used, plugins)


def _found(path: str, look: Callable[[CheckpointEntry], str | None]) -> tuple[CheckpointEntry, list[str]]:
    try:
        return find_checkpoint(path, look)
    except NoCheckpoint:
        if path.rpartition("/")[2].startswith("step_") and (local_path(path) is None or os.path.isdir(path)):
            read_entry(path)  # says why it is torn
        raise UsageError(_no_run(path)) from None
    except (ImportError, ValueError) as error:  # fsspec has no file system of that name, or lacks its package
        raise UsageError(f"cannot open {shown(path)}: {error}") from None


def _no_run(path: str) -> str:
    wanted = "help: give a run's folder (runs/NAME/TIME), or a checkpoint's (.../checkpoints/step_NUMBER)"
    if local_path(path) is None or os.path.isdir(path):
        return f"{shown(path)} is not a run: there is no checkpoint in it; {wanted}"
    if os.path.exists(path):
        return f"{shown(path)} is a file, and a run is a folder; {wanted}"
    folder = os.path.dirname(path) or "."
    beside = [each for each in os.listdir(folder) if os.path.isdir(f"{folder}/{each}")] if os.path.isdir(folder) else []
    hint = f"help: {did_you_mean(os.path.basename(path), beside)}" if beside else wanted
    return f"there is no run {shown(path)}; {hint}"


def _plan_of(entry: CheckpointEntry) -> Plan:
    """Return the plan that a checkpoint holds. Raises CheckpointFailure."""
    from fsspec.core import url_to_fs

    fs, inner = url_to_fs(entry.path)
    record = entry.manifest["files"].get(PLAN)
    reason = "it holds no plan"
    if record is not None:
        try:
            content: bytes = fs.cat_file(f"{inner}/{PLAN}")
            if hashlib.sha256(content).hexdigest() != record["sha256"]:
                raise CheckpointFailure(
                    f"the checkpoint {shown(entry.path)} is damaged: the checksum of {PLAN} does not match"
                )
            plan = from_json(content.decode("utf-8", "replace"))
        except OSError:
            pass
        except PlanError as problem:
            reason = f"{PLAN} is of another dtrain: {problem}"
        else:
            if unset := unset_for_model(plan):
                run, names = inner.rsplit("/", 2)[0], ", ".join(f"`{name}`" for name in unset)
                message = f"the run {shown(run)} takes values from the environment, where {names} is not set"
                raise CheckpointFailure(message)
            return _with_own_tokenizers(plan, entry)
    raise CheckpointFailure(
        f"the checkpoint {shown(entry.path)} cannot be used alone: {reason}; help: use it with the dtrain that wrote "
        f"it ({entry.manifest.get('dtrain_version', 'an earlier one')})"
    )


def _with_own_tokenizers(plan: Plan, entry: CheckpointEntry) -> Plan:
    """Those that lie in the checkpoint, wherever the run had them from."""
    names = entry.manifest["files"]
    fields = tuple(
        replace(each, component=use_checkpoint_copies(each.component, entry.path, names)) for each in plan.data.fields
    )
    source = use_checkpoint_copies(plan.data.source, entry.path, names)
    if source == plan.data.source and fields == plan.data.fields:
        return plan
    return replace(plan, data=replace(plan.data, source=source, fields=fields))


def _own_layers(plan: Plan) -> list[str]:
    """The types of layers that plugins have made."""

    def of(graph: Graph) -> list[str]:
        types = [str(node.component["type"]) for node in graph.nodes if node.component is not None]
        return [*types, *(each for node in graph.nodes if node.graph is not None for each in of(node.graph))]

    return [each for graph in (plan.batch_graph, plan.graph) for each in of(graph) if each not in LAYERS]


def _own_parts(plan: Plan) -> list[str]:
    """What plugins have made beside layers: losses and metrics, which an evaluation computes, and what makes samples of
    rows. A source is not needed for rows of another."""
    parts = [("loss", each.component) for each in plan.objective.terms]
    parts += [("metric", each.component) for each in plan.objective.metrics]
    parts += [("field", each.component) for each in plan.data.fields]
    parts += [("transform", each) for each in plan.data.transforms]
    return [f"the {word} `{component['type']}`" for word, component in parts if PLUGIN in component]


def _allowed(plan: Plan) -> str:
    return f"--plugins runs the code of {', '.join(shown(file) for file in plan.plugins)}"


def check_source(trained: Trained, name: str) -> None:
    """That the rows of one of the run's own sets may be asked for. Raises UsageError."""
    data = trained.plan.data
    source = data.set(name).source or data.source
    if PLUGIN in source and not trained.plugins:
        raise UsageError(f"the rows of {name} come from the source `{source['type']}` of a plugin; help: "
                         f"{_allowed(trained.plan)}")  # fmt: skip


def _check_plugins(plan: Plan) -> None:
    from declarative_train.components.plugins import plugin_layers

    for file in plan.plugins:
        try:
            plugin_layers(file)
        except (OSError, ValueError) as error:
            reason = error.strerror.lower() if isinstance(error, OSError) and error.strerror else str(error)
            raise UsageError(f"the run's plugin {shown(file)} cannot be read: {reason}") from None
