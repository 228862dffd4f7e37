"""Write the start values of a built module: each parameter from its own generator, keyed by (seed, name).

So a parameter starts the same in every mode, on any stage or shard, and whatever other nodes the graph has.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol

import torch
from torch import nn

from declarative_train.components.component import Init, Layer
from declarative_train.components.inits import INITS
from declarative_train.graph.graph import Graph
from declarative_train.graph.read import read_layer
from declarative_train.terms.tensor_spec import TensorSpec


class Start(Protocol):
    """What is needed of a parameter: its name, the init component that was selected, and whether it is tied."""

    @property
    def name(self) -> str: ...

    @property
    def init(self) -> dict[str, object] | None: ...

    @property
    def tie(self) -> str | None: ...


def initialise(
    module: nn.Module, graph: Graph, parameters: Iterable[Start], seed: int, plugins: Sequence[str] = ()
) -> None:
    """Fill the parameters that `module` holds, in place, and let its buffers be written anew.

    `graph` may be the whole model's while `module` is a stage of it. A DTensor gets its part of the whole value.
    """
    layers = {path: (layer, specs) for path, layer, specs in _layers(graph, "", plugins)}
    held = dict(module.named_parameters(remove_duplicate=False))
    with torch.no_grad():
        for start in parameters:
            if start.tie is None and start.name in held:
                rule = _read_init(start.init) if start.init is not None else _rule_of(start.name, layers)
                _fill(held[start.name], rule, generator(seed, start.name))
        for part in module.modules():
            if callable(reset := getattr(part, "reset_buffers", None)):
                reset()


def generator(seed: int, name: str) -> torch.Generator:
    """A CPU generator that depends on the seed and the name alone."""
    digest = hashlib.blake2b(f"{seed}:{name}".encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest) >> 1)  # manual_seed takes 63 bits


def _layers(graph: Graph, prefix: str, plugins: Sequence[str]) -> Iterator[tuple[str, Layer, Mapping[str, TensorSpec]]]:
    """Every layer by its path, with the specs that it is built for."""
    for node in graph.nodes:
        if node.graph is not None:
            yield from _layers(node.graph, f"{prefix}{node.name}.", plugins)
        elif node.component is not None:
            specs = {port: graph.spec(edge) for port, edge in node.inputs.items()}
            yield f"{prefix}{node.name}", read_layer(node.component, plugins), specs


def own_rule(graph: Graph, name: str, plugins: Sequence[str] = ()) -> Init:
    """How a parameter starts when the recipe says nothing: the rule of its layer."""
    return _rule_of(name, {path: (layer, specs) for path, layer, specs in _layers(graph, "", plugins)})


def _rule_of(name: str, layers: Mapping[str, tuple[Layer, Mapping[str, TensorSpec]]]) -> Init:
    """The rule of the layer that the name leads into; what is left of the name is the parameter's name in it."""
    parts = name.split(".")
    for end in range(len(parts) - 1, 0, -1):
        found = layers.get(".".join(parts[:end]))
        if found is not None:
            layer, specs = found
            return layer.init_of(".".join(parts[end:]), specs)
    raise LookupError(f"no layer of the graph has the parameter {name}")


def _read_init(component: Mapping[str, object]) -> Init:
    return INITS[str(component["type"])].model_validate_json(json.dumps(component))


def _fill(parameter: nn.Parameter, rule: Init, generator: torch.Generator) -> None:
    placements = getattr(parameter, "placements", None)
    if placements is None:
        rule.fill(parameter, generator)
        return
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(parameter, DTensor)
    whole = torch.empty(parameter.shape, dtype=parameter.dtype)
    rule.fill(whole, generator)
    local = distribute_tensor(whole.to(parameter.device), parameter.device_mesh, placements, src_data_rank=None)
    parameter.to_local().copy_(local.to_local())
