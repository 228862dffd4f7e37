"""Messages on nodes, blocks and their parameters.

Each function is one message; its docstring is the manual page of its code.
"""

from __future__ import annotations

from collections.abc import Sequence
from keyword import iskeyword

from declarative_train.core.diagnostics.diagnostic import Diagnostic, error
from declarative_train.core.span import Span


def shadowed_type(span: Span, name: str, what: str, there: str) -> Diagnostic:
    """shadowed-type (B001)

    Finds: a block or a plugin's layer that has the name of a type that is already there.
    Why:   the same recipe would mean something else with and without it; a shipped type is never replaced.
    Diff:
        model:
          blocks:
    -       linear:
    +       wide:
              params: {width: 32}
              inputs: [x]
              graph:
    -           inner: {type: relu}
    +           inner: {type: linear, out_features: "{{ params.width }}"}
              output: inner
          graph:
    -       hidden: {type: linear, input: pixels}
    +       hidden: {type: wide, input: pixels}
            logits: {type: linear, out_features: 10}
    """
    # `what` is declared (block, layer), `there` is what has the name.
    return error("B001", span, f"the {what} `{name}` has the name of {there}", "give it another name")


def reserved_name(span: Span, name: str, what: str) -> Diagnostic:
    """reserved-name (B002)

    Finds: a param, a port or a plugin's argument named `type`, `input`, `inputs`, `params`, `repeat` or
           `when`.
    Why:   on a node these words belong to the language; the component could never be given its own.
    Diff:
        model:
          blocks:
            wide:
    -         params: {repeat: 32}
    +         params: {width: 32}
              inputs: [x]
              graph:
    -           inner: {type: linear, out_features: "{{ params.repeat }}"}
    +           inner: {type: linear, out_features: "{{ params.width }}"}
              output: inner
          graph:
            hidden: {type: wide, input: pixels}
            logits: {type: linear, out_features: 10}
    """
    wanted = "type, input, inputs, repeat and when are words of the language on every node; choose another name"
    return error("B002", span, f"{what} is named `{name}`, which is a reserved word", wanted)


def bad_name(span: Span, name: str, what: str) -> Diagnostic:
    """bad-name (B003)

    Finds: a node, block, param, input or output whose name is not `[a-z][a-z0-9_]*`.
    Why:   digits are free for copies, dots for paths, and every name must be legal in an expression.
    Diff:
        model:
          graph:
    -       Hidden-1: {type: linear, out_features: 32, input: hidden}
    +       hidden_1: {type: linear, out_features: 32, input: hidden}
    +       act: {input: hidden_1}
    """
    kept = (c if c.isascii() and c.isalnum() else "_" for c in name.lower())
    close = "".join(kept).lstrip("0123456789_")
    close += "_node" * iskeyword(close)  # which G006 would refuse
    wanted = "names are lower-case letters, digits and `_`, a letter first" + (f": `{close}`" if close else "")
    return error("B003", span, f"{what} cannot be called `{name}`", wanted)


def recursive_block(span: Span, chain: Sequence[str]) -> Diagnostic:
    """recursive-block (B004)

    Finds: a block that holds itself, directly or through other blocks.
    Why:   a model is opened before it runs; one that holds itself has no end.
    Diff:
        model:
          blocks:
            wide:
              params: {width: 32}
              inputs: [x]
              graph:
    -           inner: {type: wide}
    +           inner: {type: linear, out_features: "{{ params.width }}"}
              output: inner
          graph:
            hidden: {type: wide, input: pixels}
            logits: {type: linear, out_features: 10}
    """
    # `chain`: the blocks from the one that is met again, to itself.
    way = " -> ".join(f"`{name}`" for name in chain)
    return error("B004", span, f"the block `{chain[-1]}` holds itself: {way}", "`repeat` makes a chain of copies")


def bad_repeat(span: Span, found: str, help: str | None = None) -> Diagnostic:
    """bad-repeat (B005)

    Finds: a `repeat` that is not a whole number of copies, 1 or more.
    Why:   no copies would leave nothing to read; `when: false` switches a node off.
    Diff:
        model:
          graph:
    -       hidden: {type: linear, out_features: 64, repeat: 0, input: pixels}
    +       hidden: {type: linear, out_features: 64, repeat: 2, input: pixels}
            logits: {type: linear, out_features: 10}
    """
    return error("B005", span, f"`repeat` is {found}; it is a number of copies, 1 or more", help)


