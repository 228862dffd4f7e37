"""Checks of token fields: whether the tokens that count in the loss are the intended ones. The checks use real texts
and the model of the recipe.

The checks follow a token field through the model's graph, without computing shapes. A value is followed as long as it
has one number or vector for each token, computed from that token and perhaps earlier ones. A node that also reads
anything else, such as a mask, is not followed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple, cast

import numpy as np

from declarative_train.components.expressions.functions import ELEMENTWISE, INDEX, VIEWS
from declarative_train.components.expressions.tree import Constant, Operation, Reference, Term
from declarative_train.components.fields import FIELDS
from declarative_train.components.layers.activations import Activation
from declarative_train.core.diagnostics.diagnostic import Diagnostic
from declarative_train.core.span import Span
from declarative_train.data.prepared_set import PreparedSet
from declarative_train.data.shared_sets import prepare_sets
from declarative_train.data.spec import DataSpec
from declarative_train.data.split_rows import TRAINING
from declarative_train.packs.text.cache import Tokens
from declarative_train.packs.text.checks.trained import (
    answers_cut_off,
    end_is_ignored,
    end_not_trained,
    mask_of_other_tokens,
    mostly_padding,
    packed_answers_in_kto,
    padding_is_counted,
    padding_is_target,
    target_is_not_next,
    texts_not_separated,
)
from declarative_train.packs.text.token_tables import PackedRows, TextRows
from declarative_train.packs.text.tokenizer import Tokenizer
from declarative_train.packs.text.tokens import TokensField
from declarative_train.plan.checks.inputs import only_padding_is_read, padding_is_read
from declarative_train.recipe.model.tree import BlockNode, ExpressionNode, LayerNode, Scope, Wire
from declarative_train.recipe.recipe import Recipe

_MOST_TEXTS = 4096
_CUT, _ENDED, _PADDED = 0.1, 0.5, 0.02  # fractions: of texts, of texts, of tokens
_MOSTLY, _LONG = 0.7, 128  # fraction of padding; tokens of a sample, because padding of short samples costs little
_LAST = 4  # the end of an answer is among so many last tokens: a line break may follow it
_SPECIAL = re.compile(r"<.+>|\[[A-Z]+\]")
_WORDWISE = frozenset({"dropout", "embedding", "embedding_noise", "layer_norm", "learned_positions", "linear", "moe",
                       "rms_norm", "sinusoidal_positions"})  # fmt: skip
_RECURRENT = frozenset({"gru", "lstm", "rnn"})
_REDUCTIONS = frozenset({"amax", "amin", "logsumexp", "mean", "std", "sum", "var"})
_CAUSAL = frozenset({"deepseek", "gemma", "gpt", "gpt_oss", "llama", "mixtral"})


class _Slice(NamedTuple):
    """Tokens of which a value in the model's graph consists: the positions `start:stop` of one output of a token field.
    `stop`: None means to the end."""

    field: str
    output: str
    start: int = 0
    stop: int | None = None

    @property
    def positions(self) -> tuple[int, int | None]:
        return self.start, self.stop


class _Text(NamedTuple):
    """Token field to check, which reads the recipe's main source.

    found   tokenizer of the field
    tokens  tokens of its texts
    rows    indices of the training texts that are checked
    marks   whether only some tokens are to be predicted (see `TokensField.marks_trained`)
    padded  fraction of the positions in samples that are padding; 0 for packed texts"""

    name: str
    field: TokensField
    found: Tokenizer
    tokens: Tokens
    rows: np.ndarray
    marks: bool
    padded: float


def check_samples(recipe: Recipe, data: DataSpec) -> Iterator[Diagnostic]:
    """Check the token fields of a recipe, and yield a diagnostic for each probable mistake."""
    texts = {each.name: each for each in _texts(data)}
    for text in texts.values():
        place = f"data.fields.{text.name}"
        if text.padded >= _MOSTLY and text.field.longest >= _LONG and not text.field.buckets:
            yield mostly_padding(recipe.span(f"{place}.length"), text.name, text.padded, _suggest_buckets(text))
        if text.marks:
            yield from _check_answers(recipe, place, text, is_whole=len(texts) > 1)
            read = {name.partition(":")[0] for node in recipe.model.scope.nodes for name in node.inputs.values()}
            if text.field.pack is not None and f"{text.name}.segments" not in read and _attends(recipe.model.scope):
                yield texts_not_separated(recipe.span(f"{place}.pack"), text.name)
    if texts:
        yield from _check_terms(recipe, texts)
        yield from _check_positions(recipe.model.scope, texts)
        yield from _check_masks(recipe, texts)
        yield from _check_kto(recipe.model.scope, {name for name, text in texts.items() if text.field.pack is not None})


def _suggest_buckets(text: _Text) -> list[int]:
    """Return up to three length buckets that suit a field: the median length of its texts, the length that 90% of them
    do not exceed, and the field's length. The first two are rounded up, to a length that is shorter than the field's by
    a multiple of 8. (Many models read one token less than a sample has. For a field of length 257, a bucket of 33 is
    then better than one of 32.)"""
    longest = text.field.longest
    quantiles = np.quantile(np.minimum(text.tokens.sizes[text.rows], longest), (0.5, 0.9))
    return sorted({longest, *(longest - (longest - int(np.ceil(each))) // 8 * 8 for each in quantiles)})


def _texts(data: DataSpec) -> Iterator[_Text]:
    training = prepare_sets(data)[TRAINING]
    specs = {field.name: field for field in data.fields}
    for name, tokens, chosen in _tokens(training):
        spec = specs.get(name) or next(each for each in data.fields if each.name.startswith(f"{name}."))
        field = cast("TokensField", FIELDS.read(spec.component))
        rows = chosen[np.linspace(0, len(chosen) - 1, min(_MOST_TEXTS, len(chosen))).astype(np.int64)]
        sizes = np.minimum(tokens.sizes[rows], field.longest)
        padded = 0.0 if field.pack is not None else 1 - float(sizes.sum()) / max(1, len(rows) * field.longest)
        yield _Text(name, field, field.open_tokenizer(), tokens, rows, tokens.trained is not None, padded)


def _tokens(training: PreparedSet) -> Iterator[tuple[str, Tokens, np.ndarray]]:
    """Yield (field, tokens, indices) for each token field. `tokens`: the tokens of all texts of the field. `indices`:
    which of these texts are in the training set."""
    table = training.table
    if isinstance(table, TextRows):
        chosen = training.rows.at(np.arange(len(training.rows)))
        yield from ((name, tokens, chosen) for name, (_, tokens) in table.fields.items() if len(chosen))
    elif isinstance(table, PackedRows):
        found = ((name, each.tokens) for name, each in table.fields.items() if each.tokens.num_texts)
        yield from ((name, tokens, np.arange(tokens.num_texts)) for name, tokens in found)


def _check_answers(recipe: Recipe, place: str, text: _Text, *, is_whole: bool) -> Iterator[Diagnostic]:
    """Warn if answers are often cut off at the length of a sample, or often lack a token that ends them. `place`:
    dotted path of the field in the recipe. `is_whole`: every text stays in one sample, because several fields are
    packed together."""
    num_cut = num_lost = num_ended = num_answers = 0
    last = 0
    for row in text.rows.tolist():
        begin, end = int(text.tokens.starts[row]), int(text.tokens.starts[row + 1])
        assert text.tokens.trained is not None
        trained = np.flatnonzero(text.tokens.trained[begin:end])
        if not len(trained):
            continue
        first, stop = text.field.cut_to_length(0, end - begin)
        num_kept = int(np.count_nonzero((trained >= first) & (trained < stop)))
        num_cut += num_kept < len(trained)
        num_lost += not num_kept
        num_answers += 1
        last = int(text.tokens.tokens[begin + int(trained[-1])])
        ends = text.tokens.tokens[begin + trained[-_LAST:]].tolist()
        num_ended += any(_is_special(text.found, number) for number in ends)
    if (text.field.pack is None or is_whole) and num_cut >= max(1, _CUT * num_answers):
        span = recipe.span(f"{place}.length")
        yield answers_cut_off(span, text.name, num_answers, num_cut, num_lost, text.field.longest)
    if num_answers and text.found.special.get("eos") is not None and num_ended < _ENDED * num_answers:
        key = "template" if text.field.template is not None else "tokenizer"
        yield end_not_trained(recipe.span(f"{place}.{key}"), text.name, f"`{text.found.token_text(last)}`")


def _is_special(found: Tokenizer, number: int) -> bool:
    return number in found.special.values() or _SPECIAL.fullmatch(found.token_text(number)) is not None


def _attends(scope: Scope) -> bool:
    return any(
        _attends(node.scope)
        if isinstance(node, BlockNode)
        else isinstance(node, LayerNode) and node.layer.type in ("latent_attention", "self_attention", "transformers")
        for node in scope.nodes
    )


def _check_terms(recipe: Recipe, texts: dict[str, _Text]) -> Iterator[Diagnostic]:
    scope = recipe.model.scope
    shifts: dict[str, int] = {}
    for name, term in recipe.objective.losses.items():
        target = _slice_of(scope, scope.outputs.get(term.target or "", term.target or ""))
        if target is None or target.field not in texts or target.output != "ids":
            continue
        text, path = texts[target.field], ("objective", "losses", name)
        mask = None if term.mask is None else _slice_of(scope, scope.outputs.get(term.mask, term.mask))
        if mask is not None and mask.field == target.field and mask.positions != target.positions:
            yield mask_of_other_tokens(_place(recipe, name, "mask"), name, str(term.target), str(term.mask))
        ignored = getattr(term.component, "ignore_index", None)
        if ignored is None and term.mask is None and text.padded > _PADDED:
            yield padding_is_target(recipe.span((*path, "target")), name, text.name, text.padded)
        ends = {text.found.special.get("eos"), text.found.role("eos", text.field.eos)} - {None}
        if ignored is not None and ignored == text.field.pad_of(text.found) and ignored in ends and text.padded:
            token = f"`{text.found.token_text(ignored)}`"
            yield end_is_ignored(recipe.span((*path, "ignore_index")), name, token)
        wire = scope.outputs.get(term.input, term.input)
        read = _read_by_causal(scope, wire.partition(":")[0])
        if read is not None and read.field == target.field:
            shifts[name] = target.start - read.start
    if shifts and 1 not in shifts.values():
        name, shift = next(iter(shifts.items()))
        yield target_is_not_next(_place(recipe, name, "target"), name, shift)


def _place(recipe: Recipe, term: str, key: str) -> Span:
    """Return the place in the recipe that defines the input or the target of the loss `term`. `key`: which of them,
    `input` or `target`. It is the place of the node that computes the value. No node computes a field; for a field, it
    is the place of `key` in the loss."""
    scope, name = recipe.model.scope, str(getattr(recipe.objective.losses[term], key))
    made = scope.outputs.get(name, name).partition(":")[0]
    node = next((node for node in scope.nodes if node.name == made), None)
    return recipe.span(("objective", "losses", term, key)) if node is None else node.span


def _read_by_causal(scope: Scope, name: str) -> _Slice | None:
    """Return the slice of a token field's ids that the node `name` reads, if the node is a causal language model; else
    None."""
    node = next((node for node in scope.nodes if node.name == name), None)
    wire = None
    if isinstance(node, BlockNode) and node.block in _CAUSAL:
        wire = node.inputs.get("tokens")
    elif isinstance(node, LayerNode) and node.layer.type == "transformers" and node.layer.find_text_ports() is None:
        wire = next(iter(node.inputs.values()), None)
    found = None if wire is None else _slice_of(scope, wire)
    return found if found is not None and found.output == "ids" else None


def _slice_of(scope: Scope, wire: Wire) -> _Slice | None:
    """Return the slice of a token field that a wire (a value in the model's graph) has. If the wire is a whole field,
    the slice has all its positions. Return None if the wire is neither a field nor a slice along the positions."""
    name, _, output = wire.partition(":")
    if not output:
        field, _, part = name.partition(".")
        return _Slice(field, part or "ids")
    node = next(node for node in scope.nodes if node.name == name)
    term = node.expression.root if isinstance(node, ExpressionNode) else None
    while isinstance(term, Operation) and term.name in ("bool", "float", "int"):
        term = term.operands[0]
    if isinstance(term, Reference):
        return _slice_of(scope, node.inputs[term.text])
    if not isinstance(term, Operation) or term.name != INDEX or not isinstance(term.operands[0], Reference):
        return None
    whole, index = _slice_of(scope, node.inputs[term.operands[0].text]), term.options["index"]
    if whole is None or whole.positions != (0, None) or not isinstance(index, tuple) or len(index) != 2:
        return None
    part_of = index[1]
    if not isinstance(part_of, slice) or part_of.step not in (None, 1):
        return None
    return _Slice(whole.field, whole.output, part_of.start or 0, part_of.stop)


def _check_masks(recipe: Recipe, texts: dict[str, _Text]) -> Iterator[Diagnostic]:
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


def _find_reversed(scope: Scope, wire: Wire, texts: dict[str, _Text]) -> str | None:
    """Return the name of the token field whose mask is reversed in a wire (a value in the model's graph), so that the
    wire is true for padding alone. Return None for any other wire. Known forms are `~f.mask`, `f.mask == 0`, `1 -
    float(f.mask)`, and `f == N` with the number N of the padding token."""
    node = next((node for node in scope.nodes if f"{node.name}:output" == wire), None)
    if not isinstance(node, ExpressionNode):
        return None
    term = _skip_casts(node.expression.root)
    if not isinstance(term, Operation) or term.name not in ("~", "==", "-"):
        return None
    numbers = [each.value for each in term.operands if isinstance(each, Constant)]
    read = [each for each in map(_skip_casts, term.operands) if isinstance(each, Reference)]
    found = _slice_of(scope, node.inputs[read[0].text]) if len(read) == 1 else None
    if found is None or found.field not in texts:
        return None
    text = texts[found.field]
    of_mask = {"~": [], "==": [0], "-": [1]}[term.name] if found.output == "mask" else None
    of_ids = [text.field.pad_of(text.found)] if found.output == "ids" and term.name == "==" else None
    return found.field if numbers in (of_mask, of_ids) else None


def _skip_casts(term: Term) -> Term:
    while isinstance(term, Operation) and (term.name in VIEWS or term.name in ("bool", "float", "int")):
        term = term.operands[0]
    return term


class _Way(NamedTuple):
    """Description of a wire (a value in the model's graph) that has one vector for each token of the field `field`.
    `is_recurrent`: each vector also depends on earlier tokens."""

    field: str
    is_recurrent: bool = False


def _check_positions(scope: Scope, texts: dict[str, _Text]) -> Iterator[Diagnostic]:
    """Warn about each expression or layer that reduces all positions of padded texts to one value, such as a mean, and
    so includes the padding."""
    ways: dict[Wire, _Way] = {
        name: _Way(name) for name in scope.inputs if name in texts and texts[name].padded > _PADDED
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
            elif _keeps_positions(node.expression.root):
                ways[output] = way
        elif isinstance(node, LayerNode):
            yield from _follow_layer(node, scope, way, ways)


def _follow_layer(node: LayerNode, scope: Scope, way: _Way, ways: dict[Wire, _Way]) -> Iterator[Diagnostic]:
    kind = node.layer.type
    if kind in _WORDWISE or isinstance(node.layer, Activation):
        ways[f"{node.name}:output"] = way
    elif kind == "self_attention" and not getattr(node.layer, "causal", False):
        yield padding_is_read(node.span, node.path, way.field, ("x", "mask"))
    elif kind in _RECURRENT and getattr(node.layer, "bidirectional", False):
        yield padding_is_counted(node.span, node.path, way.field, "its backward half")
    elif kind in _RECURRENT or kind == "self_attention":
        ways[f"{node.name}:output"] = _Way(way.field, is_recurrent=True)
        read = {wire for other in scope.nodes for wire in other.inputs.values()} | set(scope.outputs.values())
        if f"{node.name}:hidden" in read:
            yield padding_is_counted(node.span, node.path, way.field, "its last state")
    elif kind == "sequence_pool" and getattr(node.layer, "mode", "") != "first":
        what = {"mean": "a mean", "max": "a maximum"}.get(getattr(node.layer, "mode", ""), "the last position")
        yield padding_is_counted(node.span, node.path, way.field, what)


def _find_reduction(term: Term, *, is_recurrent: bool) -> str:
    """Return the operation of an expression that reduces the positions of a sequence to one value, such as `mean`. The
    result is its name, as text for a message; "" if there is none. `is_recurrent`: each position depends on the earlier
    ones. Then to take the last position is such an operation too."""
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


def _keeps_positions(term: Term) -> bool:
    """Return whether an expression computes the value at each position only from values at the same position."""
    if not isinstance(term, Operation):
        return True
    return term.name in ELEMENTWISE and all(_keeps_positions(each) for each in term.operands)


def _check_kto(scope: Scope, packed: set[str]) -> Iterator[Diagnostic]:
    """Report each block `kto` with an input that is computed from packed texts. `packed`: names of the fields that are
    packed."""
    nodes = {node.name: node for node in scope.nodes}
    for node in scope.nodes:
        if not isinstance(node, BlockNode) or node.block != "kto":
            continue
        names, seen = {node.name}, set[str]()
        while names:
            seen |= names
            wires = (wire for name in names & nodes.keys() for wire in nodes[name].inputs.values())
            names = {wire.partition(":")[0] for wire in wires} - seen
        read = {name.partition(".")[0] for name in seen - nodes.keys()} & packed
        if read:
            yield packed_answers_in_kto(node.span, node.path, min(read))
