"""Checks of the padding of token fields: layers that read it as text, and masks that are true only at padding.

To find such layers, values are followed from a token field through the model's graph, without computing shapes. A value
is followed if it has one number or vector for each token, computed from this token and perhaps earlier ones. The search
ends at a node that also reads anything else, such as a mask."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from declarative_train.components.expressions.functions import ELEMENTWISE, INDEX, VIEWS
from declarative_train.components.expressions.tree import Constant, Operation, Reference, Term, is_made_by
from declarative_train.components.layers.activations import Activation
from declarative_train.core.diagnostics.diagnostic import Diagnostic
from declarative_train.packs.text.checked_fields import CheckedText, skip_casts, slice_of
from declarative_train.packs.text.checks.padding import only_padding_is_read, padding_is_read
from declarative_train.packs.text.checks.trained import padding_is_counted
from declarative_train.recipe.model.tree import BlockNode, ExpressionNode, LayerNode, ModelNode, Scope, Wire
from declarative_train.recipe.recipe import Recipe

COUNTED = 0.02  # fraction of padding from which it is reported
_WORDWISE = frozenset({"dropout", "embedding", "embedding_noise", "layer_norm", "learned_positions", "linear", "moe",
                       "rms_norm", "sinusoidal_positions"})  # fmt: skip
_RECURRENT = frozenset({"gru", "lstm", "rnn"})
_REDUCTIONS = frozenset({"amax", "amin", "logsumexp", "mean", "std", "sum", "var"})


def check_encoders(scope: Scope, texts: dict[str, CheckedText]) -> Iterator[Diagnostic]:
    """Warn about text encoders that read padded texts without a mask, so that they treat the padding as text."""
    read: dict[Wire, str] = {name: name for name in scope.inputs if name in texts and texts[name].padded}
    for node in scope.nodes:
        arriving = [read[wire] for wire in node.inputs.values() if wire in read]
        if not arriving:
            continue
        if isinstance(node, ExpressionNode):
            if is_made_by(node.expression.root, VIEWS | {"float"}):
                read[f"{node.name}:output"] = arriving[0]
            continue
        found = _encoder(node)
        if found is None or found.mask in node.inputs:
            continue
        port = next((port for port, wire in node.inputs.items() if wire in read), "")
        if port in found.ports:
            place = node.input_spans.get(port, node.span)
            yield padding_is_read(place, node.path, arriving[0], (found.ports[-1], found.mask))


class _Encoder(NamedTuple):
    """Layer or block that encodes texts. `kind`: name of its model. `ports`: its inputs for token ids. `mask`: its
    input for the padding mask."""

    kind: str
    ports: tuple[str, ...]
    mask: str


def _encoder(node: ModelNode) -> _Encoder | None:
    if isinstance(node, BlockNode):
        return _Encoder("bert", ("tokens",), "mask") if node.block == "bert" else None
    found = node.layer.find_text_ports() if isinstance(node, LayerNode) else None
    return None if found is None else _Encoder(*found)


def check_masks(recipe: Recipe, texts: dict[str, CheckedText]) -> Iterator[Diagnostic]:
    """Warn about each mask of a layer, block or loss that is reversed: it is true for padding and false for tokens."""
    scope = recipe.model.scope
    for node in scope.nodes:
        for port in ("attention_mask", "mask"):
            field = _find_reversed(scope, node.inputs.get(port, ""), texts)
            if field is not None:
                mask = node.inputs[port].partition(":")[0]
                yield only_padding_is_read(node.input_spans.get(port, node.span), f"`{node.path}`", field, mask)
    for name, term in recipe.objective.losses.items():
        field = _find_reversed(scope, scope.outputs.get(term.mask or "", ""), texts)
        if field is not None:
            span = recipe.span(("objective", "losses", name, "mask"))
            yield only_padding_is_read(span, f"the loss `{name}`", field, str(term.mask))


def _find_reversed(scope: Scope, wire: Wire, texts: dict[str, CheckedText]) -> str | None:
    """Return the token field `f` whose mask the value `wire` of the model's graph inverts, so that it is true for
    padding alone. Return None if `wire` has none of the known forms: `~f.mask`, `f.mask == 0`, `1 - float(f.mask)`, and
    `f == N` with the number N of the padding token."""
    node = next((node for node in scope.nodes if f"{node.name}:output" == wire), None)
    if not isinstance(node, ExpressionNode):
        return None
    term = skip_casts(node.expression.root)
    if not isinstance(term, Operation) or term.name not in ("~", "==", "-"):
        return None
    numbers = [each.value for each in term.operands if isinstance(each, Constant)]
    read = [each for each in map(skip_casts, term.operands) if isinstance(each, Reference)]
    found = slice_of(scope, node.inputs[read[0].text]) if len(read) == 1 else None
    if found is None or found.field not in texts:
        return None
    text = texts[found.field]
    of_mask = {"~": [], "==": [0], "-": [1]}[term.name] if found.output == "mask" else None
    of_ids = [text.field.pad_of(text.found)] if found.output == "ids" and term.name == "==" else None
    return found.field if numbers in (of_mask, of_ids) else None


class _TokenValue(NamedTuple):
    """Facts about a value in the model's graph that has one vector for each token. `field`: the token field.
    `is_recurrent`: each vector also depends on earlier tokens."""

    field: str
    is_recurrent: bool = False


def check_positions(scope: Scope, texts: dict[str, CheckedText]) -> Iterator[Diagnostic]:
    """Warn about each expression or layer that reduces all positions of padded texts to one value, such as a mean, and
    so includes the padding."""
    ways: dict[Wire, _TokenValue] = {
        name: _TokenValue(name) for name in scope.inputs if name in texts and texts[name].padded > COUNTED
    }
    for node in scope.nodes:
        if not node.inputs or any(wire not in ways for wire in node.inputs.values()):
            continue
        way = ways[next(iter(node.inputs.values()))]
        output = f"{node.name}:output"
        if isinstance(node, ExpressionNode):
            found = _find_reduction(node.expression.root, is_recurrent=way.is_recurrent)
            if found:
                yield padding_is_counted(node.span, node.path, way.field, found)
            elif is_made_by(node.expression.root, ELEMENTWISE):
                ways[output] = way
        elif isinstance(node, LayerNode):
            yield from _follow_layer(node, scope, way, ways)


def _follow_layer(
    node: LayerNode, scope: Scope, way: _TokenValue, ways: dict[Wire, _TokenValue]
) -> Iterator[Diagnostic]:
    kind = node.layer.type
    if kind in _WORDWISE or isinstance(node.layer, Activation):
        ways[f"{node.name}:output"] = way
    elif kind == "self_attention" and not getattr(node.layer, "causal", False):
        yield padding_is_read(node.span, node.path, way.field, ("x", "mask"))
    elif kind in _RECURRENT and getattr(node.layer, "bidirectional", False):
        yield padding_is_counted(node.span, node.path, way.field, "its backward half")
    elif kind in _RECURRENT or kind == "self_attention":
        ways[f"{node.name}:output"] = _TokenValue(way.field, is_recurrent=True)
        read = {wire for other in scope.nodes for wire in other.inputs.values()} | set(scope.outputs.values())
        if f"{node.name}:hidden" in read:
            yield padding_is_counted(node.span, node.path, way.field, "its last state")
    elif kind == "sequence_pool" and getattr(node.layer, "mode", "") != "first":
        what = {"mean": "a mean", "max": "a maximum"}.get(getattr(node.layer, "mode", ""), "the last position")
        yield padding_is_counted(node.span, node.path, way.field, what)


def _find_reduction(term: Term, *, is_recurrent: bool) -> str:
    """Return the name, for a message, of the operation by which an expression reduces the positions of a sequence to
    one value, such as `mean`; "" if there is none. `is_recurrent`: each position depends on the earlier ones; taking
    the last position is then such an operation."""
    if not isinstance(term, Operation):
        return ""
    dims = term.options.get("dim")
    if (
        term.name in _REDUCTIONS
        and isinstance(dims, tuple | int)
        and 1 in (dims if isinstance(dims, tuple) else (dims,))
    ):
        return f"`{term.name}`"
    index = term.options.get("index") if term.name == INDEX else None
    if is_recurrent and isinstance(index, tuple) and len(index) > 1 and index[1] == -1:
        return "the last position"
    return next((found for each in term.operands if (found := _find_reduction(each, is_recurrent=is_recurrent))), "")
