"""Tensor parallelism: division of a model's layers over the ranks of the `tensor` axis, derived from its graph.

Attention is divided by heads, an embedding by rows, experts by hidden features. Linear layers are divided together, in
a *region* of the graph (Shoeybi et al., Megatron-LM, 2019): its first layers by columns, its last by rows, and the
nodes between work on each feature separately. The results are summed, so every rank has the whole values outside
regions. A region is within one pipeline stage, and within one block if that is called from several places."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from declarative_train.components.component import Layer
from declarative_train.components.expressions.functions import ELEMENTWISE, VIEWS
from declarative_train.components.expressions.grammar import parse
from declarative_train.components.expressions.tree import Constant, Operation, Reference, Term
from declarative_train.components.storages import BLOCK, StorageName
from declarative_train.core.cuts import CutKind, LayerCut, NodeCut, ParameterCut
from declarative_train.core.tensor_spec import TensorSpec
from declarative_train.graph.graph import Graph, Node, above
from declarative_train.graph.partition import open_blocks
from declarative_train.graph.read import read_layer
from declarative_train.graph.token_cuts import Role, TokenCut, divide_tokens

HeadKind = Literal["vocabulary", "gathered"]


@dataclass(frozen=True, slots=True)
class Cuts:
    """Division of a model over the ranks of `tensor` and `expert`.

    nodes       dict from the path of a layer with parameters to its division
    parameters  dict from a divided parameter to its division
    summed      undivided parameters whose gradients are summed over `tensor`
    outputs     outputs of the graph of which each rank has only some features
    tokens      dict from a layer's path to the division of its tokens (`graph/token_cuts.py`)
    parts       dict from the path of a library's model to {path of a submodule: its division}"""

    nodes: dict[str, NodeCut] = field(default_factory=dict)
    parameters: dict[str, ParameterCut] = field(default_factory=dict)
    summed: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    tokens: dict[str, TokenCut] = field(default_factory=dict)
    parts: dict[str, dict[str, NodeCut]] = field(default_factory=dict)

    def with_parts(self) -> Iterator[tuple[str, NodeCut]]:
        """Yield (path, division) of each layer with parameters, and of each divided submodule of a library's model."""
        for path, node in self.nodes.items():
            yield path, node
            yield from ((f"{path}.{name}", part) for name, part in self.parts.get(path, {}).items())

    @property
    def of_experts(self) -> frozenset[str]:
        """Names of the parameters that are divided over the axis `expert`. All others in `parameters` are divided over
        the axis `tensor`."""
        paths = tuple(f"{path}." for path, node in self.with_parts() if node.kind == "experts")
        return frozenset(name for name in self.parameters if name.startswith(paths))

    def with_experts(self, path: str, found: LayerCut) -> Cuts:
        """Return a copy in which the layer at `path` is divided over the axis `expert` instead of `tensor`. `found`:
        how it is divided. If the layer is a whole model of a library, this holds only for the submodules in
        `found.parts`; its others keep their division."""
        own = tuple(f"{path}.{name}." for name in found.parts) or (f"{path}.",)
        return replace(
            self,
            nodes={**self.nodes, path: NodeCut(found.kind)},
            parameters={name: cut for name, cut in self.parameters.items() if not name.startswith(own)}
            | {f"{path}.{name}": cut for name, cut in found.parameters.items()},
            summed=tuple(name for name in self.summed if not name.startswith(own)),
            parts={**self.parts, path: {**self.parts.get(path, {}), **found.parts}} if found.parts else self.parts,
        )


@dataclass(frozen=True, slots=True)
class DivisionInput:
    """Input of `derive_cuts`.

    size      number of ranks of the `tensor` axis
    names     names of the model's parameters
    whole     dict from a parameter that must not be divided to the reason
    ties      dict from a tied parameter to the parameter that it is tied to
    stage_of  dict from the path of a node to its pipeline stage
    plugins   paths of plugin files
    storages  dict from a frozen weight to its number format
    sequence  the ranks also divide the tokens between divided layers (`sequence: true`)
    parts     number of ranks of the `context` axis, which also divide these tokens"""

    size: int
    names: Sequence[str]
    whole: Mapping[str, str] = field(default_factory=dict)
    ties: Mapping[str, str] = field(default_factory=dict)
    stage_of: Mapping[str, int] = field(default_factory=dict)
    plugins: Sequence[str] = ()
    sequence: bool = False
    storages: Mapping[str, StorageName] = field(default_factory=dict)
    parts: int = 1


