"""Module of a node that is a library's model: the library's class, with a forward that takes the node's inputs by
position.

Each model is created once per process, with its parameters on the meta device, and then copied: creating a large model
takes seconds, and a plan builds it several times."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.weak import WeakIdKeyDictionary

from declarative_train.components.layers.modules.batch_norm import BATCH_NORMS, BatchNormModule, adopt_batch_norms
from declarative_train.components.layers.modules.divided import TensorRanks
from declarative_train.components.layers.modules.expert_ranks import ExpertRanks
from declarative_train.components.layers.sample_groups import group_size
from declarative_train.components.plugin_layer import seed_generators
from declarative_train.graph.probe import move, without_memory
from declarative_train.packs.pretrained.libraries.files import Files

Inputs = Mapping[str, Any]


class LibraryInterface(Protocol):
    """Interface of `LibraryLayer` (layer.py), with the methods that this module uses."""

    @property
    def over(self) -> str: ...

    def as_data(self, *, defaults: bool = True) -> dict[str, object]: ...

    def make(self, inputs: Inputs, *, draws: bool) -> nn.Module: ...

    def call(self, module: nn.Module, forward: Callable[..., Any], values: Sequence[Tensor | None]) -> Any: ...

    @property
    def ports(self) -> Sequence[Any]: ...

    def files(self, module: nn.Module) -> Files | None: ...

    def persistent(self, inputs: Inputs) -> Mapping[str, Tensor]: ...

    def unit_classes(self, module: nn.Module) -> frozenset[str]: ...


class LibraryNode(nn.Module):
    """Mixin that turns a library's model class into the module of a node. Its forward accepts the values in the
    order of the layer's ports.
    """

    is_library = True
    _dtrain_layer: LibraryInterface
    _dtrain_inputs: Inputs
    _dtrain_buffers: Mapping[str, Tensor]

    def forward(self, *values: Tensor | None) -> Any:
        return self._dtrain_layer.call(self, super().forward, values)

    def divide_parts(self, parts: Mapping[str, str], ranks: TensorRanks) -> None:
        """Make the model compute only this rank's part of the submodules in `parts`, {path: kind of the division
        (`core/cuts.py`)}. The caller then replaces the parameters by their parts on this rank."""
        from declarative_train.packs.pretrained.libraries.modules.divided import divide_parts

        divide_parts(self, parts, ranks)

    def divide_experts(self, parts: Sequence[str], peers: ExpertRanks) -> None:
        """Make the model keep only this rank's experts in the submodules `parts`. The caller then replaces the
        parameters by those of these experts."""
        from declarative_train.packs.pretrained.libraries.modules.divided import divide_experts

        divide_experts(self, parts, peers)

    def reset_buffers(self) -> None:
        """Write the values of all buffers, which are lost after `to_empty`. Buffers that are in the model's files get
        the values in the files, others those that the library computes."""
        values = {**self._dtrain_buffers, **self._dtrain_layer.persistent(self._dtrain_inputs)}
        with torch.no_grad():
            for name, buffer in self.named_buffers(remove_duplicate=False):
                buffer.copy_(values[name])
        for part in self.modules():
            if isinstance(part, BatchNormModule):
                part.pending = None
        _DRAWN.clear()  # not needed any longer: parameters have their values


def build_node(layer: LibraryInterface, inputs: Inputs) -> nn.Module:
    """Return a layer's model as a module on the current device. Its parameters have no values yet."""
    device = torch.empty(0).device
    with alone():
        module: Any = copy.deepcopy(bare(layer, inputs))
        kind: Any = type(module)
        module.__class__ = _node_class(kind)
        module._dtrain_layer, module._dtrain_inputs = layer, dict(inputs)
        module._dtrain_buffers = {name: item.clone() for name, item in module.named_buffers(remove_duplicate=False)}
        move(module, device)
    if device.type != "meta":
        module.reset_buffers()
    return module  # type: ignore[no-any-return]


@cache
def _node_class(kind: Any) -> Any:
    return type(kind.__name__, (LibraryNode, kind), {"__module__": kind.__module__, "__doc__": kind.__doc__})


_MOST_KEPT = 8
_BARE: dict[str, nn.Module] = {}


def key_of(layer: LibraryInterface, inputs: Inputs) -> str:
    """Return the key of a layer's model in the cache: a text made of the layer's settings and inputs."""
    return f"{json.dumps(layer.as_data(), sort_keys=True)} {sorted(inputs.items())}"


