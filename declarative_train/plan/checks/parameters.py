"""Messages on settings of parameters, and on start values from files.

Each function builds the message of one diagnostic code. Its docstring is the manual page of that code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from declarative_train.components.component import ShapeError
from declarative_train.core.amounts import format_count, list_names, list_quoted
from declarative_train.core.diagnostics.diagnostic import Diagnostic, error, warning
from declarative_train.core.diagnostics.suggest import did_you_mean, hint_on_path, nearest, suggest_fix
from declarative_train.core.span import Span
from declarative_train.files.open_files import format_path


def init_does_not_fit(span: Span, parameter: str, shape_error: ShapeError) -> Diagnostic:
    """init-does-not-fit (U101)

    Finds: an `init` that cannot fill a parameter of this shape.
    Why:   some initialisers need the numbers of inputs and outputs of a matrix, which a bias does not have.
    Diff:
        model:
          parameters:
    -       hidden: {init: {type: orthogonal}}
    +       hidden.weight: {init: {type: orthogonal}}
    """
    return error("U101", span, f"`{parameter}`: {shape_error.message}", shape_error.help)


def tie_does_not_fit(
    span: Span,
    name: str,
    shape: tuple[int, ...],
    tie: str,
    shapes: Mapping[str, tuple[int, ...]],
    *,
    in_circle: bool = False,
) -> Diagnostic:
    """tie-does-not-fit (U102)

    Finds: a `tie` to a parameter that does not exist or has another shape, or ties that form a circle.
    Why:   tied parameters are one tensor that is used in two places.
    Diff:
        model:
    +     graph:
    +       first: {type: linear, out_features: 64, input: pixels}
    +       second: {type: linear, out_features: 64, input: first}
    +       hidden: {input: second}
          parameters:
    -       logits.weight: {tie: hiden.weight}
    +       second.weight: {tie: first.weight}
    """
    if in_circle:
        return error(
            "U102", span, f"`{name}` is tied to `{tie}`, which leads back to itself", "tie the others to one of them"
        )
    if tie not in shapes:
        message, fixes = f"`{name}` is tied to `{tie}`, which does not exist", suggest_fix(span, tie, shapes)
        return error("U102", span, message, did_you_mean(tie, shapes), fixes=fixes)
    fitting = [other for other, size in shapes.items() if size == shape and other != name]
    listed = f"of that shape: {', '.join(fitting[:6])}" if fitting else "no other parameter has that shape"
    return error(
        "U102", span, f"`{name}` has shape {_format_shape(shape)}, `{tie}` has {_format_shape(shapes[tie])}", listed
    )


def _format_shape(shape: tuple[int, ...]) -> str:
    return f"({', '.join(map(str, shape))})"


def optimizer_does_not_fit(span: Span, shape_error: ShapeError) -> Diagnostic:
    """optimizer-does-not-fit (U103)

    Finds: an optimizer that cannot update some of its parameters, such as muon with a bias.
    Why:   torch raises an error for such parameters when a rank makes its optimizer.
    Diff:
        training:
    -     optimizer: {type: muon, lr: 0.01}
    +     optimizer: {type: adamw, lr: 0.001}
    """
    grade = warning if shape_error.is_warning else error
    return grade("U103", span, shape_error.message, shape_error.help)


def nothing_trains(span: Span) -> Diagnostic:
    """nothing-trains (U104)

    Finds: a model all of whose parameters are frozen.
    Why:   there is nothing to train; usually a selector matches more than was intended.
    Diff:
        model:
          parameters:
    -       "*": {frozen: true}
    +       hidden: {frozen: true}
    """
    return error("U104", span, "every parameter is frozen: there is nothing to train", "unfreeze some of them")


def weights_not_found(span: Span, path: str) -> Diagnostic:
    """weights-not-found (U105)

    Finds: a file of initial values that does not exist.
    Why:   every rank would fail before its first step.
    Diff:
        model:
    -     weights: {hidden: {path: no_such_file.safetensors}}
    +     graph:
    +       hidden: {type: linear, out_features: 32, input: pixels}
    +       logits: {type: linear, out_features: 10}
    """
    return error("U105", span, f"there is no file or run at `{format_path(path)}`", hint_on_path(span, path))


def weights_do_not_fit(span: Span, path: str, problem: str, hint: str | None) -> Diagnostic:
    """weights-do-not-fit (U106)

    Finds: a file of initial values whose names or shapes differ from those of the parameters that it should fill.
    Why:   every rank would fail before its first step. `rename: {"head.": drop}` leaves out tensors that the model does
           not have.
    Diff:
        model:
    -     weights: {hidden: {path: data/backbone.safetensors}}
    +     graph:
    +       hidden: {type: linear, out_features: 8, input: pixels}
    +     weights: {hidden: {path: data/backbone.safetensors, rename: {"head.": drop}}}
    """
    return error("U106", span, f"{format_path(path)} {problem}", hint)


def frozen_is_drawn(span: Span, names: Sequence[str]) -> Diagnostic:
    """frozen-is-drawn (U111)

    Finds: frozen parameters that start from random numbers: no file of `model.weights` fills them, and they have no
           `init`.
    Why:   they would keep these numbers. A teacher without weights teaches noise, and a frozen backbone without weights
           has learned nothing.
    Diff:
        model:
    +     weights: {hidden: {path: hidden.safetensors}}
          parameters:
            hidden: {frozen: true}
    """
    more = f" and {len(names) - 2} more" if len(names) > 2 else ""
    shown = ", ".join(f"`{name}`" for name in names[:2])
    message = f"{shown}{more} are frozen, and keep the random numbers that they start from"
    hint = "load trained ones with `model.weights`; if random ones are meant, set `init`"
    return warning("U111", span, message, hint)


def new_tokens_are_frozen(span: Span, names: Sequence[str]) -> Diagnostic:
    """new-tokens-are-frozen (U113)

    Finds: a published model with adapters to which tokens are added, while its embedding is frozen.
    Why:   an adapter does not train the embedding's rows for the new tokens. All new tokens keep the same value, the
           mean of the other rows, so the model cannot tell them apart.
    Diff:
        model:
          graph:
            tokens: int(pixels[:, :6])
            text: {type: bert, from: tiny_bert, vocabulary: 18, input: tokens}
            hidden: {input: text}
          weights: {text: {path: tiny_bert, format: huggingface}}
          parameters:
            up: {adapter: {type: lora, rank: 2}}
    +       embed: {frozen: false}
    """
    what = f"{list_quoted(names)} {'is' if len(names) == 1 else 'are'} frozen"
    last = names[0].rpartition(".")[0].rpartition(".")[2]
    hint = f"train the whole table next to the adapters: `{last}: {{frozen: false}}` under `model.parameters`"
    return warning("U113", span, f"{what}, so that the rows of the tokens that were added are never trained", hint)


def head_is_drawn(span: Span, node: str, sizes: Mapping[str, int]) -> Diagnostic:
    """head-is-drawn (U110)

    Finds: a published model without the head that the recipe asks for: the head starts from random numbers.
    Why:   this is normal for a new task. It is reported because a typo in `head`, or the wrong file, looks the same.
    Diff:
        model:
          graph:
            tokens: int(pixels[:, :6])
    -       text: {type: bert, from: tiny_bert, head: sequence, out_features: 8, input: tokens}
    +       text: {type: bert, from: tiny_bert, input: tokens}
            hidden: {input: text}
          weights: {text: {path: tiny_bert, format: huggingface}}
    """
    names = [name.removeprefix(f"{node}.") for name in sizes]
    total = f"{format_count(len(names), 'parameter')} ({format_count(sum(sizes.values()), 'number')})"
    message = (
        f"the published model has no such head for `{node}`: {total} start from random numbers: {list_names(names)}"
    )
    return warning(
        "U110",
        span,
        message,
        "this is normal for a new task; confirm it with `# dtrain: ignore[U110]` at the end of this line",
    )


def describe_unmatched_rename(prefix: str, path: str, names: Sequence[str]) -> tuple[str, str]:
    """Return (problem, hint) for an entry of `rename` that matches no tensor of the file.

    `prefix`: key of the entry. `path`: path of the file. `names`: names of the tensors in the file.
    """
    heads = list(dict.fromkeys(name.rpartition(".")[0] + "." for name in names if "." in name))
    close = nearest(prefix, heads)
    listed = ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")
    hint = f"did you mean {close}?" if close else f"its names are {listed}" if names else "the file is empty"
    how = "matches" if "*" in prefix or "{" in prefix else "starts with"
    return f"no name in {path} {how} `{prefix}`: nothing is renamed", hint


def rename_matches_nothing(span: Span, prefix: str, path: str, names: Sequence[str]) -> Diagnostic:
    """rename-matches-nothing (U107)

    Finds: an entry of `rename` that matches no name in the file of initial values, as a beginning or as a selector.
    Why:   the entry has no effect: its name has a typo, or it was written for another file.
    Diff:
        model:
    -     weights: {hidden: {path: hidden.safetensors, rename: {"encoder.": ""}}}
    +     weights: {hidden: {path: hidden.safetensors}}
    """
    return error("U107", span, *describe_unmatched_rename(prefix, path, names))


def tied_embedding_start(span: Span, table: str, head: str, std: float, width: int) -> Diagnostic:
    """tied-embedding-start (U108)

    Finds: an embedding that is tied to the output layer and starts with values that are large for an output layer, such
           as N(0, 1), the default of embeddings.
    Why:   N(0, 1) makes logits as large as the square root of the width. Training then starts with a loss of tens or
           hundreds, far above ln(number of classes), and needs many steps to reduce it.
    Diff:
        model:
          graph:
            embed: {type: embedding, num_embeddings: 10, embedding_dim: 64, input: digit}
            both: embed + hidden
            act: {type: relu, input: both}
          parameters:
    +       embed.weight: {init: {type: normal, std: 0.02}}
            logits.weight: {tie: embed.weight}
    """
    message = (
        f"`{head}` is tied to the embedding `{table}`, which starts with a standard deviation of {std:g}: with a width "
        f"of {width} the logits start at about {std * width**0.5:.0f}, and the loss far above that of random guessing"
    )
    return warning("U108", span, message, f"under `model.parameters`: `{table}: {{init: {{type: normal, std: 0.02}}}}`")


def muon_on_embedding(span: Span, names: Sequence[str]) -> Diagnostic:
    """muon-on-embedding (U109)

    Finds: an embedding that `muon` updates.
    Why:   only the rows of tokens in the batch have a gradient, but muon makes the whole update orthogonal, so it moves
           all other rows as much. The authors of muon use another optimizer for embeddings.
    Diff:
        model:
          graph:
            embed: {type: embedding, num_embeddings: 10, embedding_dim: 64, input: digit}
            both: embed + hidden
            act: {type: relu, input: both}
          parameters:
            bias: {optimizer: {type: adamw, lr: 1e-3}}
    +       embed: {optimizer: {type: adamw, lr: 1e-3}}
        training:
          optimizer: {type: muon, lr: 0.02}
    """
    # One diagnostic for all, at the first of them.
    more = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
    message = f"`muon` is for the matrices of hidden layers, and `{names[0]}`{more} is an embedding"
    hint = f"under `model.parameters`: `{names[0]}: {{optimizer: {{type: adamw, lr: 3e-4}}}}`"
    return warning("U109", span, message, hint)


def unaligned_classes(span: Span, name: str, number: int, precision: str) -> Diagnostic:
    """unaligned-classes (U114)

    Finds: a linear layer with thousands of outputs whose number is not a multiple of 8, computed in bf16 or fp16 on a
           GPU.
    Why:   tensor cores cannot write rows that begin at unaligned addresses, so much slower code computes the layer. For
           GPT-2's 50,257 tokens this layer's forward took 13.2 ms on an H200, and 1.8 ms with 50,304 (GPUs, in
           docs/performance.md). The additional classes are never a target, and training lowers their scores.
    Diff:
        data:
          fields:
            digit: {type: category, column: label, num_classes: 50257}
        model:
          graph:
    -       logits: {type: linear, out_features: 50257, input: act}
    +       logits: {type: linear, out_features: 50304, input: act}
        training:
          precision: bf16
        layout:
          hardware: h100-sxm
    """
    slow = f"on a GPU its products in {precision} are several times slower"
    hint = f"{-(-number // 64) * 64:,} outputs, a multiple of 64; no sample uses the new ones"
    return warning("U114", span, f"`{name}` has {number:,} outputs, not a multiple of 8: {slow}", hint)


def muon_on_experts(span: Span, names: Sequence[str]) -> Diagnostic:
    """muon-on-experts (U112)

    Finds: experts of a layer `moe` that `muon` updates.
    Why:   all experts of a layer are stacked in one parameter. muon would make this parameter orthogonal as a whole,
           instead of the matrix of each expert.
    Diff:
        model:
          graph:
            act: {type: moe, experts: 4, top_k: 2, hidden: 32}
          parameters:
            bias: {optimizer: {type: adamw, lr: 1e-3}}
    +       experts: {optimizer: {type: adamw, lr: 1e-3}}
        training:
          optimizer: {type: muon, lr: 0.02}
    """
    more = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
    message = f"`muon` updates one matrix at a time, and `{names[0]}`{more} holds one for each expert"
    hint = "under `model.parameters`: `experts: {optimizer: {type: adamw, lr: 3e-4}}`"
    return error("U112", span, message, hint)


def zeros_everywhere(span: Span, num_matrices: int) -> Diagnostic:
    """zeros-everywhere (G021)

    Finds: a model of several layers whose matrices all start at zero.
    Why:   each layer passes zeros to the next layer and a gradient of zero to the previous one. Only the last bias
           learns, and the model gives the same output for every sample. A single layer may start at zero.
    Diff:
        model:
          parameters:
    -       "*": {init: {type: zeros}}
    +       "*": {init: {type: normal, std: 0.02}}
    """
    # A warning, not an error: parallel layers whose outputs are added up do learn.
    message = f"all {num_matrices} matrices start at zero: no gradient passes from one layer to another"
    hint = "remove `init`, or initialise only the last layer, or the biases (`*.bias`), at zero"
    return warning("G021", span, message, hint)
