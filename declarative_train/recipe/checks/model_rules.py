"""Rules about the structure of a model: settings of its layers, sequences whose order has no effect, and experts that
no loss balances.

Each public function that returns diagnostics is one rule. Its docstring is the manual page of its diagnostic code.
"""

from __future__ import annotations

from collections.abc import Iterator

from declarative_train.components.expressions.functions import ELEMENTWISE, INDEX
from declarative_train.components.expressions.tree import Operation, Reference, Term, is_made_by
from declarative_train.core.diagnostics.diagnostic import Diagnostic, unverified, warning
from declarative_train.core.span import Span
from declarative_train.recipe.draft import Draft
from declarative_train.recipe.model.tree import ExpressionNode, LayerNode, Wire
from declarative_train.recipe.model.walk import Frame, Source, all_layers, all_nodes, walk

_MOST_DROPPED, _MOST_MOMENTUM, _LEAST_DECAY, _MOST_SMOOTHED = 0.8, 0.5, 0.5, 0.5
_MOST_EPS, _MOST_TEMPERATURE = 0.1, 5.0
_OF_ONE_POSITION = frozenset({"add", "drop_path", "dropout", "embedding", "embedding_noise", "identity", "layer_norm",
                              "layer_scale", "linear", "moe", "multiply", "rms_norm"})  # fmt: skip
_POSITIONS = frozenset({"learned_positions", "sinusoidal_positions", "token_types"})
_OF_SETS = _OF_ONE_POSITION | {"class_token", "sequence_pool"}  # do not depend on an order
_RECURRENT = frozenset({"gru", "lstm", "rnn"})
_OF_ALL = ELEMENTWISE | {
    "amax",
    "amin",
    "log_softmax",
    "mean",
    "normalize",
    "rand_like",
    "randn_like",
    "softmax",
    "sum",
}


def implausible_setting(draft: Draft) -> Iterator[Diagnostic]:
    """implausible-setting (R160)

    Finds: a number that is probably 1 minus the right one: a `momentum` of `batch_norm` above 0.5, a dropout of more
           than 0.8, a `decay` of `ema` below 0.5, a `label_smoothing` above 0.5. Also an `eps` of a norm of 0.1 or
           more, and a `temperature` of `info_nce` of 5 or more.
    Why:   other libraries count the other way. Keras' `momentum` is the share of the old average that is kept; here it
           is the share that is replaced. TensorFlow's `keep_prob` is the share of values that is kept; `p` is the share
           that is dropped. The `decay` of `ema` is the share that is kept. A large `eps` outweighs the variance. The
           temperature divides similarities from -1 to 1: at 5, the loss can hardly fall, whatever is learned.
    Diff:
        training:
    -     ema: {decay: 0.01}
    +     ema: {decay: 0.99}
    """
    dropping = set[Span]()
    seen = set[tuple[Span, str]]()
    for node in () if draft.scope is None else all_layers(draft.scope):
        layer = node.layer
        if (node.span, layer.type) in seen:
            continue  # a copy of a `repeat`
        seen.add((node.span, layer.type))
        for key in ("dropout", "p"):
            share, place = getattr(layer, key, None), node.field_spans.get(key, node.span)
            if isinstance(share, float) and share > _MOST_DROPPED and place not in dropping:
                dropping.add(place)  # a parameter of a shipped block sets several layers
                name = node.params.get(key, key)
                message = f"`{node.path}` drops {share:.0%} of the values in training"
                hint = f"`{name}` is the share that is dropped: to keep {share:.0%}, write `{name}: {1 - share:.2g}`"
                yield warning("R160", place, message, hint)
        momentum, eps = getattr(layer, "momentum", None), getattr(layer, "eps", None)
        if layer.type == "batch_norm" and isinstance(momentum, float) and momentum > _MOST_MOMENTUM:
            message = f"the running statistics of `{node.path}` are mostly those of the last step"
            hint = (
                f"`momentum` is the weight of the last step; to keep {momentum:g}, write `momentum: {1 - momentum:.2g}`"
            )
            yield warning("R160", node.field_spans.get("momentum", node.span), message, hint)
        if "norm" in layer.type and isinstance(eps, float) and eps >= _MOST_EPS:
            message = f"`{node.path}` adds {eps:g} to the variance, so that it hardly normalises"
            yield warning("R160", node.field_spans.get("eps", node.span), message, "usual values are 1e-8 to 1e-3")
    ema = None if draft.training is None else draft.training.ema
    if ema is not None and ema.decay < _LEAST_DECAY:
        message = f"a decay of {ema.decay:g}: the average is little more than the weights of the last step"
        hint = f"`decay` is the share that remains after a step, such as {1 - ema.decay if ema.decay else 0.999:.6g}"
        yield warning("R160", draft.span("training.ema.decay"), message, hint)
    for name, term in ({} if draft.objective is None else draft.objective.losses).items():
        smoothing = getattr(term.component, "label_smoothing", 0.0)
        if smoothing > _MOST_SMOOTHED:
            message = f"the target of `{name}` gives only {1 - smoothing:.0%} to the right class and spreads the rest"
            hint = f"usual values are up to 0.2; to keep {smoothing:.0%}, write `label_smoothing: {1 - smoothing:.2g}`"
            yield warning("R160", draft.span(("objective", "losses", name, "label_smoothing")), message, hint)
        temperature = getattr(term.component, "temperature", 0.0)
        if getattr(term.component, "normalize", False) and temperature >= _MOST_TEMPERATURE:
            message = (
                f"similarities from -1 to 1, divided by {temperature:g}, hardly differ: the loss stays near chance"
            )
            hint = (
                f"usual values are 0.02 to 1; if {temperature:g} is a factor, write its inverse, {1 / temperature:.2g}"
            )
            yield warning("R160", draft.span(("objective", "losses", name, "temperature")), message, hint)


