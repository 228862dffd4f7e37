"""Token fields and their training texts, for checks when a recipe is compiled. Functions here also find values in the
model's graph that are slices of a token field."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, cast

import numpy as np

from declarative_train.components.expressions.functions import VIEWS
from declarative_train.components.expressions.tree import Operation, Term
from declarative_train.components.fields import FIELDS
from declarative_train.data.prepared_set import PreparedSet
from declarative_train.data.shared_sets import prepare_sets
from declarative_train.data.spec import DataSpec
from declarative_train.data.split_rows import TRAINING
from declarative_train.packs.text.cache import Tokens
from declarative_train.packs.text.token_tables import PackedRows, TextRows
from declarative_train.packs.text.tokenizer import Tokenizer
from declarative_train.packs.text.tokens import TokensField
from declarative_train.recipe.model.tree import Scope, Wire
from declarative_train.recipe.model.walk import Frame, find_slice

_MOST_TEXTS = 4096


class TokenSlice(NamedTuple):
    """Slice of a token field that is equal to a value in the model's graph. It has the positions `start:stop` of the
    field's output `output`. `stop`: None means to the end."""

    field: str
    output: str
    start: int = 0
    stop: int | None = None

    @property
    def positions(self) -> tuple[int, int | None]:
        return self.start, self.stop


class CheckedText(NamedTuple):
    """Token field to check, and its texts.

    found   tokenizer of the field
    tokens  tokens of all texts of the field
    rows    indices of the texts that are checked; all are in the training set
    marks   whether only some tokens are to be predicted (see `TokensField.marks_trained`)
    padded  fraction of the positions in samples that are padding; 0 for packed texts
    """

    name: str
    field: TokensField
    found: Tokenizer
    tokens: Tokens
    rows: np.ndarray
    marks: bool
    padded: float


def checked_texts(data: DataSpec) -> Iterator[CheckedText]:
    training = prepare_sets(data)[TRAINING]
    specs = {field.name: field for field in data.fields}
    for name, tokens, chosen in _tokens(training):
        spec = specs.get(name) or next(each for each in data.fields if each.name.startswith(f"{name}."))
        field = cast("TokensField", FIELDS.read(spec.component))
        rows = chosen[np.linspace(0, len(chosen) - 1, min(_MOST_TEXTS, len(chosen))).astype(np.int64)]
        sizes = np.minimum(tokens.sizes[rows], field.longest)
        padded = 0.0 if field.pack is not None else 1 - float(sizes.sum()) / max(1, len(rows) * field.longest)
        yield CheckedText(name, field, field.open_tokenizer(), tokens, rows, tokens.trained is not None, padded)


def _tokens(training: PreparedSet) -> Iterator[tuple[str, Tokens, np.ndarray]]:
    """Yield (field, tokens, indices) for each token field. `tokens`: the tokens of all texts of the field. `indices`:
    which of these texts are in the training set."""
    table = training.table
    if isinstance(table, TextRows):
        chosen = training.rows.at(np.arange(len(training.rows)))
        yield from ((name, tokens, chosen) for name, (_, tokens) in table.fields.items() if len(chosen))
    elif isinstance(table, PackedRows):
        found = ((name, each.tokens) for name, each in table.fields.items() if each.tokens.num_texts)
        yield from ((name, tokens, np.arange(tokens.num_texts)) for name, tokens in found)


def slice_of(scope: Scope, wire: Wire) -> TokenSlice | None:
    """Return the slice of a token field that `wire` (a value in the model's graph) contains, or None if `wire` is
    something else. A whole field counts as a slice with all positions."""
    found = find_slice(Frame(scope), wire)
    if found is None:
        return None
    field, _, part = found.field.partition(".")
    return TokenSlice(field, part or "ids", found.start, found.stop)


def skip_casts(term: Term) -> Term:
    while isinstance(term, Operation) and (term.name in VIEWS or term.name in ("bool", "float", "int")):
        term = term.operands[0]
    return term
