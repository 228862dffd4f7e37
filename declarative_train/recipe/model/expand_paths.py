"""Last step of the expansion of a model: it sets the paths of the nodes, and collects the settings of parameters in
blocks. It also lists the units: parts of the model that are sharded and compiled one by one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from declarative_train.recipe.model.blocks import BlockDefinition
from declarative_train.recipe.model.tree import BlockNode, BlockRules, LayerNode, ModelNode, Scope

Opened = Mapping[int, tuple[BlockDefinition, Mapping[str, object]]]  # id of a graph -> its block, template variables


def set_paths(scope: Scope, opened: Opened, prefix: str = "") -> tuple[Scope, tuple[BlockRules, ...]]:
    """Return a copy of `scope` in which every node has its path, such as `layers.0.attention`. Return also the entries
    `parameters` of all blocks in it, those of inner blocks first. `prefix`: beginning of every path.

    `opened`: {`id()` of the graph of a block: (definition of the block, variables of its templates)}.
    """
    nodes: list[ModelNode] = []
    rules: list[BlockRules] = []
    for node in scope.nodes:
        path = f"{prefix}{node.name}"
        if isinstance(node, BlockNode):
            block, names = opened[id(node.scope)]
            inner, found = set_paths(node.scope, opened, f"{path}.")
            rules += found
            if block.parameters is not None:
                rules.append(BlockRules(path, block.parameters, names, may_miss=block.file is not None))
            params = names.get("params") if block.file is not None else None
            nodes.append(replace(node, path=path, scope=inner, params=params if isinstance(params, Mapping) else {}))
        else:
            nodes.append(replace(node, path=path))
    return scope._replace(nodes=tuple(nodes)), tuple(rules)


def units_of(scope: Scope) -> tuple[str, ...]:
    """Return the paths of the units, the parts of the model that are sharded and compiled one by one. They are the
    copies of the outermost `repeat`s, also inside blocks; without a `repeat`, the top-level layers and blocks.
    """
    copies = tuple(_copies(scope))
    return copies or tuple(node.path for node in scope.nodes if isinstance(node, LayerNode | BlockNode))


def _copies(scope: Scope) -> Iterator[str]:
    for node in scope.nodes:
        if "." in node.name:
            if isinstance(node, LayerNode | BlockNode):
                yield node.path
        elif isinstance(node, BlockNode):
            yield from _copies(node.scope)
