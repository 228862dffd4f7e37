"""Messages on adapters of linear maps.

Each function builds the message of one diagnostic code. Its docstring is the manual page of that code.
"""

from __future__ import annotations

from collections.abc import Sequence

from declarative_train.core.amounts import list_quoted
from declarative_train.core.diagnostics.diagnostic import Diagnostic, error, warning
from declarative_train.core.span import Span


def adapts_nothing(span: Span, selector: str, met: Sequence[str], maps: Sequence[str]) -> Diagnostic:
    """adapts-nothing (U120)

    Finds: an `adapter` for parameters, none of which is the weight of a linear map.
    Why:   an adapter changes a linear layer or a projection of attention. It cannot be added to embeddings,
           convolutions and norms, so nothing would be trained.
    Diff:
        model:
          graph:
            norm: {type: layer_norm, input: pixels}
            hidden: {type: linear, out_features: 32, input: norm}
          parameters:
    -       norm: {adapter: {type: lora, rank: 4}}
    +       hidden: {adapter: {type: lora, rank: 4}}
    """
    hint = f"linear maps are {list_quoted(maps)}" if maps else "this model has no linear map"
    return error(
        "U120", span, f"`{selector}` matches {list_quoted(met)}, but none of them is the weight of a linear map", hint
    )


def adapted_and_trained(span: Span, name: str) -> Diagnostic:
    """adapted-and-trained (U121)

    Finds: a weight that has an adapter and is also set to `frozen: false`.
    Why:   an adapter is trained instead of its weight. If both were trained, a checkpoint of the adapter alone would
           lose what the weight learned.
    Diff:
        model:
    +     weights: {hidden: {path: hidden.safetensors}}
          parameters:
    -       hidden: {adapter: {type: lora, rank: 4}, frozen: false}
    +       hidden: {adapter: {type: lora, rank: 4}}
    +       logits: {frozen: false}
    """
    return error("U121", span, f"`{name}` has an adapter, but is trained as well", "remove one of the two")


def rank_is_full(span: Span, path: str, rank: int, shape: tuple[int, int]) -> Diagnostic:
    """rank-is-full (U122)

    Finds: an adapter whose rank is at least as large as the smaller dimension of its weight.
    Why:   such an adapter takes more memory than the weight, and can represent no more than training the weight itself.
           In the example, the weight of `logits` is 10 x 64: it is trained whole instead, and the larger layer gets the
           adapter.
    Diff:
        model:
    +     weights: {hidden: {path: hidden.safetensors}}
          parameters:
    -       logits: {adapter: {type: lora, rank: 64}}
    +       hidden: {adapter: {type: lora, rank: 4}}
    +       logits: {frozen: false}
    """
    message = f"the adapter of `{path}` has rank {rank}, which is too large for its weight of {shape[0]} x {shape[1]}"
    return warning("U122", span, message, f"a rank below {min(shape)}, or no adapter and `frozen: false`")


def adapted_and_tied(span: Span, name: str, other: str) -> Diagnostic:
    """adapted-and-tied (U123)

    Finds: an adapter whose selector matches only weights that are tied to other parameters.
    Why:   with an adapter, one of the two tied layers would compute with another weight than the other, so the adapter
           could not be merged into the shared weight. If a selector also matches other weights (for example all of a
           model with tied embeddings), only the tied weight is left out, as in PEFT.
    Diff:
        model:
    -     graph:
    -       first: {type: linear, out_features: 64, input: pixels}
    -       second: {type: linear, out_features: 64, input: first}
    -       hidden: {input: second}
    +     weights: {hidden: {path: hidden.safetensors}}
          parameters:
    -       second.weight: {tie: first.weight}
    -       second: {adapter: {type: lora, rank: 4}}
    +       hidden: {adapter: {type: lora, rank: 4}}
    +       logits: {frozen: false}
    """
    hint = "select linear maps that are not tied"
    return error("U123", span, f"`{name}` has an adapter, but is tied to `{other}`", hint)


def base_is_drawn(span: Span, names: Sequence[str], *, of_all: bool) -> Diagnostic:
    """base-is-drawn (U124)

    Finds: in a model with adapters, frozen parameters or adapted weights that start from random numbers, because no
           file fills them, or because `exclude` of `model.weights` leaves them out.
    Why:   frozen parameters keep their random values. An adapter only tunes a layer that is already trained; a new head
           must be trained itself.
    Diff:
        model:
    +     weights: {hidden: {path: hidden.safetensors}}
          parameters:
            hidden: {adapter: {type: lora, rank: 4}}
    +       logits: {frozen: false}
    """
    if of_all:
        message = "the frozen base of the adapters starts from random numbers"
        return warning("U124", span, message, "load trained weights with `model.weights`")
    message = f"{list_quoted(names)} start from random numbers and are frozen, as everything but adapters is"
    holder = names[0].rpartition(".")[0] or names[0]
    return warning("U124", span, message, f"to train it, add under `model.parameters`: `{holder}: {{frozen: false}}`")