def first_sees_itself(draft: Draft) -> Iterator[Diagnostic]:
    """first-sees-itself (G027)

    Finds: a `sequence_pool` of the first position, or a slice `[:, 0]`, of a sequence in which no position depends on
           later ones, because its layers are causal attention or recurrent layers of one direction.
    Why:   the first position then depends on the first token alone, which is often the same in all texts. The rest of
           the sequence is not used.
    Diff:
        model:
          graph:
            steps: unsqueeze(pixels, -1)
            hidden: {type: gru, hidden_size: 8, input: steps}
    -       act: {type: sequence_pool, mode: first, input: hidden}
    +       act: {type: sequence_pool, mode: last, input: hidden}
    """
    if draft.scope is None:
        return
    for frame, node in all_nodes(Frame(draft.scope)):
        wire = _find_first(node)
        if wire is not None and _sees_no_later(frame, wire):
            message = f"`{node.path}` takes the first position, which depends on the first element alone"
            hint = "take the last position (`mode: last`, or `[:, -1]` without padding), or remove `causal`"
            yield warning("G027", node.span, message, hint)


def attention_without_positions(draft: Draft) -> Iterator[Diagnostic]:
    """attention-without-positions (G028)

    Finds: attention over the tokens of a text, or the rows of a window, in a model where nothing depends on the order
           of the positions: no position embedding, no `rotary`, no causal attention, no recurrent layer or convolution.
    Why:   attention compares all pairs of positions and does not know which is first: every order of the words gives
           the same result. Such a model is right for sets, and cannot learn grammar or a trend.
    Diff:
        data: {fields: {next: null, tokens: {rows: null}}}
        model:
          graph:
    -       mixed: {type: self_attention, heads: 2, input: hidden}
    +       mixed: {type: self_attention, heads: 2, rotary: {}, input: hidden}
            act: {type: relu, input: mixed}
        objective: {loss: {target: tokens}}
    """
    if draft.scope is None or draft.data is None:
        return
    has_order = draft.data.window is not None or any(field.type == "tokens" for field in draft.data.fields.values())
    found = None
    for _, node in all_nodes(Frame(draft.scope)):
        if isinstance(node, ExpressionNode):
            if not _ignores_order(node.expression.root):
                return
        elif isinstance(node, LayerNode):
            kind = node.layer.type
            if kind == "self_attention" and not getattr(node.layer, "causal", False):
                if getattr(node.layer, "rotary", None) is not None or set(node.inputs) - {"x", "mask"}:
                    return
                found = found or node
            elif kind == "patch_embedding":
                has_order = True
            elif not _is_of(node, _OF_SETS):
                return
    if found is not None and has_order:
        message = f"nothing in the model depends on the order of the positions that `{found.path}` reads"
        hint = (
            "add `{type: learned_positions}` after the embedding, or `rotary: {}` to the attention; a set needs neither"
        )
        yield unverified("G028", found.span, message, hint)