_WORDS = {"yes": "true", "on": "true", "no": "false", "off": "false"}  # of YAML 1.1


def bad_when(span: Span, found: str, value: object) -> Diagnostic:
    """bad-when (B006)

    Finds: a `when` that is neither true nor false.
    Why:   a text such as `no` would count as true in most languages, and be meant as false.
    Diff:
        model:
          graph:
            hidden: {type: linear, out_features: 32, input: pixels}
    -       logits: {type: linear, out_features: 10, when: no}
    +       logits: {type: linear, out_features: 10, when: true}
    """
    word = _WORDS.get(value.lower()) if isinstance(value, str) else None
    hint = f"write `{word}`" if word else "a template gives one: `{{ params.deep }}`"
    return error("B006", span, f"`when` is {found}; it is `true` or `false`", hint)


def bad_reuse(span: Span, message: str, help: str | None = None) -> Diagnostic:
    """bad-reuse (B007)

    Finds: a `reuse` of something that cannot be called again.
    Why:   `reuse` calls a node of the same graph again with the same parameters, so there must be such a node.
    Diff:
        model:
          graph:
    -       hidden: {type: linear, out_features: 32, input: pixels}
    -       again: {type: reuse, node: hiden}
    -       logits: {type: linear, out_features: 10}
    +       hidden: {type: linear, out_features: 64, input: pixels}
    +       again: {type: reuse, node: hidden, input: pixels}
    +       both: hidden + again
    +       act: {input: both}
    """
    return error("B007", span, message, help)


def model_too_large(span: Span, limit: str) -> Diagnostic:
    """model-too-large (B008)

    Finds: a model that opens into more nodes than a graph can reasonably have.
    Why:   a mistyped `repeat`, or blocks that hold several of each other, grow without end.
    Diff:
        model:
          graph:
    -       hidden: {type: linear, out_features: 64, repeat: 1000000000, input: pixels}
    +       hidden: {type: linear, out_features: 64, repeat: 10, input: pixels}
            logits: {type: linear, out_features: 10}
    """
    # `limit`: what it goes beyond, in words.
    return error("B008", span, f"the model opens into {limit} here", "look at the numbers of copies")


def bad_param(span: Span, name: str, problem: str, help: str | None = None) -> Diagnostic:
    """bad-param (B009)

    Finds: a param of a block whose declaration cannot be understood.
    Why:   the default gives a param its type; without one the type must be said.
    Diff:
        model:
          blocks:
            wide:
    -         params: {width: {min: 1}}
    +         params: {width: {type: int, min: 1, default: 32}}
              inputs: [x]
              graph:
                inner: {type: linear, out_features: "{{ params.width }}"}
              output: inner
          graph:
            hidden: {type: wide, input: pixels}
            logits: {type: linear, out_features: 10}
    """
    wanted = "write a default (`width: 64`), or `{type: int, min: 1}` where there is none"
    return error("B009", span, f"the param `{name}` {problem}", help or wanted)


def bad_node(span: Span, name: str, found: str, help: str | None = None) -> Diagnostic:
    """bad-node (B010)

    Finds: a node that is neither a component (a mapping with `type`) nor an expression (text).
    Why:   a list or a number cannot be computed.
    Diff:
        model:
          graph:
            hidden: {type: linear, out_features: 32, input: pixels}
    -       scaled: 3
    -       logits: {type: linear, out_features: 10}
    +       scaled: hidden * 3
    +       act: {input: scaled}
    """
    wanted = "a mapping such as `{type: relu}`, or an expression"
    return error("B010", span, f"the node `{name}` is {found}; it is {wanted}", help)


def published_model(span: Span, problem: str, hint: str | None) -> Diagnostic:
    """published-model (B011)

    Finds: `from`, or weights with `format: huggingface`, that name no published model which is here and which the block
           can be; `from` of an adapter that names no folder of PEFT's which can be loaded.
    Why:   sizes and names of tensors come from its files; nothing is fetched from the network.
    Diff:
        model:
          graph:
    -       flat: {type: llama, from: no_such_model, input: digit}
    -       hidden: {input: flat}
    +       hidden: {type: linear, out_features: 32, input: pixels}
    +       logits: {type: linear, out_features: 10}
    """
    return error("B011", span, problem, hint)
