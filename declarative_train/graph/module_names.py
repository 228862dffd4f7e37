"""Nodes with names that are also attributes of torch's modules, such as `train`, `forward`, `parameters`.

Such a node is registered under its own name, so that parameters and checkpoints have the recipe's names. The code that
torch.fx generates calls the node by another attribute, with a prefix that no name in a recipe has. So torch's attribute
keeps its meaning."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from functools import cache
from typing import Any

from torch import fx, nn

_BEFORE = "_node_"  # no name in a recipe begins like this


@cache
def _of_torch(is_sharded: bool) -> frozenset[str]:
    found = frozenset(dir(fx.GraphModule(nn.Module(), fx.Graph())))
    if is_sharded:  # `fully_shard` adds its methods to a module
        from torch.distributed.fsdp import FSDPModule

        found |= frozenset(dir(FSDPModule))
    return found


def is_of_torch(name: str, is_sharded: bool = False) -> bool:
    """Return whether torch's modules have an attribute with this name. Of a dotted name such as `half.0`, only the
    first part is tested. `is_sharded`: also test the attributes that `fully_shard` adds."""
    return name.partition(".")[0] in _of_torch(is_sharded)


def attribute(name: str, is_sharded: bool = False) -> str:
    """Return the attribute of a torch module by which generated code calls the node `name`. It is `name`, with a prefix
    if torch's modules already have an attribute `name`. `is_sharded`: `fully_shard` will be applied to the module, and
    its attributes count too."""
    return f"{_BEFORE}{name}" if is_of_torch(name, is_sharded) else name


def name_of(attribute: str) -> str:
    """Return the name of the node that generated code calls by `attribute`: `_node_train` -> `train`."""
    return attribute.removeprefix(_BEFORE)


def graph_module(
    modules: dict[str, nn.Module],
    lines: fx.Graph,
    class_name: str,
    added: Iterable[str] = (),
    is_sharded: bool = False,
) -> fx.GraphModule:
    """Return a GraphModule with the code `lines`. `modules`: its submodules by node name; the code calls a node as
    `attribute(name)`. `added`: names of parameters that the caller registers in the module later. `is_sharded`: whether
    `fully_shard` will be applied to the module."""
    is_named = any(is_of_torch(name, is_sharded) for name in (*modules, *added))
    is_named = is_named or any(isinstance(each, Named) for each in modules.values())
    return (Named if is_named else fx.GraphModule)(_root(modules, is_sharded), lines, class_name=class_name)


def for_tools(module: nn.Module) -> nn.Module:
    """Return a copy of a module in which every child is a plain attribute, because tools such as torch.export look
    children up by attribute. Return the module itself if no module in it is a `Named` module."""
    if not any(isinstance(part, Named) for part in module.modules()):
        return module
    children = {name: for_tools(child) for name, child in module.named_children()}
    if isinstance(module, fx.GraphModule):
        made: nn.Module = fx.GraphModule(_root(children), module.graph, class_name=type(module).__name__)
    else:
        made = nn.Module()
        made._modules.update(children)
    made.training = module.training
    return made


def put(holder: nn.Module, path: str, module: nn.Module) -> None:
    """Register `module` in `holder` at a dotted path. If containers in the path are missing, plain modules are
    created."""
    containers, _, last = path.rpartition(".")
    container(holder, containers)._modules[last] = module


def container(holder: nn.Module, path: str) -> nn.Module:
    """Return the module in `holder` at a dotted path. If modules in the path are missing, plain modules are created."""
    for name in path.split(".") if path else ():
        if name not in holder._modules:
            holder._modules[name] = nn.Module()
        found = holder._modules[name]
        assert found is not None
        holder = found
    return holder


def _root(modules: dict[str, nn.Module], is_sharded: bool = False) -> nn.Module:
    """Return a module with `modules` as its children, in this order, as the root of an `fx.GraphModule`. (If fx got the
    dict, it would sort the children by depth.) `is_sharded`: whether `fully_shard` will be applied to the result."""
    root = nn.Module()
    for name, module in modules.items():
        put(root, attribute(name, is_sharded), module)
    return root


class ByName(nn.Module):
    """Module whose children may have names that are also attributes of torch's modules, such as `train`."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith(_BEFORE) and (found := self.__dict__["_modules"].get(name_of(name))) is not None:
            return found
        return super().__getattr__(name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self.__dict__.get("_modules", ()):
            super().__setattr__(name, value)
        elif isinstance(value, nn.Module):
            self._modules[name] = value
        else:
            object.__setattr__(self, name, value)

    def get_submodule(self, target: str) -> nn.Module:
        """Return the submodule at the dotted path `target`, whose parts are names of nodes. An attribute that replaces
        a node's name, because torch's modules already use this name, is accepted too."""
        module: nn.Module = self
        for part in target.split(".") if target else ():
            found = module._modules.get(name_of(part))
            if found is None:
                raise AttributeError(f"{type(module).__name__} has no node `{part}`")
            module = found
        return module


class Named(ByName, fx.GraphModule):
    """GraphModule in which a node, at any depth, has the name of an attribute of torch's modules, such as `train`."""

    def __init__(self, root: nn.Module, graph: fx.Graph, class_name: str = "GraphModule") -> None:
        super().__init__(root, graph, class_name)
        found = {name_of(name): module for name, module in self._modules.items()}
        self._modules.clear()
        self._modules.update(found)

    def __deepcopy__(self, memo: dict[int, Any]) -> Named:
        """Copy the module. torch's own method fails here, because it looks children up by attribute."""
        made = type(self).__new__(type(self))
        memo[id(self)] = made
        made.__dict__.update(copy.deepcopy(self.__dict__, memo))
        made.recompile()
        return made