def experts_without_balance(draft: Draft) -> Iterator[Diagnostic]:
    """experts-without-balance (R162)

    Finds: a layer `moe` that starts from random numbers and has no `bias_rate`, if no loss reads its output `balance`;
           also a loss of such an output with a negative `weight`.
    Why:   the experts that the router prefers at the start are trained more, and are chosen still more often. In the
           end a few experts do all the work, and the others are parameters without use. The balance loss is smallest
           if all are used equally.
    Diff:
        model:
          graph:
            hidden: {type: moe, experts: 4, top_k: 1, hidden: 32, input: pixels}
        objective:
          loss: null
          losses:
            kind: {type: cross_entropy, input: logits, target: digit}
    -       even: {type: mean, input: hidden.balance, weight: -0.01}
    +       even: {type: mean, input: hidden.balance, weight: 0.01}
          metrics: {accuracy: {of: kind}}
    """
    if draft.scope is None or draft.objective is None or draft.is_written("model.weights"):
        return
    unbalanced = {node.path for node in all_layers(draft.scope) if _needs_balance(node)}
    for name, term in draft.objective.losses.items() if unbalanced else ():
        wire = draft.scope.outputs.get(term.input, term.input)
        found = walk(Frame(draft.scope), [wire], _follow_balance)
        read = {each.node.path for each in found if each.node is not None and each.output == "balance"} & unbalanced
        if read and term.weight < 0:
            message = f"the loss `{name}` is smallest if all experts are used equally, but its weight is negative"
            yield warning(
                "R162", draft.span(("objective", "losses", name, "weight")), message, f"set it to {-term.weight:g}"
            )
        unbalanced -= read
    for node in draft.scope.nodes:
        if any(path == node.name or path.startswith(f"{node.name}.") for path in unbalanced):
            message = f"no loss balances the experts of `{node.name}`: the router may come to use only a few of them"
            hint = f"add a loss `{{type: mean, input: {node.name}.balance, weight: 0.01}}`, or set `bias_rate` of `moe`"
            yield warning("R162", node.span, message, hint)


def _needs_balance(node: LayerNode) -> bool:
    layer = node.layer
    every = getattr(layer, "top_k", 0) == getattr(layer, "experts", 0)
    return layer.type == "moe" and getattr(layer, "bias_rate", None) is None and not every


def _follow_balance(source: Source) -> list[Wire]:
    """Return the inputs on which an output depends. An output `balance` (a balance loss) depends only on the input
    `balance` of its node. Any other output depends on all inputs except `balance`."""
    return [wire for port, wire in source.inputs.items() if (source.output == "balance") == (port == "balance")]


def _find_first(node: object) -> Wire | None:
    """Return the wire of the sequence from which `node` takes only the first position. Such a node is a `sequence_pool`
    with `mode: first`, or a slice such as `[:, 0]`. Return None for every other node."""
    if isinstance(node, LayerNode) and node.layer.type == "sequence_pool":
        return node.inputs.get("x") if getattr(node.layer, "mode", "") == "first" else None
    root = node.expression.root if isinstance(node, ExpressionNode) else None
    if isinstance(node, ExpressionNode) and isinstance(root, Operation) and root.name == INDEX:
        index, operand = root.options["index"], root.operands[0]
        if isinstance(index, tuple) and len(index) > 1 and index[1] == 0 and isinstance(operand, Reference):
            return node.inputs[operand.text]
    return None


def _sees_no_later(frame: Frame, wire: Wire) -> bool:
    """Return whether a causal layer takes part in computing the sequence `wire`, and no position of `wire` can depend
    on later positions. `frame`: the graph that contains `wire`."""
    is_causal = False
    for source in walk(frame, [wire], _follow_balance):
        node = source.node
        if node is None:
            continue
        if isinstance(node, ExpressionNode):
            if not _is_of_one_position(node.expression.root):
                return False
        elif _is_causal(node) and source.output == "output":
            is_causal = True
        elif not _is_of(node, _OF_ONE_POSITION | _POSITIONS):
            return False
    return is_causal


def _is_causal(node: LayerNode) -> bool:
    if node.layer.type in _RECURRENT:
        return not getattr(node.layer, "bidirectional", False)
    return node.layer.type == "latent_attention" or bool(getattr(node.layer, "causal", False))


def _is_of(node: LayerNode, types: frozenset[str]) -> bool:
    """Return whether a node is an activation or a layer of one of `types`. A layer with the key `num_dims` above 1 does
    not count: it computes over positions too, not only over the features of one position."""
    if node.layer.type in types:
        return getattr(node.layer, "num_dims", 1) == 1
    from declarative_train.components.layers.activations import Activation  # imported when a recipe names it

    return isinstance(node.layer, Activation)


def _is_of_one_position(term: Term) -> bool:
    """Return whether, for every i, position i of the result of an expression depends only on position i of its inputs.
    A slice that begins after position 0 shifts the positions, so the answer is False."""
    if not isinstance(term, Operation):
        return True
    if term.name == INDEX:
        index = term.options["index"]
        parts = index if isinstance(index, tuple) else ()
        if not all(isinstance(part, slice) and not part.start and part.step in (None, 1) for part in parts[:2]):
            return False
    elif term.name == "unsqueeze":
        if term.options.get("dim") != -1:
            return False
    elif term.name not in ELEMENTWISE:
        return False
    return all(_is_of_one_position(each) for each in term.operands)


def _ignores_order(root: Term) -> bool:
    """Return whether the result of an expression does not depend on the order of the positions in a sequence, as for a
    mean. An expression that is only a slice, such as `x[:, 0]`, also counts as such."""
    if isinstance(root, Operation) and root.name == INDEX:
        return isinstance(root.operands[0], Reference)
    return is_made_by(root, _OF_ALL)
