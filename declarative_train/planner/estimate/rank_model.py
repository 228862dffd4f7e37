"""Model as one rank of the axes `tensor`, `context` and `expert` computes it. It consists of the plan's graph and
parameters with the sizes that the rank has, and of the communication inside layers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod

from declarative_train.core.cuts import NodeCut, RankCut
from declarative_train.core.tensor_spec import TensorSpec
from declarative_train.graph.cuts import Cuts
from declarative_train.graph.graph import Edge, Graph, Node
from declarative_train.plan.layout import LayoutPlan
from declarative_train.plan.plan import ParameterPlan

_SUMMED = ("columns", "rows", "split", "gathered", "vocabulary", "hidden")  # kinds whose ranks exchange activations


@dataclass(frozen=True, slots=True)
class Sums:
    """Communication inside one graph node whose work several ranks divide: the elements per sample of each collective.

    forward, backward   all-reduces over the ranks of `tensor`
    exchanges           rows between the ranks of `expert`, in the forward and again in the backward
    keys, keys_back     keys and values, and their gradients, between the ranks of `context`
    balance             all-reduces for balance losses over `context`, in forward and again in backward
    """

    forward: tuple[int, ...] = ()
    backward: tuple[int, ...] = ()
    exchanges: tuple[int, ...] = ()
    keys: tuple[int, ...] = ()
    keys_back: tuple[int, ...] = ()
    balance: tuple[int, ...] = ()

    def __add__(self, other: Sums) -> Sums:
        ahead, back = self.forward + other.forward, self.backward + other.backward
        keys, keys_back = self.keys + other.keys, self.keys_back + other.keys_back
        balance = self.balance + other.balance
        return Sums(ahead, back, self.exchanges + other.exchanges, keys, keys_back, balance)


def divide_for_rank(
    layout: LayoutPlan, graph: Graph, parameters: tuple[ParameterPlan, ...], precision: str
) -> tuple[Graph, tuple[ParameterPlan, ...], dict[str, Sums]]:
    """Return (graph, parameters, communication) of one rank: the shapes are divided along the axes `tensor`, `context`
    and `expert`. `communication`: {path of a layer: what it sends}. `precision`: the plan's precision, which decides
    the size of what is sent."""
    cuts, sums = layout.cuts, dict[str, Sums]()
    if cuts is not None:
        of_experts = cuts.of_experts
        shapes = {item.name: item.shape for item in parameters}
        graph, _ = _Divider(cuts, layout.size("tensor"), sums, shapes).divide(graph, "", {})
        made = []
        for item in parameters:
            cut = cuts.parameters.get(item.name)
            parts = layout.size("expert") if item.name in of_experts else layout.size("tensor")
            shape = item.shape if cut is None else RankCut(cut, 0, parts).local_shape(item.shape)
            made.append(replace(item, shape=shape, num_elements=prod(shape)))
        parameters = tuple(made)
    if layout.context is not None:
        widening = 0 if layout.context.keys == "gathered" else 2 if precision in ("bf16", "fp16") else 1
        for path, exchanged in _find_exchanges(graph, "", layout.size("context"), widening):
            sums[path] = sums.get(path, Sums()) + exchanged
    return graph, parameters, sums


def _exchange_keys(elements: int, size: int, widening: int) -> Sums:
    """Return what the ranks of the axis `context` send in one attention layer: keys and values, and their gradients.

    `elements`  elements of the keys and values of one sample
    `size`      number of ranks, which divide the positions
    `widening`  0 if each rank gathers all keys at once. If keys travel around a ring, in the forward and the backward:
                size of a key's gradient divided by the size of the key"""
    if not widening:
        return Sums(keys=(elements * size,), keys_back=(elements * size,))
    sent = elements * size // (size - 1)  # `Sums` counts the part that a rank keeps, too
    return Sums(keys=(sent,) * (size - 1), keys_back=(sent,) * (size - 1) + (sent * widening,) * size)


def _find_exchanges(graph: Graph, prefix: str, size: int, widening: int) -> Iterator[tuple[str, Sums]]:
    """Yield (path, communication) for each layer in which the `size` ranks of the axis `context` communicate. `prefix`:
    path of the graph with a dot at the end, or "". `widening`: if keys travel around a ring, size of a key's gradient
    divided by the size of the key; 0 if each rank gathers all keys at once."""
    known = graph.specs()
    for node in graph.nodes:
        path, component = f"{prefix}{node.name}", node.component or {}
        if node.graph is not None:
            yield from _find_exchanges(node.graph, f"{path}.", size, widening)
        elif component.get("type") == "self_attention":
            _, kv_heads, head_width = _head_sizes(node, known)
            yield path, _exchange_keys(2 * known[node.inputs["x"]].shape[0] * kv_heads * head_width, size, widening)
        elif component.get("type") == "moe":  # sums of choices, of scores and of positions
            yield path, Sums(balance=((2 * int(str(component["experts"])) + 1) * size,))


