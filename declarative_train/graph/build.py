"""Construction of the torch module of a graph: nested `torch.fx.GraphModule`s whose children have the recipe's names.

block                a GraphModule, as each copy of a `repeat`, so it can be sharded or compiled as a whole
child `layers.0`     a child `0` of a plain `nn.Module` `layers`
parameter            path of its node and torch's name in the layer: `gpt.layers.3.attn.qkv.weight`
arguments            positional, in the order of `graph.inputs`
result               tuple in the order of `graph.outputs`; a nested module with one output returns this tensor"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from keyword import iskeyword
from typing import Any, TypeVar

import torch
from torch import fx, nn
from torch.overrides import TorchFunctionMode

from declarative_train.components.expressions.grammar import parse
from declarative_train.components.expressions.lower import emit
from declarative_train.components.layers.modules.attention import share_tables
from declarative_train.components.plugin_layer import PluginLayer
from declarative_train.core.tensor_spec import TensorSpec
from declarative_train.graph.chunked import HeadNode
from declarative_train.graph.field_draws import FieldDraws
from declarative_train.graph.graph import Edge, Graph, Node
from declarative_train.graph.initialise import build_plugin_layer
from declarative_train.graph.module_names import attribute, graph_module
from declarative_train.graph.read import order_ports, read_layer

_Value = fx.Node
_T = TypeVar("_T")


def build(
    graph: Graph,
    plugins: Sequence[str] = (),
    *,
    seed: int | None = None,
    device: torch.device | str | None = None,
    ties: Mapping[str, str] | None = None,
    own_outputs: bool = False,
    borrowed: Sequence[tuple[Node, Mapping[str, TensorSpec]]] = (),
    field_draws: FieldDraws | None = None,
    added: Sequence[str] = (),
    is_sharded: bool = False,
) -> fx.GraphModule:
    """Return the module of a graph. With `device="meta"` nothing is allocated; the caller then calls `to_empty`, `tie`
    and `initialise`, as `engine/step/model_preparation.py` does.

    `plugins`      paths of plugin files
    `seed`         seed of the run, for initial values that layers of plugins draw here; None: they are not kept
    `ties`         dict from a parameter to the parameter whose storage it shares
    `own_outputs`  outputs are contiguous and share no memory (docs/torch-facts.md, section 2, trap 4)
    `borrowed`     nodes of other pipeline stages that this graph calls too, with the specs of their inputs
    `field_draws`  source of random numbers for expressions that are computed from fields alone
    `added`        names of parameters that the caller registers in the module later
    `is_sharded`   `fully_shard` will add its methods to the module, so nodes with their names get other attributes"""
    with torch.device(device) if device is not None else nullcontext():
        builder = _Builder(plugins, seed, borrowed, field_draws, is_sharded)
        module = builder.build(graph, "", own_outputs=own_outputs, class_name="Model", added=added)
    share_tables(module)
    if ties:
        tie(module, ties)
    return module


def tie(module: nn.Module, ties: Mapping[str, str]) -> None:
    """Make tied parameters of a module the same object. `ties`: name of a parameter -> name of the parameter that
    replaces it."""
    for name, source in ties.items():
        owner, _, attribute = name.rpartition(".")
        setattr(module.get_submodule(owner), attribute, module.get_parameter(source))


def own_storage(tensor: torch.Tensor, inputs: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """Return the tensor, if it is contiguous, not a view, and not one of `inputs`. Otherwise return a contiguous
    copy."""
    if any(tensor is item for item in inputs) or tensor._is_view():
        return tensor.clone(memory_format=torch.contiguous_format)
    return tensor.contiguous()


class _Builder:
    """Builder of nested GraphModules. In its methods, `prefix` is the path of the block whose graph is built, with a
    dot at the end; "" for the whole graph."""

    def __init__(
        self,
        plugins: Sequence[str],
        seed: int | None,
        borrowed: Sequence[tuple[Node, Mapping[str, TensorSpec]]] = (),
        field_draws: FieldDraws | None = None,
        is_sharded: bool = False,
    ) -> None:
        self._plugins, self._seed, self._draws, self._is_sharded = plugins, seed, field_draws, is_sharded
        self._borrowed = {node.name: (node, specs) for node, specs in borrowed}

    def build(
        self, graph: Graph, prefix: str, *, own_outputs: bool, class_name: str, added: Sequence[str] = ()
    ) -> fx.GraphModule:
        lines = fx.Graph()
        values: dict[Edge, _Value] = {name: lines.placeholder(_make_identifier(name)) for name in graph.inputs}
        placeholders = tuple(values.values())
        modules: dict[str, nn.Module] = {}
        known = graph.specs()
        for node, specs in () if prefix else self._borrowed.values():
            modules[node.name] = self._build_node(node, specs, node.name)
        for node in graph.nodes:
            values |= self._call(node, graph, known, prefix, lines, values, modules)
        results = [values[edge] for edge in graph.outputs.values()]
        if own_outputs:
            results = [lines.call_function(own_storage, (value, placeholders)) for value in results]
        lines.output(tuple(results) if not prefix or len(results) != 1 else results[0])
        return graph_module(modules, lines, class_name, added, self._is_sharded)

    def _call(
        self,
        node: Node,
        graph: Graph,
        known: Mapping[Edge, TensorSpec],
        prefix: str,
        lines: fx.Graph,
        values: Mapping[Edge, _Value],
        modules: dict[str, nn.Module],
    ) -> dict[Edge, _Value]:
        """Write the call of `node` into the fx graph `lines`, and return a dict from each output edge of `node` to its
        fx node. If `node` has a module of its own, build the module and store it in `modules`. `known`: specs of all
        edges of `graph`. `values`: fx nodes of the edges that are computed before `node`."""
        if node.kind == "expression":
            assert node.expression is not None
            names = {name: values[edge] for name, edge in node.inputs.items()}
            (output,) = node.outputs
            path, draws = f"{prefix}{node.name}", self._draws
            draw = None if draws is None else lambda name, number: draws.function(name, path, number)
            return {f"{node.name}:{output}": emit(parse(node.expression), lines, names, draw)}
        called = node
        if node.kind == "reuse":
            is_here = prefix or node.target not in self._borrowed
            called = graph.node(str(node.target)) if is_here else self._borrowed[str(node.target)][0]
        else:
            specs = {port: known[edge] for port, edge in node.inputs.items()}
            modules[node.name] = self._build_node(node, specs, f"{prefix}{node.name}")
        given = {port: values[edge] for port, edge in node.inputs.items()}
        arguments = tuple(call_order(called, given, self._plugins))
        # an explicit name: torch would name the result like the node, which may be called `self`
        member = attribute(called.name, self._is_sharded)
        result = lines.create_node("call_module", member, arguments, {}, name=_make_identifier(called.name))
        if len(called.outputs) == 1:
            return {f"{node.name}:{output}": result for output in node.outputs}
        return {
            f"{node.name}:{output}": lines.call_function(operator.getitem, (result, position))
            for position, output in enumerate(called.outputs)
        }

    def _build_node(self, node: Node, specs: Mapping[str, TensorSpec], path: str) -> nn.Module:
        """Return the module of a layer or a block. `specs`: specs of its inputs by port. `path`: path of the node in
        the model."""
        if node.kind == "block":
            assert node.graph is not None
            name = "".join(word.capitalize() for word in (node.block or "block").split("_"))
            return self.build(node.graph, f"{path}.", own_outputs=False, class_name=name)
        assert node.component is not None
        layer = read_layer(node.component, self._plugins)
        if isinstance(node, HeadNode):
            with _WithoutDraws():
                return node.build(layer.build(specs), specs)
        if isinstance(layer, PluginLayer):
            return build_plugin_layer(layer, specs, self._seed, path)
        with _WithoutDraws():
            return layer.build(specs)


class _WithoutDraws(TorchFunctionMode):
    """Mode of torch in which the initialisation of a meta tensor does nothing. It would have no effect, and the first
    draw would import torch's whole library of decompositions (2 s)."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _DRAWS or getattr(func, "__module__", None) == nn.init.__name__:
            tensor = args[0] if args else kwargs["tensor"]
            if tensor.is_meta:
                return tensor
        return func(*args, **kwargs)


_DRAWS = frozenset([torch.Tensor.uniform_, torch.Tensor.normal_])


def call_order(called: Node, given: Mapping[str, _T], plugins: Sequence[str] = ()) -> list[_T | None]:
    """Return the arguments for the `forward` of a layer or block, in order; None for an input that is not in `given`.
    `called`: node of the layer or block. `given`: {name of an input: its value}."""
    if called.kind == "block":
        assert called.graph is not None
        return [given.get(name) for name in called.graph.inputs]
    if isinstance(called, HeadNode):
        return [given.get(port) for port in called.ports]
    assert called.component is not None
    ports = order_ports(read_layer(called.component, plugins), given)
    return [None if port is None else given[port] for port in ports]


def _make_identifier(name: str) -> str:
    """Return `name` as a valid Python identifier for the code that torch.fx writes: a field may be called `class`, a
    node `self`."""
    found = name.replace(".", "_")
    return f"{found}_" if iskeyword(found) or found == "self" else found