def derive_cuts(graph: Graph, given: DivisionInput, heads: Mapping[str, HeadKind]) -> Cuts:
    """Return how the ranks divide the layers and parameters of a model. `heads`: {output of the graph: how the linear
    layer that computes it may be divided}. Linear layers at the end of the graph whose outputs are not in `heads` stay
    whole."""
    found = _derive(graph, given, heads)
    apart = {
        name: f"it is tied to {other}, which is divided in another way"
        for pair in given.ties.items()
        for name, other in (pair, pair[::-1])
        if name not in given.whole and found.parameters.get(pair[0]) != found.parameters.get(pair[1])
    }
    return derive_cuts(graph, replace(given, whole={**given.whole, **apart}), heads) if apart else found


def _derive(graph: Graph, given: DivisionInput, heads: Mapping[str, HeadKind]) -> Cuts:
    nodes: dict[str, NodeCut] = {}
    parameters: dict[str, ParameterCut] = {}
    parts: dict[str, dict[str, NodeCut]] = {}
    summed: list[str] = []
    layers, graph = above(given.names), open_blocks(graph, tuple(_layer_paths(graph)))
    deriver = _Deriver(graph, "", given, heads)
    for path, found in deriver.derive():
        if path not in layers:  # it has no parameters
            continue
        if isinstance(found, str):
            nodes[path] = NodeCut("", found)
            continue
        nodes[path] = NodeCut(found.kind)
        parameters |= {f"{path}.{name}": cut for name, cut in found.parameters.items()}
        summed += [f"{path}.{name}" for name in found.summed]
        if found.parts:
            parts[path] = dict(found.parts)
    made_by = {name: _source(graph.outputs[name]) for name, kind in heads.items() if kind == "vocabulary"}
    divided = (name for name, path in made_by.items() if nodes.get(path, NodeCut("")).kind == "vocabulary")
    tokens = {}
    if given.sequence:
        tokens = divide_tokens(graph, deriver.roles(), given.size * given.parts, deriver.stage_of)
    summed += [name for path, cut in tokens.items() for name in _find_summed(path, cut, nodes.get(path), given)]
    return Cuts(nodes, parameters, tuple(dict.fromkeys(summed)), tuple(divided), tokens, parts)


def _find_summed(path: str, cut: TokenCut, node: NodeCut | None, given: DivisionInput) -> list[str]:
    """Return the names of a layer's parameters that each rank has as a whole, but applies only to its own tokens. Their
    gradients must be summed over the ranks. `path`: path of the layer. `cut`: how its tokens are divided. `node`: how
    the layer itself is divided, or None."""
    kind = "" if node is None else node.kind
    if kind in ("rows", "heads"):
        biases = (f"{path}.bias", f"{path}.out.bias") if cut.writes == "tokens" else ()
        return [name for name in given.names if name in biases]
    reads_own = not kind and cut.is_each and cut.reads == "tokens"
    return [name for name in given.names if reads_own and name.startswith(f"{path}.")]


def _layer_paths(graph: Graph, prefix: str = "") -> Iterator[str]:
    for node in graph.nodes:
        if node.graph is None:
            yield f"{prefix}{node.name}"
        else:
            yield from _layer_paths(node.graph, f"{prefix}{node.name}.")


class _RegionError(Exception):
    """Error: the layers of a region cannot be divided over the ranks. The text is the reason."""