def bare(layer: LibraryInterface, inputs: Inputs) -> nn.Module:
    """Return a layer's model from the cache; create it if it is not there. Its parameters are on the meta device, so
    they have no values; its buffers have values. The caller must not change the model. Raises LibraryError."""
    key = key_of(layer, inputs)
    if key not in _BARE:
        while len(_BARE) >= _MOST_KEPT:
            del _BARE[next(iter(_BARE))]
        module = _make_bare(layer, inputs)
        _replace_batch_norms(module, layer.over)
        _BARE[key] = module
    return _BARE[key]


def _make_bare(layer: LibraryInterface, inputs: Inputs) -> nn.Module:
    try:
        with alone(), seed_generators(0), _parameters_on_meta():
            return layer.make(inputs, draws=False)
    except Exception:  # the library's code may read values of parameters while it creates the model
        with alone(), seed_generators(0):
            module = layer.make(inputs, draws=True)
        to_meta = _ToMeta()
        for part in module.modules():
            for name, parameter in part._parameters.items():
                if parameter is not None:
                    part._parameters[name] = to_meta(part, name, parameter)
        return module


def draw_model(layer: LibraryInterface, inputs: Inputs, seed: int) -> nn.Module:
    """Return the model on the CPU with the initial values that the library's code draws with the seed `seed`."""
    with alone(), seed_generators(seed):
        return layer.make(inputs, draws=True)


_DRAWN: dict[str, dict[str, Tensor]] = {}
"""The last model that was drawn, by the names of its parameters: in memory only while a part of it is filled."""


def rows_of(
    layer: LibraryInterface, inputs: Inputs, seed: int, parameter: str, first: int, count: int | None
) -> Tensor:
    """Return `count` rows (None: all), from row `first` on, of a parameter's initial value. It is the value in the
    model's files, or if the files do not have it, the value that the library's code draws with `seed`. Raises
    LibraryError."""
    files = layer.files(bare(layer, inputs))
    if files is not None and parameter in files.names:
        return files.read(parameter, first, count)
    key = f"{seed} {key_of(layer, inputs)}"
    if key not in _DRAWN:
        _DRAWN.clear()
        with torch.no_grad():
            _DRAWN[key] = dict(draw_model(layer, inputs, seed).named_parameters(remove_duplicate=False))
    whole = _DRAWN[key][parameter].detach()
    return whole if count is None else whole[first : first + count]


@contextmanager
def alone() -> Iterator[None]:
    """Run the `with` block on the CPU in float32, without the torch modes, default device and default dtype of the
    caller."""
    dtype = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        with _disable_current_modes(), torch.device("cpu"), torch.no_grad(), _Draws():
            yield
    finally:
        torch.set_default_dtype(dtype)


class _ToMeta:
    """Hook that torch calls for every parameter that a module registers. It replaces the parameter by one on the meta
    device."""

    def __init__(self) -> None:
        self._known = WeakIdKeyDictionary()

    def __call__(self, module: nn.Module, name: str, parameter: nn.Parameter) -> nn.Parameter:
        if parameter.is_meta:
            return parameter
        if parameter not in self._known:
            there = torch.empty_like(parameter, device="meta")
            self._known[parameter] = nn.Parameter(there, parameter.requires_grad)
        found: nn.Parameter = self._known[parameter]
        return found


@contextmanager
def _parameters_on_meta() -> Iterator[None]:
    hook: Any = _ToMeta()
    handle = register_module_parameter_registration_hook(hook)
    try:
        yield
    finally:
        handle.remove()


class _Draws(TorchFunctionMode):
    """Torch function mode in which functions that fill a tensor with random values skip tensors on the meta device,
    because these have no values."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _DRAWS or getattr(func, "__module__", None) == nn.init.__name__:
            tensor = args[0] if args else kwargs.get("tensor")
            if isinstance(tensor, Tensor) and tensor.is_meta:
                return tensor
        return func(*args, **kwargs)


_DRAWS = frozenset([Tensor.uniform_, Tensor.normal_, Tensor.erfinv_, Tensor.exponential_, Tensor.random_])


_FLOPS: dict[str, int | None] = {}


def forward_flops(layer: LibraryInterface, inputs: Inputs) -> int | None:
    """Return the floating-point operations of a forward for one sample, from torch's counter; None if the forward
    cannot be traced."""
    from torch.utils.flop_counter import FlopCounterMode

    key = key_of(layer, inputs)
    if key not in _FLOPS:
        counter = FlopCounterMode(display=False)
        try:
            with torch.device("meta"):
                module = build_node(layer, inputs).eval()
            if callable(choose := getattr(module, "set_experts_implementation", None)):
                choose("batched_mm")  # the grouped product is not counted, and has no meta kernel in float32
            with without_memory(module), counter, torch.no_grad():
                module(*(sample(inputs[port.name]) if port.name in inputs else None for port in layer.ports))
            _FLOPS[key] = counter.get_total_flops()
        except Exception:  # the library's code may read values
            _FLOPS[key] = None
    return _FLOPS[key]


def sample(spec: Any) -> Tensor:
    """Return a batch of one sample, filled with zeros, for an input with the TensorSpec `spec`."""
    return torch.zeros((1, *spec.shape), dtype=getattr(torch, spec.dtype), device="cpu")


# -- the parts of a model


def _replace_batch_norms(module: nn.Module, over: str) -> None:
    """Replace all batch normalisations in `module`, including timm's variants with an activation, by `BatchNormModule`.
    `over`: value of the recipe's key `over`: the samples that are normalised together."""
    adopt_batch_norms(module)
    for part in module.modules():
        if type(part).__name__ == "BatchNormAct2d" and part.momentum is not None and part.running_mean is not None:
            groups = BatchNormModule(1, 1.0, 0.0, False, None).groups
            kind: Any = type(part)
            part.__class__ = _add_activation(kind)
            part.over, part.groups, part.pending = None, groups, None  # type: ignore[assignment]
        if isinstance(part, BatchNormModule):
            part.over = group_size(over)


