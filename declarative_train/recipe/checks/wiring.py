"""Messages about edges, ports and names.

Each function builds the message of one diagnostic code. Its docstring is the manual page of that code.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from declarative_train.core.amounts import format_count
from declarative_train.core.diagnostics.diagnostic import Basis, Diagnostic, Related, error, warning
from declarative_train.core.diagnostics.suggest import did_you_mean, nearest, suggest_fix
from declarative_train.core.span import Span


def unknown_edge(span: Span, name: str, known: Iterable[str], help: str | None = None) -> Diagnostic:
    """unknown-edge (W001)

    Finds: an input, an expression or an output that refers to no node or field.
    Why:   an edge starts at a node or a field. Inside a block, only the inputs and nodes of that block are visible.
    Diff:
        model:
          graph:
    -       hidden: {type: linear, out_features: 32, input: pixel}
    +       hidden: {type: linear, out_features: 32, input: pixels}
            logits: {type: linear, out_features: 10}
    """
    names, message = list(known), f"there is no node or field `{name}` here"
    if help is not None:
        return error("W001", span, message, help, rests_on="data.fields")
    rests_on: Basis | None = "data.fields" if nearest(name, names) is None else None  # else it is a misspelling
    fixes = suggest_fix(span, name, names)
    return error("W001", span, message, did_you_mean(name, names), fixes=fixes, rests_on=rests_on)


def unknown_port(span: Span, name: str, kind: str, known: Iterable[str]) -> Diagnostic:
    """unknown-port (W002)

    Finds: a name in `inputs` that is not an input port of the component.
    Why:   inputs are connected by name, so that a mask, for example, is not connected to another input.
    Diff:
        model:
          graph:
            hidden: {type: linear, out_features: 32, input: pixels}
    -       logits: {type: linear, out_features: 10, inputs: {y: act}}
    +       logits: {type: linear, out_features: 10, inputs: {x: act}}
    """
    names = list(known)
    fixes = suggest_fix(span, name, names)
    return error("W002", span, f"`{kind}` has no input `{name}`", did_you_mean(name, names), fixes=fixes)


def unknown_output(
    span: Span, message: str, known: Iterable[str], name: str = "", help: str | None = None
) -> Diagnostic:
    """unknown-output (W003)

    Finds: a reference to an output that the node does not have.
    Why:   only the outputs that a component declares can be read.
    Diff:
        model:
          graph:
            hidden: {type: linear, out_features: 32, input: pixels}
    -       logits: {type: linear, out_features: 10, input: act.memory}
    +       logits: {type: linear, out_features: 10, input: act}
    """
    # `span`: of the whole reference; `name` is its last part.
    names = list(known)
    at = Span(span.path, span.line, span.end_column - len(name), span.end_line, span.end_column)
    fixes = () if help else suggest_fix(at, name, names)
    return error("W003", span, message, help or did_you_mean(name, names), fixes=fixes)


def input_and_inputs(span: Span, other: Span) -> Diagnostic:
    """input-and-inputs (W004)

    Finds: `input` and `inputs` on one node.
    Why:   `input: a` is short for `inputs: [a]`; it is not clear which of the two applies.
    Diff:
        model:
          graph:
            hidden: {type: linear, out_features: 32, input: pixels}
    -       logits: {type: linear, out_features: 10, input: act, inputs: [act]}
    +       logits: {type: linear, out_features: 10, input: act}
    """
    related = (Related(other, "the other key"),)
    message = "a node has `input` or `inputs`, not both"
    return error("W004", span, message, "combine them in `inputs`", related)


def open_port(span: Span, message: str, help: str) -> Diagnostic:
    """open-port (W005)

    Finds: a required input that is not connected.
    Why:   by default, only the first input is connected: to the node above. The first node has no node above.
    Diff:
        model:
          graph:
    -       hidden: {type: bilinear, out_features: 32, input: pixels}
    +       hidden: {type: bilinear, out_features: 32, inputs: [pixels, pixels]}
            logits: {type: linear, out_features: 10}
    """
    return error("W005", span, message, help)


def cycle(span: Span, way: Sequence[str], places: Sequence[Span]) -> Diagnostic:
    """cycle (W006)

    Finds: nodes that depend on their own output, directly or through other nodes.
    Why:   a graph is computed once, from the fields to the outputs, so it cannot have cycles.
    Diff:
        model:
          graph:
    -       hidden: {type: linear, out_features: 32, input: logits}
    +       hidden: {type: linear, out_features: 32, input: pixels}
            logits: {type: linear, out_features: 10}
    """
    # `way`: from a node through the nodes that it reads back to it; `places`: where each reads the next.
    shown = " <- ".join(f"`{name}`" for name in way)
    steps = zip(places, way[:-1], way[1:], strict=True)
    related = tuple(Related(place, f"`{name}` reads `{read}`") for place, name, read in steps)
    message = f"nodes depend on each other: {shown}"
    return error("W006", span, message, "break the cycle at one of these inputs", related[1:])


def dead_node(span: Span, name: str, readers: str) -> Diagnostic:
    """dead-node (W007)

    Finds: a node whose result is not used.
    Why:   the node costs time without effect. Often another node reads the wrong name.
    Diff:
        model:
          graph:
            hidden: {type: linear, out_features: 32, input: pixels}
            logits: {type: linear, out_features: 10, input: act}
    -       spare:  {type: relu, input: hidden}
    """
    # `readers`: possible users (the objective, the outputs of a block).
    hint = f"use it in a node or in {readers}, or remove it"
    return error("W007", span, f"nothing uses the result of `{name}`", hint)


def unused_field(span: Span, name: str) -> Diagnostic:
    """unused-field (W008)

    Finds: a field of the data that neither the model nor the objective uses.
    Why:   the field would be read, transformed and moved to the device in every step.
    Diff:
        data:
    -     fields:
    -       spare: {columns: [p0], dtype: float32}
    +     shuffle: true
    """
    return warning("W008", span, f"nothing uses the field `{name}`", "remove it from `data.fields`, or use it")


def moved_default_wire(
    span: Span, name: str, before: str, before_at: Span | None, now: str, now_at: Span
) -> Diagnostic:
    """moved-default-wire (W009)

    Finds: a node without an explicit input that reads another node than in the base recipe, because the derived recipe
           adds or removes a node above it.
    Why:   by default a node reads the node above it, so the connection changes without being mentioned.
    Diff:
        # whole file
        extends: base.yaml
        model:
          graph:
            act: null
    +       logits: {input: hidden}
    """
    # `before_at`: the node in the base, if its position is known; `now_at`: the node that it reads now.
    there = () if before_at is None else (Related(before_at, f"it reads `{before}` in the base"),)
    related = (*there, Related(now_at, f"`{now}` is above it now"))
    message = f"`{name}` reads the node above it, which is `{before}` in the base but `{now}` here"
    return warning("W009", span, message, f"set it explicitly: `input: {now}`", related)


def name_clash(span: Span, name: str, what: str, other: Span | None) -> Diagnostic:
    """name-clash (W010)

    Finds: a node that has the name of a field, or, inside a block, of an input of the block.
    Why:   nodes, fields and inputs share one namespace, so that every reference is unambiguous.
    Diff:
        model:
          graph:
    -       pixels: {type: linear, out_features: 32, input: pixels}
    +       hidden: {type: linear, out_features: 32, input: pixels}
            logits: {type: linear, out_features: 10}
    """
    related = () if other is None else (Related(other, f"the {what}"),)
    return error("W010", span, f"the node `{name}` has the same name as a {what}", "rename the node", related)


def too_many_inputs(span: Span, kind: str, ports: Sequence[str]) -> Diagnostic:
    """too-many-inputs (W011)

    Finds: a list in `inputs` that is longer than the number of the component's inputs.
    Why:   the names in a list are connected to the inputs in order; the remaining ones would be ignored.
    Diff:
        model:
          graph:
            hidden: {type: linear, out_features: 32, input: pixels}
    -       logits: {type: linear, out_features: 10, inputs: [act, pixels]}
    +       logits: {type: linear, out_features: 10, inputs: [act]}
    """
    takes = f"takes {len(ports)}: {', '.join(ports)}" if ports else "has no inputs"
    return error("W011", span, f"too many inputs: `{kind}` {takes}", "`add` and `concat` join several tensors")


def open_input(span: Span, name: str, block: str, reader: str) -> Diagnostic:
    """open-input (W012)

    Finds: an optional input of a block that is not connected here, although a node inside the block requires it.
    Why:   an input of a block can only be omitted if it is optional for every node that reads it.
    Diff:
        model:
          blocks:
            gate:
              inputs: {x: required, mask: optional}
              graph:
                out: x * mask
              output: out
          graph:
    -       hidden: {type: gate, input: pixels}
    +       hidden: {type: gate, inputs: {x: pixels, mask: pixels}}
            logits: {type: linear, out_features: 10}
    """
    message = f"`{reader}` needs `{name}`, an optional input of `{block}` that is not connected here"
    return error("W012", span, message, f"make `{name}` required in `{block}`, or connect it where the block is used")


def unknown_copy(span: Span, name: str, num_copies: int | None) -> Diagnostic:
    """unknown-copy (W013)

    Finds: a reference to a copy that does not exist: the node has no `repeat`, or has fewer copies.
    Why:   copies are counted from 0, so the last one of 4 copies is 3.
    Diff:
        model:
          graph:
            hidden: {type: linear, out_features: 64, repeat: 2, input: pixels}
    -       act: {type: relu, input: hidden.2}
    +       act: {type: relu, input: hidden.1}
    """
    if num_copies is None:
        return error("W013", span, f"`{name}` is not repeated and has no numbered copies", f"write `{name}`")
    return error(
        "W013", span, f"`{name}` has {format_count(num_copies, 'copy')}, `{name}.0` to `{name}.{num_copies - 1}`"
    )


def bad_reference(span: Span, found: str, help: str | None = None) -> Diagnostic:
    """bad-reference (W014)

    Finds: an `input` or an entry of `inputs` that is an expression, a number or a mapping instead of a name.
    Why:   inputs contain only names, so that a graph can be drawn without knowing its components.
    Diff:
        model:
          graph:
            hidden: {type: linear, out_features: 32, input: pixels}
    -       act: {type: relu, input: hidden * 2}
    +       doubled: hidden * 2
    +       act: {type: relu, input: doubled}
    """
    wanted = "`node`, `node.output`, `node.3` (a copy) or `node.3.output`"
    return error("W014", span, f"{found} is not a reference", help or f"expected {wanted}")


def unused_param(span: Span, name: str, block: str) -> Diagnostic:
    """unused-param (W015)

    Finds: a param of a block that no template of the block reads.
    Why:   setting the param has no effect. Often a fixed number in the block should be replaced by the param.
    Diff:
        model:
          blocks:
    -       layer: {params: {width: 64}, inputs: [x], graph: {out: {type: linear, out_features: 64}}, output: out}
    +       layer:
    +         params: {width: 64}
    +         inputs: [x]
    +         graph: {out: {type: linear, out_features: "{{ params.width }}"}}
    +         output: out
          graph:
            hidden: {type: layer, width: 32, input: pixels}
    """
    reason = f"the block `{block}` never reads its param `{name}`"
    return warning("W015", span, reason, f"use `{{{{ params.{name} }}}}` in the block, or remove the param")


def unused_input(span: Span, name: str, block: str) -> Diagnostic:
    """unused-input (W016)

    Finds: an input of a block that none of its nodes reads.
    Why:   the tensor that is connected to it has no effect. If it is a mask, for example, the model trains on padding.
    Diff:
        model:
          blocks:
    -       layer: {inputs: [x, mask], graph: {out: {type: linear, out_features: 64, input: x}}, output: out}
    +       layer: {inputs: [x], graph: {out: {type: linear, out_features: 64}}, output: out}
          graph:
    -       hidden: {type: layer, inputs: [pixels, pixels]}
    +       hidden: {type: layer, input: pixels}
    """
    return warning("W016", span, f"no node of the block `{block}` reads its input `{name}`", "read it, or remove it")