class _Deriver:
    """Derivation of how the ranks divide one graph. A block is replaced by the nodes in it, unless it is called from
    several places."""

    def __init__(self, graph: Graph, prefix: str, given: DivisionInput, heads: Mapping[str, HeadKind]) -> None:
        self._graph, self._prefix, self._given = graph, prefix, given
        self._nodes = {node.name: node for node in graph.nodes}
        self._specs = graph.specs()
        self._reused = {node.target for node in graph.nodes if node.kind == "reuse"}
        self._readers: dict[str, list[Node]] = {}
        for node in graph.nodes:
            for edge in node.inputs.values():
                self._readers.setdefault(_source(edge), []).append(node)
        self._found: dict[str, LayerCut | str] = {}
        self._inside: set[str] = set()
        self._left = {_source(edge) for edge in graph.outputs.values()}
        self._heads = {edge: heads[name] for name, edge in graph.outputs.items() if name in heads}
        outputs = list(graph.outputs.values())
        self._heads = {edge: kind for edge, kind in self._heads.items() if outputs.count(edge) == 1}

    def derive(self) -> Iterator[tuple[str, LayerCut | str]]:
        """Yield a pair for every layer: (path, how the ranks of the axis `tensor` divide it) or (path, the reason why
        they do not)."""
        found = self._found
        for node in self._graph.nodes:
            if node.graph is not None:  # a block that is called from several places
                body = open_blocks(node.graph, tuple(_layer_paths(node.graph)))
                yield from _Deriver(body, f"{self._prefix}{node.name}.", self._given, {}).derive()
            elif node.kind == "layer" and not self._is_divided(node.name):
                found |= self._divide(node)
        yield from ((f"{self._prefix}{name}", cut) for name, cut in found.items())

    def _find_heads(self, node: Node) -> dict[str, HeadKind]:
        """Return {name of an output of `node`: its HeadKind}. Outputs that are not listed in `heads` of `derive_cuts`
        are left out."""
        edges = {name: f"{node.name}:{name}" for name in node.outputs}
        return {name: self._heads[edge] for name, edge in edges.items() if edge in self._heads}

    def _is_divided(self, name: str) -> bool:
        return isinstance(self._found.get(name), LayerCut)

    def _divide(self, node: Node) -> dict[str, LayerCut | str]:
        """Return {`node`'s name: its division}, or {`node`'s name: reason} if the layer `node` cannot be divided. The
        first method that applies to it decides. If `node` begins a region (layers that are divided together), the
        result also has the divisions of the region's other linear layers."""
        for kind in ("heads", "vocabulary", "hidden", "inside"):
            cut = self._divide_as(node, kind)
            if cut is not None:
                return {node.name: cut}
        try:
            return dict(self._divide_region(node))
        except _RegionError as refusal:
            return {node.name: str(refusal)}

    def _divide_as(self, node: Node, kind: CutKind) -> LayerCut | str | None:
        """Return the division of a layer by the method `kind`. Return None if this method does not apply to the layer.
        Return a reason, as text, if it applies, but the layer must stay whole."""
        layer, specs = self._layer(node)
        cut = layer.cut(kind, specs, self._given.size)
        if not isinstance(cut, LayerCut):
            return cut
        if node.name in self._reused:
            return "it is called from several places"
        path = f"{self._prefix}{node.name}"
        for name in (*cut.parameters, *cut.summed):
            if reason := self._given.whole.get(f"{path}.{name}") or self._explain_broken_blocks(
                f"{path}.{name}", cut.parameters.get(name)
            ):
                return reason
        return cut

    def _explain_broken_blocks(self, name: str, cut: ParameterCut | None) -> str:
        """Return why a weight cannot be divided as `cut` says; "" if it can. It cannot if it is stored in blocks (key
        `storage`) and the division would split a block. `name`: name of the weight. `cut`: None if the weight is not
        divided."""
        storage, size = self._given.storages.get(name, "bf16"), self._given.size
        if cut is None or cut.dim == 0 or storage == "bf16" or sum(cut.pieces) // size % BLOCK == 0:
            return ""
        return f"its {storage} weight has blocks of {BLOCK} columns, which {size} ranks would break"

    def _layer(self, node: Node) -> tuple[Layer, dict[str, TensorSpec]]:
        assert node.component is not None
        return read_layer(node.component, self._given.plugins), {
            port: self._specs[edge] for port, edge in node.inputs.items()
        }

    def _divide_region(self, first: Node) -> Iterator[tuple[str, LayerCut]]:
        """Yield (name, division) of the linear layers in one region: the part of the graph, from the layer `first` on,
        whose layers are divided together. Raises _RegionError with the reason if the region cannot be divided."""
        if first.name not in self._readers and (heads := self._find_heads(first)):
            kind = next(iter(heads.values()))
            yield first.name, replace(self._require_cut(first, "columns"), kind=kind)
            return
        columns, inner, rows = {first.name: self._require_cut(first, "columns")}, set[str](), dict[str, LayerCut]()
        todo = [first.name]
        while todo:
            name = todo.pop()
            if name in self._left:
                raise _RegionError("its output leaves the model")
            for reader in self._readers.get(name, ()):
                if reader.name in inner or reader.name in rows:
                    continue
                cut = self._divide_as(reader, "rows") if reader.kind == "layer" else None
                if isinstance(cut, LayerCut):
                    rows[reader.name] = cut
                    continue
                if isinstance(cut, str):
                    raise _RegionError(f"`{reader.name}`, which reads it, stays whole: {cut}")
                if not self._is_per_feature(reader):
                    raise _RegionError(f"`{reader.name}`, which reads it, needs all features")
                todo += self._add_to_region(reader, columns, inner)
        if not rows:
            raise _RegionError("nothing reads its output")
        if rows.keys() & columns.keys():
            raise _RegionError("it reads a layer of its own region")
        if len({self.stage_of(f"{self._prefix}{name}") for name in (*columns, *inner, *rows)}) > 1:
            raise _RegionError("the layers that read it are in another pipeline stage")
        self._inside |= inner
        yield from columns.items()
        yield from rows.items()

    def _add_to_region(self, node: Node, columns: dict[str, LayerCut], inner: set[str]) -> list[str]:
        """Add nodes to a region (nodes that are divided together): `node`, and the nodes that compute its inputs, back
        to the nearest linear layers. All of them except the linear layers compute each feature separately. Return the
        names of the added nodes.

        `columns`: divisions of the linear layers, by name. `inner`: names of the other nodes. Both are extended. Raises
        _RegionError if an input cannot be divided by features."""
        inner.add(node.name)
        added = [node.name]
        for edge in node.inputs.values():
            name = _source(edge)
            if name in columns or name in inner:
                continue
            source = self._nodes.get(name)
            if source is None:
                raise _RegionError(f"`{node.name}`, which reads it, also reads `{edge}`, which is whole")
            if self._is_divided(name):
                raise _RegionError(f"`{node.name}`, which reads it, also reads `{name}`, whose output is whole")
            if source.kind == "layer" and (cut := self._divide_as(source, "columns")) is not None:
                if isinstance(cut, str):
                    raise _RegionError(cut)
                columns[name] = cut
                added.append(name)
            elif self._is_per_feature(source):
                added += self._add_to_region(source, columns, inner)
            else:
                raise _RegionError(f"`{node.name}`, which reads it, also reads `{name}`, which is whole")
        return added

    def roles(self) -> dict[str, Role]:
        """Return a dict from the name of each node to its Role, which says how the node works with tokens: for example,
        whether it computes each token separately. Call `derive` first."""
        return {node.name: self._role(node) for node in self._graph.nodes}

    def _role(self, node: Node) -> Role:
        cut = self._found.get(node.name)
        if isinstance(cut, LayerCut):
            is_table = node.component is not None and node.component["type"] == "embedding"
            return "leaves" if is_table else _ROLES[cut.kind]
        if node.name in self._inside:
            return "inside"
        if node.kind not in ("layer", "expression") or node.name in self._reused:
            return "other"
        shapes = {self._specs[edge].shape for edge in node.inputs.values()}
        is_alike = len(shapes | {spec.shape for spec in node.outputs.values()}) == 1
        if node.kind == "expression":
            return "each" if is_alike and _is_elementwise(parse(node.expression or "").root) else "other"
        if isinstance(self._divide_as(node, "tokens"), LayerCut):
            return "each" if is_alike or len(node.inputs) == 1 else "other"
        return "all" if len(node.outputs) == 1 else "other"

    def stage_of(self, path: str) -> int | None:
        """Return the pipeline stage of the node at `path`, or of the nearest block around it; None without a
        pipeline."""
        while path and path not in self._given.stage_of:
            path = path.rpartition(".")[0]
        return self._given.stage_of.get(path)

    def _require_cut(self, node: Node, kind: CutKind) -> LayerCut:
        cut = self._divide_as(node, kind)
        if isinstance(cut, LayerCut):
            return cut
        raise _RegionError(cut or f"a layer `{(node.component or {})['type']}` is not divided")

    def _is_per_feature(self, node: Node) -> bool:
        """Return whether each feature of a node's output depends only on the same feature of its inputs."""
        if node.name in self._reused:
            return False
        shapes = {self._specs[edge].shape for edge in node.inputs.values()}
        if len(shapes | {spec.shape for spec in node.outputs.values()}) != 1:
            return False  # a dimension of size 1 would be repeated
        if node.kind == "layer":
            return isinstance(self._divide_as(node, "features"), LayerCut)
        return node.kind == "expression" and _is_elementwise(parse(node.expression or "").root)


_ROLES: dict[str, Role] = {
    "columns": "enters",
    "vocabulary": "enters",
    "gathered": "enters",
    "rows": "leaves",
    "heads": "encloses",
    "hidden": "other",
    "inside": "other",
}


def _is_elementwise(term: Term) -> bool:
    """Return whether an expression has only inputs, single numbers and elementwise functions. A constant vector is not
    allowed, because it would have to be divided over the ranks like the inputs."""
    if isinstance(term, Operation):
        is_each = term.name in ELEMENTWISE and term.name not in VIEWS
        return is_each and all(_is_elementwise(operand) for operand in term.operands)
    return isinstance(term, Reference | Constant)


def _source(edge: str) -> str:
    return edge.partition(":")[0]
