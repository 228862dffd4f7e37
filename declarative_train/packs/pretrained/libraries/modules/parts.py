"""Parts of a model of transformers in a pipeline: the modules before the layers, each layer, the norm, and the head.

The library's plan for the model's class (`pp_plan`) names them. Values that the model's own forward computes outside of
its modules, such as masks, are needed too. So a layer or the head is run through this forward, in a *frame*: a copy of
the model in which every other part returns its input.

Each part must read the output of the part before it, and nothing else that depends on a parameter."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from declarative_train.components.component import ModelParts
from declarative_train.core.tensor_spec import TensorSpec
from declarative_train.graph.probe import move
from declarative_train.packs.pretrained.libraries.modules.division import call_without_values, in_one_line
from declarative_train.packs.pretrained.libraries.modules.node import (
    Inputs,
    LibraryInterface,
    alone,
    build_node,
    find_model,
    forward_flops,
    key_of,
)


class PartInterface(LibraryInterface, Protocol):
    """Methods of `Transformers` (transformers.py) that this module uses."""

    @property
    def output(self) -> str | None: ...

    def run(self, forward: Any, values: Any, main: str, output: str | None) -> Tensor: ...


_FOUND: dict[str, ModelParts | str] = {}


def find_parts(layer: PartInterface, inputs: Inputs) -> ModelParts | str:
    """Return the parts of a library's model between which a pipeline can cut it, or the reason why it cannot be cut."""
    key = key_of(layer, inputs)
    if key not in _FOUND:
        _FOUND[key] = _find(layer, inputs)
    return _FOUND[key]


def _find(layer: PartInterface, inputs: Inputs) -> ModelParts | str:
    with torch.device("meta"):
        model: Any = build_node(layer, inputs).eval()
    plan: dict[str, Any] = getattr(model, "pp_plan", None) or {}
    paths = _list_paths(model, plan)
    if isinstance(paths, str):
        return paths
    if layer.output is not None:
        return f"its output is `{layer.output}`"
    if model.main_input_name != "input_ids" or next(iter(inputs)) not in ("main", "input_ids"):
        return "its first input is not `input_ids`"
    owned = tuple(f"{path}." for path in paths)
    outside = [name for name in _list_kept(model) if not name.startswith(owned)]
    heads = list(dict.fromkeys(name.rpartition(".")[0] for name in outside))
    if len(heads) > 1 or any(hasattr(model.get_submodule(each), "__getitem__") for each in heads):
        return f"the library's plan has no part for `{outside[0]}`"
    return _try_parts(paths, heads, layer, inputs, model)


def _list_paths(model: nn.Module, plan: Mapping[str, Any]) -> list[str] | str:
    """Return the paths of the parts into which transformers' pipeline plan divides a model. Each layer in the model's
    list of layers is a separate part. If the plan cannot be used, return the reason as text."""
    named, prefix = dict(model.named_modules()), _prefix(model)
    names = [name for name in plan if name in named and name.startswith(prefix)]
    lists = [name for name in names if isinstance(named[name], nn.ModuleList)]
    if not names:
        return f"transformers has no pipeline plan for a `{type(model).__name__}`"
    if len(lists) != 1:
        return f"the library's plan names {len(lists)} lists of layers"
    found = []
    for name in names:
        if name in lists:
            found += [f"{name}.{number}" for number in range(len(named[name]))]
        else:
            found.append(name)
    return found


def _prefix(model: Any) -> str:
    """Return the path, with a dot at its end, of the submodule that contains the model without its head, such as
    `model.`. Return "" for a model without a head."""
    return f"{model.base_model_prefix}." if hasattr(model, model.base_model_prefix) else ""


def _list_kept(model: nn.Module) -> list[str]:
    """Return the names of all tensors in the model's state dict: parameters and persistent buffers."""
    return list(model.state_dict(keep_vars=True))


def _try_parts(body: list[str], head: list[str], layer: PartInterface, inputs: Inputs, model: Any) -> ModelParts | str:
    """Return the parts of a model, or the reason why they cannot be run one after the other. To find out, the model is
    run on tensors without values.

    `body`: paths of the parts before the head; each must read only the output of the part before it. `head`: paths of
    the head's parts, which may read only some positions of that output.
    """
    paths = [*body, *head]
    seen: list[str] = []
    made: dict[str, TensorSpec] = {}
    problems: list[str] = []
    last: list[object] = []

    def watch(path: str, part: nn.Module) -> None:
        def enter(_: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
            first, *others = [*given, *named.values()]
            if last and first is not last[-1] and path not in head:
                problems.append(f"`{path}` does not read the output of `{seen[-1]}`")
            for each in _tensors_in(others):
                if each.requires_grad:
                    problems.append(f"`{path}` reads more than the output of `{seen[-1] if seen else 'the inputs'}`")
            seen.append(path)

        def leave(_: nn.Module, given: object, output: object) -> None:
            if not isinstance(output, Tensor):
                problems.append(f"`{path}` returns more than a tensor")
                return
            last.append(output)
            made[path] = TensorSpec(tuple(output.shape[1:]), "float32")

        part.register_forward_pre_hook(enter, with_kwargs=True)
        part.register_forward_hook(leave)

    for path in paths:
        watch(path, model.get_submodule(path))
    try:
        output = call_without_values(model, layer, inputs, is_graded=True)
    except Exception as problem:  # the library's code may read values
        return f"its forward cannot be tried without values: {in_one_line(problem)}"
    if problems:
        return problems[0]
    if seen != paths:
        return "its forward does not call the parts of the library's plan in order"
    made[paths[-1]] = TensorSpec(tuple(output.shape[1:]), "float32")
    return ModelParts(made, dict(_find_ties(model)))


def _tensors_in(value: object) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple | dict):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _tensors_in(each)


