"""Messages on `storage`, the number format of frozen weights.

Each function builds the message of one diagnostic code. Its docstring is the manual page of that code.
"""

from __future__ import annotations

from collections.abc import Sequence

from declarative_train.core.amounts import list_quoted
from declarative_train.core.diagnostics.diagnostic import Diagnostic, error
from declarative_train.core.span import Span


def stored_and_trained(span: Span, name: str, storage: str) -> Diagnostic:
    """stored-and-trained (U125)

    Finds: a `storage` for a weight that is trained.
    Why:   an optimizer changes weights by less than the resolution of 16, 8 or 4 bits, so its updates would be rounded
           away. Trained weights are held in float32.
    Diff:
        model:
          parameters:
    -       hidden: {storage: nf4}
    +       hidden: {storage: nf4, frozen: true}
    """
    return error(
        "U125",
        span,
        f"`{name}` is trained, so it cannot be stored in {storage}",
        "add `frozen: true`, or train an `adapter` instead",
    )


def stores_nothing(span: Span, selector: str, met: Sequence[str], tables: Sequence[str]) -> Diagnostic:
    """stores-nothing (U126)

    Finds: a `storage` for parameters, none of which is the weight of a linear map or an embedding.
    Why:   no memory would be saved. Norms, biases and convolutions keep the precision of their computation, and so do
           all parameters of library models and plugins, whose code may read them directly.
    Diff:
        model:
          graph:
            norm: {type: layer_norm, input: pixels}
            hidden: {type: linear, out_features: 32, input: norm}
          parameters:
    -       norm: {frozen: true, storage: int8}
    +       hidden: {frozen: true, storage: int8}
    """
    hint = f"select some of {list_quoted(tables)}" if tables else "remove it: this model has no such weight"
    message = f"`{selector}` matches {list_quoted(met)}, but none of them can be stored in another number format"
    return error("U126", span, message, hint)


def stored_and_tied(span: Span, name: str, storage: str, other: str) -> Diagnostic:
    """stored-and-tied (U127)

    Finds: two parameters that share their values, but have different settings of `storage`.
    Why:   they are one tensor, which has one format.
    Diff:
        model:
          graph:
            first: {type: linear, out_features: 64, input: pixels}
            second: {type: linear, out_features: 64, input: first}
            hidden: {input: second}
          parameters:
            second.weight: {tie: first.weight}
            first: {frozen: true, storage: nf4}
    +       second: {frozen: true, storage: nf4}
    """
    message = f"`{name}` is stored in {storage}, but shares its values with `{other}`, which is not"
    return error("U127", span, message, f"set the same `storage` for `{other}`, or for neither")
