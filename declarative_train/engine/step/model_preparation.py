"""Model for training. It is built from the plan and gets initial values, some parameters are frozen, and the units (the
repeated blocks) are prepared.

A unit is first prepared for activation checkpointing, then compiled, then (with fsdp) sharded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import fx, nn

from declarative_train.components.layers.modules.packed import hold
from declarative_train.components.layers.sample_groups import MixesSamples, SampleGroups
from declarative_train.components.losses.modules.chunked import ChunkedHead
from declarative_train.components.pipeline_schedules import PIPELINE_SCHEDULES
from declarative_train.data.split_rows import TRAINING
from declarative_train.engine.step.load_weights import names_in, open_weights, write_weights
from declarative_train.graph.build import build
from declarative_train.graph.initialise import has_module, initialise, inner_parts
from declarative_train.plan.channels_last import uses_channels_last

if TYPE_CHECKING:
    from declarative_train.components.storages import StorageName
    from declarative_train.plan.plan import ParameterPlan, Plan


class BuiltModel:
    """Part of the model that is on a rank.

    `model`    module with this rank's parameters under the plan's names
    `roots`    modules to call: the model itself, or the stages of a pipeline
    `modules`  modules to switch between training and evaluation; in mode `dp`, every replica
    `stages`   stages of a pipeline on this rank, by index; empty without a pipeline
    `whole`    the model before it is divided into stages; in a pipeline its tensors have no values
    """

    def __init__(self, model: nn.Module, stages: dict[int, nn.Module] | None = None, whole: nn.Module | None = None):
        self.model = model
        self.stages = stages or {}
        self.roots: list[nn.Module] = list(self.stages.values()) or [model]
        self.modules: list[nn.Module] = [model, *self.stages.values()]
        self.whole = model if whole is None else whole

    @property
    def graph_module(self) -> fx.GraphModule:
        """The model as one module. Only for a model that is not divided into pipeline stages."""
        assert isinstance(self.model, fx.GraphModule)
        return self.model


def whole_model(plan: Plan) -> BuiltModel:
    """Return the whole model on the meta device. Its parameters have no values until `fill` allocates and initialises
    them."""
    ties = {item.name: item.tie for item in plan.parameters if item.tie is not None}
    is_sharded = plan.layout.is_sharded
    model = build(plan.graph, plan.plugins, seed=plan.seed, device="meta", ties=ties, is_sharded=is_sharded)
    hold([model], storages_of(plan))
    return BuiltModel(model)


def storages_of(plan: Plan) -> dict[str, StorageName]:
    """Return a dict from the name of each parameter that is stored in fewer bits to its number format, such as nf4."""
    return {item.name: item.storage for item in plan.parameters if item.storage is not None}


def fill(built: BuiltModel, plan: Plan, device: torch.device, *, restores: bool = False, alone: bool = False) -> None:
    """Allocate the model's memory on the device and set initial values: random numbers that depend on seed and
    parameter name, or values from the files of `model.weights`. `restores`: a checkpoint will set every parameter, so
    nothing is drawn or read. `alone`: this process has the whole model, whatever the plan's layout is. Raises
    RunFailure."""
    if alone:
        materialise(built.roots, device)
    else:
        allocate(built, plan, device)
    files = [] if restores else open_weights(built.model, plan.weights, whole=not built.stages)
    names = (item.name for item in plan.parameters) if restores else names_in(built.model, files)
    replaced = frozenset(names)
    initialise(built.model, plan.graph, plan.parameters, plan.seed, plan.plugins, replaced=replaced)
    widen(built, plan)  # after random values were drawn in float32, and before a file is read, which may have float64
    write_weights(built.model, files)
    for root in built.roots:
        root.to(device)
    given = {*replaced, *(item.name for item in plan.parameters if item.init is not None)}
    with torch.no_grad():
        for path, part in built.model.named_modules():
            if callable(start := getattr(type(part), "start_from_weights", None)):  # of an adapter
                start(part, path, given)
    lay_out(built, plan, device)


def widen(built: BuiltModel, plan: Plan) -> None:
    if plan.training.precision == "fp64":
        for root in built.roots:
            root.double()


def lay_out(built: BuiltModel, plan: Plan, device: torch.device) -> None:
    """Store convolution weights with channels last, if the plan chooses this memory format for the device."""
    if uses_channels_last(plan, device.type):
        lay_out_convolutions(built.model)


def allocate(built: BuiltModel, plan: Plan, device: torch.device) -> None:
    """Allocate memory for every tensor of the model on the device, without setting values."""
    if not plan.layout.is_sharded:
        materialise(built.roots, device)
        return
    for root in built.roots:
        root.to_empty(device=device)


def materialise(roots: Sequence[nn.Module], device: torch.device, dtype: torch.dtype | None = None) -> None:
    """Allocate memory for the tensors in `roots` that are on the meta device, without setting values. `dtype`: dtype of
    floating-point tensors; None: unchanged. A tensor with several names stays one tensor, which torch's `to_empty` does
    not ensure."""
    made: dict[int, torch.Tensor] = {}
    for part in (part for root in roots for part in root.modules()):
        for name, tensor in (*part._parameters.items(), *part._buffers.items()):
            if tensor is None or tensor.device.type != "meta":
                continue
            if id(tensor) not in made:
                kind = dtype if dtype is not None and tensor.is_floating_point() else tensor.dtype
                # not `empty_like`: for a meta tensor it is Python code in torch, whose imports take 0.2 s
                empty = torch.empty_strided(tensor.size(), tensor.stride(), dtype=kind, device=device)
                is_parameter = isinstance(tensor, nn.Parameter)
                made[id(tensor)] = nn.Parameter(empty, tensor.requires_grad) if is_parameter else empty
            setattr(part, name, made[id(tensor)])


def build_with_start_values(plan: Plan) -> nn.Module:
    """Return the whole model with its initial values on the CPU, for use outside a run. The plan may have any layout.
    Raises RunFailure."""
    from declarative_train.engine.checkpoints.find import resolve_weights
    from declarative_train.engine.checkpoints.store import damage

    built = whole_model(plan)
    fill(built, replace(plan, weights=resolve_weights(plan.weights, damage)[0]), torch.device("cpu"), alone=True)
    return built.model


def lay_out_convolutions(module: nn.Module) -> None:
    """Store the weights of 2d convolutions with channels last, so that their outputs have this memory format too.
    Values and shapes do not change. Models of libraries (transformers, timm) are not changed."""
    fixed = inner_parts(module)
    for part in module.modules():
        if isinstance(part, nn.Conv2d | nn.ConvTranspose2d) and id(part) not in fixed:
            part.weight.data = part.weight.data.contiguous(memory_format=torch.channels_last)


def freeze(module: nn.Module, parameters: tuple[ParameterPlan, ...]) -> None:
    """Set `requires_grad` to False for parameters that the recipe freezes, and for those on which no loss depends."""
    frozen = {item.name for item in parameters if item.frozen}
    idle = {item.name for item in parameters if item.idle}
    named = dict(module.named_parameters())
    for name, parameter in named.items():
        parameter.requires_grad_((name not in frozen or name in idle) and parameter.is_floating_point())
    # per node, so that a stage that is frozen as a whole has the same frozen modules as the whole model
    for part in (part for child in module.children() for top in find_frozen_modules(child) for part in top.modules()):
        part._is_frozen = True  # type: ignore[assignment]
    for name in idle & named.keys():
        named[name].requires_grad_(False)


def set_training(module: nn.Module, training: bool) -> None:
    """Switch a module to training or evaluation. Submodules whose parameters are all frozen stay in evaluation: their
    dropout is off, and their running statistics do not change."""
    module.train(training)
    if training:
        for part in module.modules():
            if getattr(part, "_is_frozen", False):
                part.eval()


def find_frozen_modules(module: nn.Module) -> list[nn.Module]:
    """Return the outermost modules whose parameters are all frozen. Modules without parameters are left out."""
    parameters = list(module.parameters())
    if not parameters:
        return []
    if not any(parameter.requires_grad for parameter in parameters):
        return [module]
    return [part for child in module.children() for part in find_frozen_modules(child)]


def prepare_units(module: nn.Module, plan: Plan, groups: SampleGroups) -> None:
    """Set up activation checkpointing and compilation of the units (repeated blocks) of `module`, in place and without
    changing names. `groups`: state of the layers that mix samples, such as batch norms. A checkpointed unit with such
    layers is not compiled, because the compiler cannot follow `SampleGroups.checkpoint_contexts`."""
    layout, training, draws = plan.layout, plan.training, bool(plan.draws)
    forgetful: list[nn.Module] = []
    if training.compile:
        from declarative_train.engine.step.compiled import share_classes

        share_classes(module)
    again = training.recomputation
    if again.policy != "none":
        pipeline = layout.pipeline
        splits = pipeline is not None and PIPELINE_SCHEDULES[pipeline.schedule].splits_backward
        forgetful = find_unit_modules(module, again.units(layout.units), rest=again.policy == "all")
        forgetful = [unit for unit in forgetful if not isinstance(unit, ChunkedHead)]  # keeps no activations anyway
        for unit in forgetful:
            checkpoint_activations(unit, groups, keep=frozenset(again.keep), draws=draws, splits=splits)
    if training.compile:
        from declarative_train.engine.step.compiled import compile_units

        eager = {id(unit) for unit in forgetful if mixes_samples(unit)}
        units = [unit for unit in find_unit_modules(module, layout.units, rest=True) if id(unit) not in eager]
        compile_units(module, units, num_lengths=max(1, len(plan.data.set(TRAINING).buckets)))


def find_unit_modules(module: nn.Module, units: tuple[str, ...], *, rest: bool) -> list[nn.Module]:
    """Return the modules named `units`; names that `module` lacks are ignored. `rest`: also return the largest modules
    without a unit in them, so that the list covers the whole model."""
    found = [unit for unit in units if has_module(module, unit)]
    paths = list(found)
    if rest:
        paths += _paths_outside(module, "", tuple(found))
    return [module.get_submodule(path) for path in paths]


def _paths_outside(module: nn.Module, prefix: str, units: tuple[str, ...]) -> list[str]:
    paths: list[str] = []
    for name, child in module.named_children():
        path = f"{prefix}{name}"
        if path in units:
            continue
        if any(unit.startswith(f"{path}.") for unit in units):
            paths += _paths_outside(child, f"{path}.", units)
        else:
            paths.append(path)
    return paths


def mixes_samples(unit: nn.Module) -> bool:
    return any(isinstance(part, MixesSamples) for part in unit.modules())


def checkpoint_activations(
    unit: nn.Module, groups: SampleGroups, *, keep: frozenset[str], draws: bool, splits: bool = False
) -> None:
    """Make the module `unit` recompute its activations in the backward. `groups`: state of the layers that mix samples,
    such as batch norms, which is restored for the recomputation. `keep`: kinds of results that are kept instead of
    recomputed (`engine/step/selective.py`). `draws`: the model draws random numbers, so the recomputation must draw the
    same ones. `splits`: the backward consists of several calls to autograd, as in zero-bubble pipeline schedules."""
    from torch.utils.checkpoint import checkpoint

    forward = unit.forward
    contexts: Any = None
    of_groups = groups.checkpoint_contexts if mixes_samples(unit) else None
    if keep:
        from declarative_train.engine.step.selective import make_contexts

        contexts = partial(make_contexts, keep, of_groups)
    elif of_groups is not None:
        contexts = of_groups
    if splits:
        from declarative_train.engine.step.recompute_once import checkpoint_once

        def forward_again(*inputs: Any, **named: Any) -> Any:
            call = partial(forward, **named) if named else forward
            return checkpoint_once(call, inputs, draws=draws, contexts=contexts)
    else:
        settings = {} if contexts is None else {"context_fn": contexts}

        def forward_again(*inputs: Any, **named: Any) -> Any:  # a library's model passes arguments by name
            call = partial(forward, **named) if named else forward
            return checkpoint(call, *inputs, use_reentrant=False, preserve_rng_state=draws, **settings)

    unit.forward = forward_again