def _head_sizes(node: Node, known: Mapping[Edge, TensorSpec]) -> tuple[int, int, int]:
    """Return (number of query heads, number of key heads, width of a head) of an attention layer. `known`: the spec of
    each edge of the graph."""
    component = node.component or {}
    heads = int(str(component["heads"]))
    width = int(str(component.get("head_width") or known[next(iter(node.inputs.values()))].shape[-1] // heads))
    return heads, int(str(component.get("kv_heads") or heads)), width


class _Divider:
    """Converter of a graph to the sizes that its tensors have on one rank of the `tensor` axis. It also adds the
    communication of each layer to the dict `sums`, under the layer's path."""

    def __init__(self, cuts: Cuts, size: int, sums: dict[str, Sums], shapes: Mapping[str, tuple[int, ...]]) -> None:
        self._cuts, self._size, self._sums, self._shapes = cuts, size, sums, shapes

    def divide(
        self, graph: Graph, prefix: str, inputs: Mapping[str, TensorSpec]
    ) -> tuple[Graph, dict[str, TensorSpec]]:
        """Return the graph as one rank computes it, with the sizes on this rank, and {name: spec on one rank} of its
        divided outputs. Outputs that every rank has whole are not in this dict.

        `prefix`: path of the graph with a dot at the end, or "". `inputs`: {name: spec on one rank} of the divided
        inputs.
        """
        known: dict[Edge, TensorSpec] = graph.specs()
        divided: dict[Edge, TensorSpec] = dict(inputs)
        nodes = []
        for node in graph.nodes:
            given = {port: divided[edge] for port, edge in node.inputs.items() if edge in divided}
            made, outputs = self._divide_node(node, f"{prefix}{node.name}", given, known)
            nodes.append(made)
            divided |= {f"{node.name}:{name}": spec for name, spec in outputs.items()}
        left = {name: divided[edge] for name, edge in graph.outputs.items() if edge in divided}
        return replace(graph, inputs={**graph.inputs, **inputs}, nodes=tuple(nodes)), left

    def _divide_node(
        self, node: Node, path: str, given: Mapping[str, TensorSpec], known: Mapping[Edge, TensorSpec]
    ) -> tuple[Node, dict[str, TensorSpec]]:
        """Return the node with the sizes that it has on one rank, and {divided output: its spec on one rank}. `given`:
        {divided input: its spec on one rank}. `known`: the undivided spec of each edge of the graph."""
        if node.graph is not None:
            graph, outputs = self.divide(node.graph, f"{path}.", given)
            return replace(node, graph=graph, outputs={**node.outputs, **outputs}), outputs
        kind = self._cuts.nodes.get(path, NodeCut("")).kind
        outputs = {}
        if (kind in ("columns", "vocabulary") and (node.component or {}).get("type") == "linear") or (
            not kind and given
        ):
            outputs = {name: self._part(spec) for name, spec in node.outputs.items()}
        if kind == "inside":
            spec = known[next(iter(node.inputs.values()))]
            vectors = spec.num_elements // (spec.shape[-1] if spec.is_floating and spec.shape else 1)
            self._sums[path] = sum((each for each in self._sums_inside(path, vectors)), Sums())
        elif kind:
            self._sums[path] = self._sums_of(node, kind, known)
        made = replace(node, component=self._component(node, path, kind, known), outputs={**node.outputs, **outputs})
        return made, outputs

    def _part(self, spec: TensorSpec) -> TensorSpec:
        return replace(spec, shape=(*spec.shape[:-1], spec.shape[-1] // self._size))

    def _component(
        self, node: Node, path: str, kind: str, known: Mapping[Edge, TensorSpec]
    ) -> dict[str, object] | None:
        component, size = node.component, self._size
        if component is None or kind in ("", "experts", "inside"):
            return component
        if kind == "heads":
            heads, kv_heads, width = _head_sizes(node, known)
            own = {"heads": heads // size, "kv_heads": kv_heads // size, "head_width": width}
            return {**component, **{key: own[key] for key in own if key in component}}
        if kind == "hidden":
            return {**component, "hidden": int(str(component["hidden"])) // size}
        if component["type"] == "embedding":
            rows = component["num_embeddings"] or self._shapes[f"{path}.weight"][0]
            return {**component, "num_embeddings": int(str(rows)) // size, "padding_idx": None}
        if kind == "rows":
            (output,) = node.outputs.values()
            return {**component, "out_features": output.shape[-1]}
        (output,) = node.outputs.values()
        return {**component, "out_features": output.shape[-1] // size}

    def _sums_inside(self, path: str, vectors: int) -> Iterator[Sums]:
        """Yield the communication (`Sums`) of each divided submodule of a library's model. `path`: path of the layer
        that is the model. `vectors`: number of vectors (such as token embeddings) per sample that the model
        computes."""
        for part, cut in self._cuts.parts[path].items():
            if cut.kind == "experts":
                yield Sums(exchanges=(vectors * cut.sent,) * 2)
            names = (f"{path}.{part}.{name}" for name in ("weight", "down_proj"))
            shape = next((self._shapes[name] for name in names if name in self._shapes), None)
            if shape is None or cut.kind not in _SUMMED:
                continue
            written, read = vectors * shape[-2], vectors * shape[-1]
            if cut.kind == "vocabulary":
                yield Sums((read,))
            elif cut.kind == "hidden":
                yield Sums((written,), (written,))
            else:
                is_summed = cut.kind in ("rows", "split", "gathered")
                yield Sums((written,) * is_summed, (read,) * (cut.kind != "rows"))

    def _sums_of(self, node: Node, kind: str, known: Mapping[Edge, TensorSpec]) -> Sums:
        read = known[next(iter(node.inputs.values()))].num_elements
        written = next(iter(node.outputs.values())).num_elements
        if kind == "rows" or (node.component or {}).get("type") == "embedding":
            return Sums((written,))
        if kind == "heads":
            return Sums((written,), (read,) * (2 if "context" in node.inputs else 1))
        if kind == "experts":  # rows are sent to the ranks of their experts, and results back
            assert node.component is not None
            return Sums(exchanges=(read * int(str(node.component["top_k"])),) * 2)
        if kind == "hidden":  # the weights of the chosen experts have gradients to sum, too
            assert node.component is not None
            width = known[next(iter(node.inputs.values()))].shape[-1]
            return Sums((written,), (read, read // width * int(str(node.component["top_k"]))))
        return Sums((written,) if kind == "gathered" else (), (read,))
