"""Sequence parallelism (`sequence: true`): between divided layers, each rank of the `tensor` axis has only some tokens.

A divided layer gathers all tokens, and its partial outputs are summed and scattered by tokens. A value (T, D) is
divided along T, except if a node that computes or reads it needs all tokens, or if another pipeline stage reads it.
(Korthikanti et al., Reducing activation recomputation in large transformer models, 2022)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from declarative_train.core.tensor_spec import TensorSpec
from declarative_train.graph.graph import Edge, Graph, Node

State = Literal["whole", "tokens", "joined"]
"""whole: every rank has all tokens. tokens: each rank has its own. joined: each rank computes its own, and then all are
gathered for divided layers, each of which gives a part of their gradient."""
Role = Literal["enters", "leaves", "encloses", "inside", "each", "all", "other"]
"""Work of a node with tokens. enters: reads them for a region of divided layers. leaves: writes them from a region.
encloses: both. inside: between the two. each: computes each token by itself. all: a layer that needs all tokens. other:
anything else."""
_INTO_REGIONS = ("enters", "encloses")


@dataclass(frozen=True, slots=True)
class TokenCut:
    """Division of a layer's tokens over ranks. `reads`: how its input is divided ("whole" if it is not). `writes`: how
    its output is divided. `is_each`: the layer computes each token separately."""

    reads: State
    writes: State
    is_each: bool = False


def divide_tokens(
    graph: Graph, roles: Mapping[str, Role], size: int, stage_of: Callable[[str], int | None]
) -> dict[str, TokenCut]:
    """Return a dict from the name of each layer that reads or writes divided tokens to its TokenCut. `graph`: a graph
    without blocks. `roles`: role of each node, by name. `size`: number of parts into which the tokens are divided.
    `stage_of`: function from the name of a node to its pipeline stage."""
    specs = graph.specs()
    made_by = {f"{node.name}:{output}": node for node in graph.nodes for output in node.outputs}
    readers: dict[Edge, list[str]] = {edge: [] for edge in specs}
    for node in graph.nodes:
        for edge in node.inputs.values():
            readers[edge].append(node.name)

    def is_read_by_regions(edge: Edge) -> bool:
        return all(roles[name] in _INTO_REGIONS for name in readers[edge])

    divided = {edge for edge in made_by if _has_tokens(specs[edge], size)} - set(graph.outputs.values())
    for edge in set(divided):
        if len({stage_of(name) for name in (made_by[edge].name, *readers[edge])}) > 1:
            divided.discard(edge)
    before: set[Edge] = set()
    while divided != before:
        before = set(divided)
        for node in graph.nodes:
            divided -= _find_whole(node, roles[node.name], specs, divided, size)
        for edge in set(divided):
            works = {roles[name] for name in readers[edge]}
            if roles[made_by[edge].name] == "all" and works <= {"all", *_INTO_REGIONS}:
                divided.discard(edge)  # its tokens would be divided only to be gathered again

    def state_of(edge: Edge) -> State:
        if edge not in divided:
            return "whole"
        is_joined = roles[made_by[edge].name] == "each" and made_by[edge].kind == "layer" and is_read_by_regions(edge)
        return "joined" if is_joined else "tokens"

    found = {}
    for node in graph.nodes:
        if node.kind != "layer" or roles[node.name] in ("inside", "other"):
            continue
        (writes,) = (state_of(f"{node.name}:{output}") for output in node.outputs)
        states = [state_of(edge) for edge in node.inputs.values() if edge in divided]
        reads: State = states[0] if states else "whole"
        if (reads, writes) != ("whole", "whole"):
            found[node.name] = TokenCut(reads, writes, roles[node.name] == "each")
    return found


def _find_whole(node: Node, role: Role, specs: Mapping[Edge, TensorSpec], divided: set[Edge], size: int) -> set[Edge]:
    """Return the inputs and outputs of `node` that must have all tokens on every rank, by its `role`. A node that
    computes each token separately (role "each") needs none, if all its inputs and outputs are in `divided`. `divided`:
    edges that may still be divided. `size`: number of ranks that divide the tokens."""
    read = {edge for edge in node.inputs.values() if _has_tokens(specs[edge], size)}
    written = {f"{node.name}:{output}" for output in node.outputs}
    if role == "enters":
        return written if len(read) == 1 else read | written
    if role == "leaves":
        return read
    if role == "each":
        return set() if divided >= read | written else read | written
    is_simple = role in ("encloses", "all") and len(read) == 1 and len(written) == 1
    return set() if is_simple else read | written


def _has_tokens(spec: TensorSpec, size: int) -> bool:
    return len(spec.shape) == 2 and spec.is_floating and spec.shape[0] % size == 0