@cache
def _add_activation(kind: Any) -> Any:
    def forward(self: Any, x: Tensor) -> Any:
        return self.act(self.drop(BatchNormModule.forward(self, x)))

    return type(kind.__name__, (BatchNormModule, kind), {"forward": forward, "__module__": kind.__module__})


def find_model(layer: LibraryInterface) -> nn.Module:
    """Return a layer's model from the cache, no matter for which inputs it was created. If the cache has none, create
    one, without inputs."""
    begin = key_of(layer, {}).removesuffix("[]")
    return next((module for key, module in reversed(_BARE.items()) if key.startswith(begin)), None) or bare(layer, {})


def has_batch_norms(layer: LibraryInterface) -> bool:
    return any(isinstance(part, BATCH_NORMS) for part in find_model(layer).modules())


def has_dropout(layer: LibraryInterface) -> bool:
    """Return whether the model has a dropout above 0, in a dropout module or in a value of its config."""
    module = find_model(layer)
    rates = [
        getattr(part, key, 0.0) for part in module.modules() for key in _RATES if "drop" in type(part).__name__.lower()
    ]
    config: Any = getattr(module, "config", None)
    settings = config.to_dict() if hasattr(config, "to_dict") else {}
    rates += [value for name, value in settings.items() if "drop" in name]
    return any(isinstance(rate, float) and rate > 0 for rate in rates)


_RATES = ("p", "drop_prob", "prob", "drop_p")


def foreign_batch_norms(module: nn.Module) -> list[str]:
    """Return the names of the batch normalisations that are not a `BatchNormModule`, because they could not be replaced
    by one. Their running statistics would depend on how a batch is divided over ranks and microbatches."""
    return [
        name
        for name, part in module.named_modules()
        if isinstance(part, BATCH_NORMS) and not isinstance(part, BatchNormModule)
    ]


def units_in(module: nn.Module, classes: frozenset[str]) -> tuple[str, ...]:
    """Return the paths of the units of a model: modules that are sharded, recomputed and compiled by themselves, such
    as transformer blocks.

    Units are the modules whose class is in `classes`, which the library names. If there are none, units are the
    elements of the outermost ModuleLists whose elements have one class and submodules. A module that shares parameters
    with others is not a unit.
    """
    found = list(_outermost(module, "", lambda part: type(part).__name__ in classes)) if classes else []
    if not found:
        lists = _outermost(module, "", _is_list_of_equals)
        found = [f"{path}.{name}" for path in lists for name, _ in module.get_submodule(path).named_children()]
    users: dict[int, int] = {}
    for _, parameter in module.named_parameters(remove_duplicate=False):
        users[id(parameter)] = users.get(id(parameter), 0) + 1
    return tuple(path for path in found if _is_apart(module.get_submodule(path), users))


def _outermost(module: nn.Module, prefix: str, wanted: Callable[[nn.Module], bool]) -> Iterator[str]:
    for name, child in module.named_children():
        path = f"{prefix}{name}"
        if wanted(child):
            yield path
        else:
            yield from _outermost(child, f"{path}.", wanted)


def _is_list_of_equals(part: nn.Module) -> bool:
    members = list(part.children())
    return (
        isinstance(part, nn.ModuleList | nn.Sequential)
        and bool(members)
        and len({type(member) for member in members}) == 1
        and all(any(True for _ in member.children()) for member in members)
    )


def _is_apart(part: nn.Module, users: Mapping[int, int]) -> bool:
    own: dict[int, int] = {}
    for _, parameter in part.named_parameters(remove_duplicate=False):
        own[id(parameter)] = own.get(id(parameter), 0) + 1
    return bool(own) and all(users[each] == count for each, count in own.items())
