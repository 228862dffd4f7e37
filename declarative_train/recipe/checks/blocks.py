"""Messages about nodes, blocks and their parameters.

Each function builds the message of one diagnostic code. Its docstring is the manual page of that code.
"""

from __future__ import annotations

from collections.abc import Sequence
from keyword import iskeyword

from declarative_train.core.diagnostics.diagnostic import Diagnostic, error
from declarative_train.core.span import Span


def shadowed_type(span: Span, name: str, what: str, owner: str) -> Diagnostic:
    """shadowed-type (B001)

    Finds: a block, or a layer of a plugin, that has the name of an existing type.
    Why:   the name would refer to two types; types of dtrain cannot be replaced.
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
    # `what` is declared (block, layer), `owner` is the existing type of that name, in words.
    return error("B001", span, f"the {what} `{name}` has the same name as {owner}", "choose another name")


def reserved_name(span: Span, name: str, what: str) -> Diagnostic:
    """reserved-name (B002)

    Finds: a param or port of a block, or an argument of a plugin's class, that is named `type`, `input`, `inputs`,
           `params`, `repeat` or `when`.
    Why:   these words are keys of every node, so the param, port or argument could never be set.
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
    wanted = "type, input, inputs, repeat and when are keys of every node; choose another name"
    return error("B002", span, f"{what} is named `{name}`, which is reserved", wanted)


def bad_name(span: Span, name: str, what: str) -> Diagnostic:
    """bad-name (B003)

    Finds: a node, block, param, input, output or source of a mixture whose name is not `[a-z][a-z0-9_]*`.
    Why:   in a path such as `layer.2.out`, dots separate names and numbers count copies; and every name must be valid
           in an expression.
    Diff:
        model:
          graph:
    -       Hidden-1: {type: linear, out_features: 32, input: hidden}
    +       hidden_1: {type: linear, out_features: 32, input: hidden}
    +       act: {input: hidden_1}
    """
    kept = (c if c.isascii() and c.isalnum() else "_" for c in name.lower())
    close = "".join(kept).lstrip("0123456789_")
    close += "_node" * iskeyword(close)  # G006 rejects these
    wanted = "a name consists of lower-case letters, digits and `_`, and starts with a letter" + (
        f": `{close}`" if close else ""
    )
    return error("B003", span, f"{what} cannot be named `{name}`", wanted)


def recursive_block(span: Span, chain: Sequence[str]) -> Diagnostic:
    """recursive-block (B004)

    Finds: a block that contains itself, directly or through other blocks.
    Why:   a block is replaced by its nodes before the model is built; a block that contains itself would never be
           finished.
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
    # `chain`: blocks from the first occurrence of the repeated one to its second.
    way = " -> ".join(f"`{name}`" for name in chain)
    return error("B004", span, f"the block `{chain[-1]}` contains itself: {way}", "use `repeat` for a chain of copies")


def bad_repeat(span: Span, found: str, help: str | None = None) -> Diagnostic:
    """bad-repeat (B005)

    Finds: a `repeat` that is not a whole number of copies, 1 or more.
    Why:   with 0 copies there would be no output; `when: false` disables a node.
    Diff:
        model:
          graph:
    -       hidden: {type: linear, out_features: 64, repeat: 0, input: pixels}
    +       hidden: {type: linear, out_features: 64, repeat: 2, input: pixels}
            logits: {type: linear, out_features: 10}
    """
    return error("B005", span, f"`repeat` is {found}, expected a number of copies, 1 or more", help)


_WORDS = {"yes": "true", "on": "true", "no": "false", "off": "false"}  # of YAML 1.1


def bad_when(span: Span, found: str, value: object) -> Diagnostic:
    """bad-when (B006)

    Finds: a `when` that is neither true nor false.
    Why:   text such as `no` is probably meant as false, but a text that is not empty is true in most languages.
    Diff:
        model:
          graph:
            hidden: {type: linear, out_features: 32, input: pixels}
    -       logits: {type: linear, out_features: 10, when: no}
    +       logits: {type: linear, out_features: 10, when: true}
    """
    word = _WORDS.get(value.lower()) if isinstance(value, str) else None
    hint = f"write `{word}`" if word else "a template can compute it: `{{ params.deep }}`"
    return error("B006", span, f"`when` is {found}, expected `true` or `false`", hint)


def bad_reuse(span: Span, message: str, help: str | None = None) -> Diagnostic:
    """bad-reuse (B007)

    Finds: a `reuse` whose `node` cannot be called again: it does not exist in this graph, is an expression, is a whole
           chain of copies (`repeat`), or is a block of which it connects other inputs than the first call.
    Why:   `reuse` calls one layer or block of the same graph a second time, with the same parameters.
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

    Finds: a model that has more nodes than the limit after its blocks and repeats are expanded.
    Why:   the cause is usually a mistyped `repeat`, or blocks that contain several other blocks at each level.
    Diff:
        model:
          graph:
    -       hidden: {type: linear, out_features: 64, repeat: 1000000000, input: pixels}
    +       hidden: {type: linear, out_features: 64, repeat: 10, input: pixels}
            logits: {type: linear, out_features: 10}
    """
    # `limit`: the limit that is exceeded, in words.
    return error("B008", span, f"the model expands to {limit} here", "check the numbers of copies")


def bad_param(span: Span, name: str, problem: str, help: str | None = None) -> Diagnostic:
    """bad-param (B009)

    Finds: a param of a block whose declaration is not valid.
    Why:   a param has the type of its default value; without a default, the type must be given.
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
    wanted = "write a default (`width: 64`), or `{type: int, min: 1}` without a default"
    return error("B009", span, f"the param `{name}` {problem}", help or wanted)


def bad_node(span: Span, name: str, found: str, help: str | None = None) -> Diagnostic:
    """bad-node (B010)

    Finds: a node that is neither a component (a mapping with `type`) nor an expression (text).
    Why:   only components and expressions can be computed.
    Diff:
        model:
          graph:
            hidden: {type: linear, out_features: 32, input: pixels}
    -       scaled: 3
    -       logits: {type: linear, out_features: 10}
    +       scaled: hidden * 3
    +       act: {input: scaled}
    """
    wanted = "a mapping such as `{type: relu}` or an expression"
    return error("B010", span, f"the node `{name}` is {found}, expected {wanted}", help)


def published_model(span: Span, problem: str, hint: str | None) -> Diagnostic:
    """published-model (B011)

    Finds: a published model that cannot be used: `from` of a node, or `format: huggingface` of weights, names a model
           that is not on this machine or that the block does not support; or `from` of an adapter names a PEFT folder
           that cannot be loaded.
    Why:   the sizes and names of the tensors are read from the model's files, and dtrain downloads nothing.
    Diff:
        model:
          graph:
    -       flat: {type: llama, from: no_such_model, input: digit}
    -       hidden: {input: flat}
    +       hidden: {type: linear, out_features: 32, input: pixels}
    +       logits: {type: linear, out_features: 10}
    """
    return error("B011", span, problem, hint)
