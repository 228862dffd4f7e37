"""Messages about padding that a model reads as text."""

from __future__ import annotations

from declarative_train.core.diagnostics.diagnostic import Diagnostic, warning
from declarative_train.core.span import Span


def padding_is_read(span: Span, node: str, field: str, ports: tuple[str, str]) -> Diagnostic:
    """padding-is-read (R139)

    Finds: texts of different lengths that an encoder reads without a mask for the padding of the shorter ones, and a
           mask of a layer or loss that is true where there is padding.
    Why:   in an encoder, every token attends to every other token. Without a mask, the output for a text depends on the
           amount of padding after it, and so on `length`. Published models were trained with a mask. A mask is true for
           what counts; that of torch's layers (`key_padding_mask`) is the other way round.
    Diff:
        # file: recipe.yaml
        extends: people.yaml
        data:
          source: {path: notes.csv}
          fields:
            size: {type: tokens, column: note, tokenizer: bytes, length: 8}
        model:
          graph:
    -       text: {type: bert, vocabulary: 256, layers: 1, width: 8, heads: 2, head: pooler, input: size}
    +       text:
    +         {type: bert, vocabulary: 256, layers: 1, width: 8, heads: 2, head: pooler, inputs: {tokens: size, mask: size.mask}}
            hidden: {input: text}
        # file: notes.csv
        note,age
        good,12
        very bad,30
        so so,7
    """  # noqa: E501
    main, mask = ports
    message = f"`{node}` sees the padding of `{field}`: its input `{mask}` is not connected"
    return warning("R139", span, message, f"`inputs: {{{main}: {field}, {mask}: {field}.mask}}`")


def only_padding_is_read(span: Span, reader: str, field: str, mask: str) -> Diagnostic:
    """Report a layer or loss whose mask is true for the padding of a field (R139). `mask`: the mask, as the recipe
    names it."""
    message = f"`{mask}` is true where `{field}` has padding, so that {reader} uses nothing else"
    return warning("R139", span, message, f"a mask is true for what counts: use `{field}.mask`")
