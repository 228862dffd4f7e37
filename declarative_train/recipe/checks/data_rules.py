"""Rules about splits, about targets that the model can see, and about feature maps used as sequences.

Each public function that returns diagnostics is one rule. Its docstring is the manual page of its diagnostic code.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from declarative_train.components.fields.columns import parse_cut
from declarative_train.components.layers.sizes import Spatial, per_dim
from declarative_train.core.diagnostics.diagnostic import Diagnostic, Related, error, warning
from declarative_train.recipe.draft import Draft
from declarative_train.recipe.model.tree import LayerNode, Wire
from declarative_train.recipe.model.walk import Frame, Source, all_nodes, find_slice, find_source, walk

_SEQUENCES = frozenset({"class_token", "cross_attention", "gru", "learned_positions", "lstm", "rnn", "self_attention",
                        "sequence_pool", "sinusoidal_positions"})  # fmt: skip
_KEPT = frozenset({"batch_norm", "dropout", "dropout2d", "drop_path", "gelu", "group_norm", "identity", "instance_norm",
                   "leaky_relu", "mish", "relu", "sigmoid", "silu", "tanh"})  # fmt: skip
_NOT_FOLLOWED = frozenset(
    {"mask", "keep", "context", "segments", "positions"}
)  # sets whose rows do not depend on the order of the file


class _Sequence(NamedTuple):
    """Slice of a field: the elements `start:stop` of its first dimension after the batch. `stop` is None if the slice
    goes to the end. `columns`: the columns of the data from which the field is made.
    """

    columns: tuple[str, ...]
    start: int
    stop: int | None


def target_in_view(draft: Draft) -> Iterator[Diagnostic]:
    """target-in-view (O015)

    Finds: a target that is the model's own input shifted by one position, in a model with a layer in which every
           position sees later ones: `self_attention` without `causal` or a mask, a `bidirectional` recurrent layer, or
           a `conv1d` that is padded equally on both sides.
    Why:   each position sees the element that it must predict, and copies it. The loss falls to nearly 0, but the
           model cannot predict an element that it does not see.
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
    """
    if draft.objective is None or draft.scope is None:
        return
    for name, term in draft.objective.losses.items():
        target = _find_sequence(
            draft, Frame(draft.scope), draft.scope.outputs.get(term.target or "", term.target or "")
        )
        wire = draft.scope.outputs.get(term.input)
        if target is None or wire is None or target.start < 1:
            continue
        found = _find_sequence_layer(draft, wire, target)
        if found is not None:
            seen, hint = "the whole sequence", "remove `bidirectional`"
            if found.layer.type == "self_attention":
                hint = "set `causal: true`"
            elif (reach := _reach_of(found)) > 0:
                seen = "the positions on both sides"
                hint = f"set `padding: {2 * reach}`, and cut off the end of its output, `[:, :, :-{2 * reach}]`"
            yield warning(
                "O015",
                found.span,
                f"`{found.name}` sees {seen}, and the target of `{name}` is its input shifted by one: each position "
                "sees its answer",
                hint,
                (Related(draft.span(f"objective.losses.{name}.target"), "the target is set here"),),
            )


def _find_sequence_layer(draft: Draft, wire: Wire, target: _Sequence) -> LayerNode | None:
    """Return a layer through which the output `wire` can copy the target, or None. The layer reads the columns of
    `target` shifted by one row, and a position of its output can depend on later positions of its input."""
    assert draft.scope is not None
    for source in reversed(list(walk(Frame(draft.scope), [wire], _follow_rows))):
        if isinstance(source.node, LayerNode) and _sees_all(source.node, source.inputs):
            read = walk(source.frame, _follow_rows(source), _follow_rows)
            if any(_is_before(_find_sequence(draft, each.frame, each.wire), target) for each in read):
                return source.node
    return None


def _follow_rows(source: Source) -> list[Wire]:
    return [wire for port, wire in source.inputs.items() if port not in _NOT_FOLLOWED]


def _sees_all(node: LayerNode, inputs: Mapping[str, Wire]) -> bool:
    if node.layer.type == "self_attention":
        return not getattr(node.layer, "causal", True) and "mask" not in inputs
    if node.layer.type == "conv1d":
        return _reach_of(node) > 0
    return node.layer.type in ("gru", "lstm", "rnn") and bool(getattr(node.layer, "bidirectional", False))


def _reach_of(node: LayerNode) -> int:
    """Return how many positions before and after its own position an output of a `conv1d` depends on. Return 0 for any
    other layer, and for a `conv1d` that changes the length, because it may be causal."""
    from declarative_train.components.layers.conv import Conv1d  # imported when a recipe names it

    if not isinstance(node.layer, Conv1d):
        return 0
    (kernel,), (dilation,) = per_dim(node.layer.kernel_size, 1), per_dim(node.layer.dilation, 1)
    span, padding = dilation * (kernel - 1), node.layer.padding
    keeps = padding == "same" or (not isinstance(padding, str) and 2 * per_dim(padding, 1)[0] == span)
    return span // 2 if keeps else 0


def _is_before(given: _Sequence | None, target: _Sequence) -> bool:
    """Return whether the slice `given` has the columns of the slice `target`, but one row earlier, like the input of
    next-token prediction. It may also end at the last row of the sample or the one before (`stop` None or -1)."""
    if (
        given is None
        or not target.columns
        or not set(target.columns) <= set(given.columns)
        or given.start + 1 != target.start
    ):
        return False
    return given.stop is None or given.stop == -1 or (target.stop is not None and given.stop + 1 == target.stop)


def _find_sequence(draft: Draft, frame: Frame, wire: Wire) -> _Sequence | None:
    """Return the columns and the rows of the data that the value `wire` of the model's graph consists of. Return None
    if it is neither a whole field nor a slice of one along dimension 1."""
    found = find_slice(frame, wire)
    whole = None if found is None else _read_field(draft, found.field)
    if found is None or whole is None or found[1:] == (0, None):
        return whole
    return whole._replace(start=found.start, stop=found.stop) if whole[1:] == (0, None) else None


def _read_field(draft: Draft, name: str) -> _Sequence | None:
    field = None if draft.data is None else draft.data.fields.get(name)
    if field is None:
        return None
    column, columns = getattr(field, "column", None), getattr(field, "columns", None)
    columns = (columns,) if isinstance(columns, str) else columns
    cut = parse_cut(getattr(field, "rows", None))
    if isinstance(cut, int):
        return None
    start, stop = (0, None) if cut is None else (cut.start or 0, cut.stop)
    window = None if draft.data is None else draft.data.window
    if window is not None and stop is not None and stop > 0:  # count from the end, as `:-1` does
        stop = stop - window.length if stop < window.length else None
    return _Sequence((column,) if column is not None else tuple(columns or ()), start, stop)


def map_as_sequences(draft: Draft) -> Iterator[Diagnostic]:
    """map-as-sequences (G015)

    Finds: a sequence layer directly after a convolution or a pooling over height and width.
    Why:   a feature map is (B, C, H, W), but sequences are (B, ..., T, D): each channel would be treated as a sequence
           of H steps, whose elements are the rows of pixels.
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
    """
    seen = set()
    for frame, node in () if draft.scope is None else all_nodes(Frame(draft.scope)):
        if not isinstance(node, LayerNode) or node.layer.type not in _SEQUENCES or node.span in seen:
            continue
        seen.add(node.span)  # all copies of a repeated node have the same position
        port = node.layer.ports[0].name
        made = _find_map_layer(frame, node.inputs[port])
        if made is not None:
            message = (
                f"`{node.layer.type}` expects sequences (B, ..., T, D), but `{made.name}` gives feature maps (B, C, H, "
                "W)"
            )
            hint = f"`transpose(flatten({made.name}, 2), 1, 2)` gives a sequence of positions, (B, H * W, C)"
            related = (Related(made.span, f"`{made.name}` is a `{made.layer.type}`"),)
            yield warning("G015", node.input_spans.get(port, node.span), message, hint, related)


def _find_map_layer(frame: Frame, wire: Wire) -> LayerNode | None:
    """Return the layer that computes the feature map `wire`, such as a `conv2d`; None if there is none. If `wire` is
    the output of an element-wise layer or a normalization, the layers before it are searched."""
    while True:
        frame, _, node, inputs = find_source(frame, wire)
        if not isinstance(node, LayerNode):
            return None
        if isinstance(node.layer, Spatial) and node.layer.num_dims > 1:
            return node
        if node.layer.type not in _KEPT:
            return None
        wire = next(iter(inputs.values()))


def two_orders_of_last(draft: Draft) -> Iterator[Diagnostic]:
    """two-orders-of-last (R130)

    Finds: two sets of `type: last` in `data.split` that are sorted by different columns.
    Why:   rows that are last by one column may be early by the other. Some training rows then come after rows of a
           set, so the set does not measure how well the future is predicted.
    Diff:
        data:
          split:
            validation: {type: last, fraction: 0.1, sort: label}
    -       test: {type: last, fraction: 0.1}
    +       test: {type: last, fraction: 0.1, sort: label}
    """
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
        message = f"`{name}` has the last rows by {_order(order)}, but `{first}` by {_order(orders[first])}"
        hint = "sort both by the same column, or use `type: where` for one of them"
        related = (Related(draft.span(f"data.split.{first}"), f"`{first}` is defined here"),)
        yield error("R130", draft.span(f"data.split.{name}"), message, hint, related)


_MOST_HELD = 0.85


def training_is_the_rest(draft: Draft) -> Iterator[Diagnostic]:
    """training-is-the-rest (D039)

    Finds: fractions under `data.split` that leave less than 15% of the rows for training.
    Why:   a fraction is the share of the named set, and training gets the remaining rows. Users easily swap the two.
    Diff:
        data:
    -     split: {validation: 0.9}
    +     split: {validation: 0.1}
    """
    split = {} if draft.data is None else draft.data.split
    held = {name: fraction for name, each in split.items() if (fraction := getattr(each, "fraction", None)) is not None}
    if _MOST_HELD < sum(held.values()) < 1:
        largest = max(held, key=lambda name: held[name])
        left = 1 - sum(held.values())
        message = f"the sets take {1 - left:.0%} of the rows, and leave {left:.0%} for training"
        hint = f"write the fraction of `{largest}`, as in `{largest}: {round(min(left, 0.2), 3):g}`"
        yield warning("D039", draft.span.key(f"data.split.{largest}"), message, hint)


def _order(column: str | None) -> str:
    return "the order of the file" if column is None else f"`{column}`"


def normalized_in_training_only(draft: Draft) -> Iterator[Diagnostic]:
    """normalized-in-training-only (R161)

    Finds: a `normalize` for training alone, or for evaluations alone, without one for the others.
    Why:   the model is then trained on pictures with one range of values and evaluated on pictures with another. The
           training metrics improve, but evaluations and predictions are wrong.
    Diff:
        data:
          transforms:
    -       - {type: normalize, mean: [0.5], std: [0.25], only: training}
    +       - {type: normalize, mean: [0.5], std: [0.25]}
    """
    transforms = () if draft.data is None else draft.data.transforms
    found = {each.only: i for i, each in enumerate(transforms) if each.type == "normalize"}
    if len(found) == 1 and None not in found:
        ((only, place),) = found.items()
        other = "evaluations and predictions" if only == "training" else "training steps"
        message = f"pictures of {other} are not normalised, so that the model sees two scales"
        yield warning("R161", draft.span(("data", "transforms", place, "only")), message, "remove `only`")
