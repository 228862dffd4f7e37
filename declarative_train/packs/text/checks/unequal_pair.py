"""unequal-pair (G029)

Finds: a preference loss (`dpo`, `ipo`, `orpo`, `simpo`, `bradley_terry`) whose two answers come from the same column,
       from nodes with different parameters, or in the wrong order. Also a reference that reads another answer than the
       policy, or that is trained; and sums of log-likelihoods where the loss expects means.
Why:   the loss compares numbers of the chosen and of the rejected answer, and of a policy and its frozen reference. If
       they differ in something else too, or in nothing, the loss falls, or stays constant, without meaning.
Diff:
    model:
      graph:
        good: {type: linear, out_features: 1, input: pixels}
        flipped: flip(pixels, dims=[1])
-       bad: {type: linear, out_features: 1, input: flipped}
+       bad: {type: reuse, node: good, input: flipped}
        pair: {type: bradley_terry, inputs: [good, bad]}
        hidden: {input: pixels}
    objective:
      loss: null
      losses:
        kind: {type: cross_entropy, input: logits, target: digit}
        pair: {type: mean, input: pair}
      metrics: {accuracy: {of: kind}}
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from declarative_train.core.diagnostics.diagnostic import Diagnostic, warning
from declarative_train.core.span import Span
from declarative_train.data.spec import DataSpec
from declarative_train.plan.plan import ParameterPlan
from declarative_train.recipe.model.tree import BlockNode, ExpressionNode, Scope, Wire
from declarative_train.recipe.model.walk import Frame, Source, walk

_ANSWERS = ("chosen", "rejected")
_REFERENCES = {"dpo": ("chosen_reference", "rejected_reference"), "ipo": ("chosen_reference", "rejected_reference")}
_PAIRS = {*_REFERENCES, "bradley_terry", "orpo", "simpo"}
_OF_MEANS = {"ipo", "orpo", "simpo"}
_LIKELIHOODS = {"packed_log_likelihood", "sequence_log_likelihood"}


class _Side(NamedTuple):
    """Input of a loss (one of the two), and the fields and nodes from which it is computed.

    fields    names of the fields
    nodes     names of the nodes that have parameters
    trained   those of `nodes` that the loss trains through this input
    kind      type and output of the block that gives the input, such as `sequence_log_likelihood:sum`
    """

    wire: Wire
    fields: frozenset[str]
    nodes: frozenset[str]
    trained: frozenset[str]
    kind: str
    span: Span


def check(scope: Scope, data: DataSpec, parameters: Sequence[ParameterPlan]) -> Iterator[Diagnostic]:
    """Yield a warning for each preference loss or distillation whose inputs cannot be compared, such as two answers
    that are computed by different parameters. `scope`: the model, whose parameters are `parameters`."""
    for node in scope.nodes:
        if isinstance(node, BlockNode) and node.block in {*_PAIRS, "distillation"}:
            sides = {port: _follow(scope, node, port, parameters) for port in node.inputs}
            if node.block == "distillation":
                yield from _check_teacher(node, sides["student"], sides["teacher"])
                continue
            found = _compare_answers(data, sides["chosen"], sides["rejected"], node.block in _OF_MEANS)
            references = [sides[port] for port in _REFERENCES.get(node.block, ())]
            for side, reference in zip((sides[port] for port in _ANSWERS), references, strict=False):
                found = found or _compare_with_reference(side, reference, references)
            if found is not None:
                span, message, hint = found
                yield warning("G029", span, f"`{node.path}`: {message}", hint)


_Found = tuple[Span, str, str] | None  # (place, message, hint)


def _compare_answers(data: DataSpec, chosen: _Side, rejected: _Side, is_of_means: bool) -> _Found:
    components = {field.name: field.component for field in data.fields}
    left, right = (
        [components.get(name) for name in sorted(one.fields - other.fields)]
        for one, other in ((chosen, rejected), (rejected, chosen))
    )
    if chosen.wire == rejected.wire or (left and left == right):
        return (
            rejected.span,
            "the chosen and the rejected answer are the same values",
            "read the column of the other answer",
        )
    columns = [{str((each or {}).get("column", "")) for each in side} for side in (left, right)]
    if any("rejected" in name for name in columns[0]) and any("chosen" in name for name in columns[1]):
        return chosen.span, f"its chosen answer is made from the column `{min(columns[0])}`", "exchange the answers"
    if chosen.nodes != rejected.nodes:
        name = min(rejected.nodes ^ chosen.nodes)
        hint = "call the node of the other answer again: {type: reuse, node: ..., input: ...}"
        return rejected.span, f"the two answers do not use the same parameters: only one uses those of `{name}`", hint
    if is_of_means and chosen.kind.partition(":")[0] in _LIKELIHOODS and chosen.kind.endswith(":sum"):
        node = chosen.wire.partition(":")[0]
        return (
            chosen.span,
            "it expects log-likelihoods per token, but these are sums over the tokens",
            f"write `{node}.mean`",
        )
    return None


def _compare_with_reference(policy: _Side, reference: _Side, references: Sequence[_Side]) -> _Found:
    if not reference.nodes:
        return None  # the data have its log-likelihoods
    if reference.nodes == policy.nodes:
        hint = "make the reference by a node of its own, with the same `weights` and `frozen: true`"
        return reference.span, "the reference is the policy itself", hint
    if any(other.nodes != reference.nodes for other in references):
        names = " and ".join(
            f"`{name}`" for name in sorted(frozenset[str]().union(*(each.nodes for each in references)))
        )
        return (
            reference.span,
            f"its two references do not use the same parameters: they use {names}",
            "use the frozen ones for both",
        )
    if reference.fields != policy.fields:
        return (
            reference.span,
            "policy and reference have not read the same answer",
            "the order is chosen, rejected, for both",
        )
    if reference.trained:
        name = min(reference.trained)
        return (
            reference.span,
            f"the reference `{name}` is trained too",
            f"freeze it in `parameters`: `{name}: {{frozen: true}}`",
        )
    return None


def _check_teacher(node: BlockNode, student: _Side, teacher: _Side) -> Iterator[Diagnostic]:
    if teacher.trained and student.trained:
        name = min(teacher.trained)
        message = f"`{node.path}` trains its teacher `{name}` too: both sides can agree on a constant"
        yield warning("G024", teacher.span, message, f"freeze it in `parameters`: `{name}: {{frozen: true}}`")
    elif teacher.trained:
        message = f"`{node.path}` trains its teacher, and not its student: they are swapped"
        yield warning("G024", teacher.span, message, "exchange `student` and `teacher`")


def _follow(scope: Scope, reader: BlockNode, port: str, parameters: Sequence[ParameterPlan]) -> _Side:
    """Return from what the input `port` of the node `reader` is computed: the fields, the nodes with parameters, and
    those of these nodes that are trained through this input. Only nodes with a parameter that is not frozen, and
    without a `detach` between them and the input, are trained through it."""
    wire, frame = reader.inputs[port], Frame(scope)
    found = list(walk(frame, [wire]))
    fields = frozenset(each.wire.partition(".")[0] for each in found if each.node is None)
    read = _owners(found) & {item.name.partition(".")[0] for item in parameters}
    trained = {item.name.partition(".")[0] for item in parameters if not item.frozen}
    moved = _owners(walk(frame, [wire], _follow_gradient)) & trained
    name, _, output = wire.partition(":")
    giver = frame.nodes.get(name)
    kind = f"{giver.block}:{output}" if isinstance(giver, BlockNode) else ""
    return _Side(wire, fields, read, moved, kind, reader.input_spans.get(port, reader.span))


def _owners(found: Iterable[Source]) -> frozenset[str]:
    """Return the names of the top-level nodes of the model that are or contain the nodes of `found`."""
    return frozenset(each.node.path.partition(".")[0] for each in found if each.node is not None)


def _follow_gradient(source: Source) -> Iterable[Wire]:
    stops = isinstance(source.node, ExpressionNode) and "detach" in source.node.expression.text
    return () if stops else source.inputs.values()