def _find_ties(model: nn.Module) -> Iterator[tuple[str, str]]:
    """Yield (name, first name) for each additional name of a parameter that has several names in the model."""
    first = {id(item): name for name, item in model.named_parameters()}
    for name, item in model.named_parameters(remove_duplicate=False):
        if name != first[id(item)]:
            yield name, first[id(item)]


class LibraryPart(nn.Module):
    """Mixin that makes a part of a library's model usable as the module of a node: its `forward` takes the values of
    the node's ports, in their order."""

    is_library = True
    _dtrain_layer: PartInterface
    _dtrain_buffers: Mapping[str, Tensor]
    _dtrain_output: str | None
    frame: nn.Module | None

    def forward(self, *values: Tensor | None) -> Tensor:
        if self.frame is None:
            found: Tensor = super().forward(values[0])
            return found
        return self._dtrain_layer.run(self.frame, values, "inputs_embeds", self._dtrain_output)

    def compute_own(self, *given: Any, **named: Any) -> Any:
        """Run the library's own forward of this module, and return its result. (`forward` of this class may run
        `frame`, a copy of the whole model, instead.)"""
        return super().forward(*given, **named)

    def reset_buffers(self) -> None:
        """Write the values that the library computed into the buffers again, because `to_empty` loses them."""
        with torch.no_grad():
            for name, buffer in self.named_buffers(remove_duplicate=False):
                buffer.copy_(self._dtrain_buffers[name])


class _StandIn(nn.Module):
    """Mixin for the parts of a copied model that runs only one of them. In the part that runs, the attribute `part` is
    the object that computes its output. In all others it is None, and the forward returns its first input."""

    part: LibraryPart | None

    def forward(self, *given: Any, **named: Any) -> Any:
        if self.part is None:
            return next(iter((*given, *named.values())))
        return self.part.compute_own(*given, **named)


@cache
def _class_of(mixin: Any, kind: Any) -> Any:
    return type(kind.__name__, (mixin, kind), {"__module__": kind.__module__})


def build_part(layer: PartInterface, path: str) -> nn.Module:
    """Return one part of a model as a module on the current device. Its parameters have no values yet."""
    device = torch.empty(0).device
    model: Any = find_model(layer)
    paths = _list_paths(model, model.pp_plan)
    assert not isinstance(paths, str)
    with alone():
        part: Any = copy.deepcopy(model.get_submodule(path))
        kind: Any = type(part)
        part.__class__ = _class_of(LibraryPart, kind)
        part._dtrain_layer, part.frame, part._dtrain_output = layer, None, None
        if path not in paths:  # the head
            part.frame = _make_frame(model, paths, path, part)
        elif path.rpartition(".")[2].isdigit():
            prefix = _prefix(model)
            body = model.get_submodule(prefix.removesuffix("."))
            part.frame = _make_frame(
                body, [each.removeprefix(prefix) for each in paths], path.removeprefix(prefix), part
            )
            part._dtrain_output = "last_hidden_state"
        part._dtrain_buffers = {name: item.clone() for name, item in part.named_buffers(remove_duplicate=False)}
        move(part, device)
    if device.type != "meta":
        part.reset_buffers()
    return part  # type: ignore[no-any-return]


def _make_frame(body: nn.Module, paths: list[str], own: str, part: LibraryPart) -> nn.Module:
    """Return a copy of the model `body` in which `part` computes the module at the path `own`. The modules at all other
    `paths` only return their input."""
    memo: dict[int, Any] = {}
    for path in dict.fromkeys((*paths, own)):
        old = body.get_submodule(path)
        kind: Any = type(old)
        made = object.__new__(_class_of(_StandIn, kind))
        made.__dict__ = {**old.__dict__, "_parameters": {}, "_buffers": {}, "_modules": {}}
        made.__dict__["part"] = part if path == own else None  # not by `setattr`, which would make it a submodule
        memo[id(old)] = made
    frame: nn.Module = copy.deepcopy(body, memo)
    return frame


def count_operations(layer: PartInterface, length: int) -> float:
    """Return the number of floating-point operations of a forward, divided by the number of elements in the model's
    weight matrices. Embedding tables are not counted as weight matrices. `length`: number of token ids in a sample."""
    owners = (part for part in find_model(layer).modules() if not isinstance(part, nn.Embedding))
    weights = (item for part in owners for item in part.parameters(recurse=False) if item.dim() > 1)
    found = forward_flops(layer, {"main": TensorSpec((length,), "int64", num_values=1)})
    return 2.0 * length if found is None else found / sum(item.numel() for item in weights)
