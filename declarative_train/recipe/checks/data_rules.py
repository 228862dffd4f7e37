"""Rules about the split, about targets that the model can see, and about maps that are read as sequences.

Each public function that returns diagnostics is one rule; its docstring is the manual page of its code.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from declarative_train.components.expressions.functions import INDEX
from declarative_train.components.expressions.tree import Operation, Reference
from declarative_train.components.fields.columns import parse_cut
from declarative_train.components.layers.sizes import Spatial
from declarative_train.core.diagnostics.diagnostic import Diagnostic, Related, error, warning
from declarative_train.recipe.draft import Draft
from declarative_train.recipe.model.tree import BlockNode, ExpressionNode, LayerNode, Scope, Wire

_SEQUENCES = frozenset({"class_token", "cross_attention", "gru", "learned_positions", "lstm", "rnn", "self_attention",
                        "sequence_pool", "sinusoidal_positions"})  # fmt: skip
_KEPT = frozenset({"batch_norm", "dropout", "dropout2d", "drop_path", "gelu", "group_norm", "identity", "instance_norm",
                   "leaky_relu", "mish", "relu", "sigmoid", "silu", "tanh"})  # fmt: skip
_NOT_FOLLOWED = frozenset(
    {"mask", "keep", "context", "segments", "positions"}
)  # what is seen of them does not depend on the order


class _Sequence(NamedTuple):
    """Slice of columns that a tensor holds: from `start`, and up to `stop`, counted from the end."""

    columns: tuple[str, ...]
    start: int
    stop: int | None


class _ScopeFrame(NamedTuple):
    """Scope, and the block around it."""

    scope: Scope
    node: BlockNode | None = None
    outer: _ScopeFrame | None = None


def target_in_view(draft: Draft) -> Iterator[Diagnostic]:
    """target-in-view (O015)

    Finds: a target that is the model's input shifted by one, behind a layer that sees the whole sequence: `self_attention`
           without `causal` or a mask, or a recurrent layer that is `bidirectional`.
    Why:   each position then sees the element that it is to predict and copies it: the loss falls to nearly 0, and the
           model can predict nothing once the next element is not there.
    Diff:
        model:
          graph:
            before: pixels[:, :-1]
            after: pixels[:, 1:]
            steps: unsqueeze(before, -1)
            hidden: {type: linear, out_features: 8, input: steps}
    -       act: {type: self_attention, heads: 2}
    +       act: {type: self_attention, heads: 2, causal: true}
            logits: {type: linear, out_features: 1}
            guess: squeeze(logits, -1)
        objective: {loss: {type: mse, input: guess, target: after}, metrics: null}
    """  # noqa: E501
    if draft.objective is None or draft.scope is None:
        return
    for name, term in draft.objective.losses.items():
        target = _sequence(draft, draft.scope.outputs.get(term.target or "", term.target or ""))
        wire = draft.scope.outputs.get(term.input)
        if target is None or wire is None or target.start < 1:
            continue
        found = _find_sequence_layer(draft, wire, target)
        if found is not None:
            layer, key = found, "causal" if found.layer.type == "self_attention" else "bidirectional"
            yield warning(
                "O015",
                layer.span,
                f"`{layer.name}` sees the whole sequence, and the target of `{name}` is its input shifted by one: each "
                "position sees its answer",
                "set `causal: true`" if key == "causal" else "leave `bidirectional` out",
                (Related(draft.span(f"objective.losses.{name}.target"), "the target is named here"),),
            )


def _find_sequence_layer(draft: Draft, wire: Wire, target: _Sequence) -> LayerNode | None:
    """Return a layer on a path from `wire` back to the sequence of the target that sees the whole sequence."""
    assert draft.scope is not None
    waiting: list[tuple[_ScopeFrame, Wire, LayerNode | None]] = [(_ScopeFrame(draft.scope), wire, None)]
    seen: set[tuple[int, Wire, bool]] = set()
    while waiting:
        frame, wire, layer = waiting.pop()
        if (id(frame.scope), wire, layer is not None) in seen:
            continue
        seen.add((id(frame.scope), wire, layer is not None))
        if frame.outer is None and layer is not None and _is_before(_sequence(draft, wire), target):
            return layer
        name, _, output = wire.partition(":")
        if not output:
            if frame.outer is not None and frame.node is not None and name in frame.node.inputs:
                waiting.append((frame.outer, frame.node.inputs[name], layer))
            continue
        node = next(each for each in frame.scope.nodes if each.name == name)
        if isinstance(node, BlockNode):
            waiting.append((_ScopeFrame(node.scope, node, frame), node.scope.outputs[output], layer))
            continue
        if isinstance(node, LayerNode) and _sees_all(node):
            layer = node
        waiting += [(frame, each, layer) for port, each in node.inputs.items() if port not in _NOT_FOLLOWED]
    return None


def _sees_all(node: LayerNode) -> bool:
    if node.layer.type == "self_attention":
        return not getattr(node.layer, "causal", True) and "mask" not in node.inputs
    return node.layer.type in ("gru", "lstm", "rnn") and bool(getattr(node.layer, "bidirectional", False))


def _is_before(given: _Sequence | None, target: _Sequence) -> bool:
    """Return whether the target is `given` shifted by one."""
    if given is None or given.columns != target.columns or given.start + 1 != target.start:
        return False
    return given.stop is None or given.stop == -1 or (target.stop is not None and given.stop + 1 == target.stop)


def _sequence(draft: Draft, wire: Wire) -> _Sequence | None:
    """Return the slice that a wire of the main scope holds: a field, or a slice of one along the first dimension."""
    assert draft.scope is not None
    name, _, output = wire.partition(":")
    if not output:
        return _of_field(draft, name)
    node = next((each for each in draft.scope.nodes if each.name == name), None)
    root = node.expression.root if isinstance(node, ExpressionNode) else None
    if not isinstance(node, ExpressionNode) or not isinstance(root, Operation) or root.name != INDEX:
        return None
    operand, index = root.operands[0], root.options["index"]
    whole = _of_field(draft, node.inputs.get(operand.text, "")) if isinstance(operand, Reference) else None
    if whole is None or whole[1:] != (0, None) or not isinstance(index, tuple) or len(index) != 2:
        return None
    part = index[1]
    if not isinstance(part, slice) or part.step not in (None, 1):
        return None
    return _Sequence(whole.columns, part.start or 0, part.stop)


def _of_field(draft: Draft, name: str) -> _Sequence | None:
    field = None if draft.data is None else draft.data.fields.get(name)
    if field is None:
        return None
    column, columns = getattr(field, "column", None), getattr(field, "columns", None)
    columns = (columns,) if isinstance(columns, str) else columns
    cut = parse_cut(getattr(field, "rows", None))
    if isinstance(cut, int):
        return None
    start, stop = (0, None) if cut is None else (cut.start or 0, cut.stop)
    return _Sequence((column,) if column is not None else tuple(columns or ()), start, stop)


def map_as_sequences(draft: Draft) -> Iterator[Diagnostic]:
    """map-as-sequences (G015)

    Finds: a layer for sequences right behind a convolution or a pool over height and width.
    Why:   a map is (B, C, H, W), and sequences are (B, ..., T, D): each column of each channel would be a sequence of its
           own, of H steps, with the pixels of a row for their elements.
    Diff:
        model:
          graph:
            image: reshape(pixels, B, 1, 8, 8)
            conv: {type: conv2d, out_channels: 4, kernel_size: 3, padding: 1}
    -       hidden: {type: self_attention, heads: 2, input: conv}
    +       places: transpose(flatten(conv, 2), 1, 2)
    +       hidden: {type: self_attention, heads: 2, input: places}
            act: {type: flatten}
            logits: {type: linear, out_features: 10}
    """  # noqa: E501
    waiting = [] if draft.scope is None else [draft.scope]
    seen = set()
    while waiting:
        scope = waiting.pop()
        waiting += [node.scope for node in scope.nodes if isinstance(node, BlockNode)]
        for node in scope.nodes:
            if not isinstance(node, LayerNode) or node.layer.type not in _SEQUENCES or node.span in seen:
                continue
            seen.add(node.span)  # the copies of a repeat have one place
            port = node.layer.ports[0].name
            made = _map(scope, node.inputs.get(port, ""))
            if made is not None:
                message = (
                    f"`{node.layer.type}` takes sequences (B, ..., T, D), and `{made.name}` makes maps (B, C, H, W)"
                )
                hint = f"`transpose(flatten({made.name}, 2), 1, 2)` makes a sequence of their places, (B, H * W, C)"
                related = (Related(made.span, f"`{made.name}` is a `{made.layer.type}`"),)
                yield warning("G015", node.input_spans.get(port, node.span), message, hint, related)


def _map(scope: Scope, wire: Wire) -> LayerNode | None:
    """Return the layer over height and width whose result a wire holds, changed element by element at most."""
    name, _, output = wire.partition(":")
    node = next((each for each in scope.nodes if each.name == name), None)
    if isinstance(node, BlockNode):
        return _map(node.scope, node.scope.outputs[output])
    if not isinstance(node, LayerNode):
        return None
    if isinstance(node.layer, Spatial) and node.layer.num_dims > 1:
        return node
    return _map(scope, next(iter(node.inputs.values()))) if node.layer.type in _KEPT else None


def two_orders_of_last(draft: Draft) -> Iterator[Diagnostic]:
    """two-orders-of-last (R130)

    Finds: two sets that are both cut as the last rows, by different columns.
    Why:   what is last by one column is in the middle by the other: rows that train come after rows that are held back, so
           that the sets no longer measure how well the future is predicted.
    Diff:
        data:
          split:
            validation: {type: last, fraction: 0.1, sort: label}
    -       test: {type: last, fraction: 0.1}
    +       test: {type: last, fraction: 0.1, sort: label}
    """  # noqa: E501
    data = draft.data
    if data is None:
        return
    window = None if data.window is None else data.window.sort
    orders = {
        name: getattr(split, "sort", None) or window for name, split in data.split.items() if split.type == "last"
    }
    first = next(iter(orders), None)
    for name, order in orders.items():
        if first is None or order == orders[first]:
            continue
        message = f"`{name}` is the last rows by {_order(order)}, and `{first}` by {_order(orders[first])}"
        hint = "sort both by the same column, or cut one of them with `type: where`"
        related = (Related(draft.span(f"data.split.{first}"), f"`{first}` is cut here"),)
        yield error("R130", draft.span(f"data.split.{name}"), message, hint, related)


def _order(column: str | None) -> str:
    return "the order of the file" if column is None else f"`{column}`"
