"""Tables about token fields for `dtrain data show`: lengths of texts, fraction of each sample that is filled, tokens
that count in the loss, files with cached tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from declarative_train.app.views.titled_table import Shown
from declarative_train.core.amounts import format_count
from declarative_train.data.prepared_set import PreparedSet
from declarative_train.data.spec import DataSpec, FieldSpec
from declarative_train.data.split_rows import TRAINING
from declarative_train.files.open_files import format_path
from declarative_train.packs.text.cache import Tokens
from declarative_train.packs.text.token_stream import TokenTable
from declarative_train.packs.text.token_tables import PackedRows, TextRows
from declarative_train.packs.text.tokenizer import Tokenizer, tokenizer_of

_PARTS = 40  # largest number of rows for a sample
_LONGEST = 400  # characters of a row; the middle of a longer text is left out


def data_tables(data: DataSpec, sets: Mapping[str, PreparedSet]) -> list[Shown]:
    """Return the tables about token fields: the lengths of the texts, and for each field with tokens that do not count
    in the loss, its first sample."""
    return lengths(sets) + list_trained_parts(data.fields, sets[TRAINING])


def lengths(sets: Mapping[str, PreparedSet]) -> list[Shown]:
    """Return the table of the lengths of texts in tokens, with a column for each set and field; [] if there are no
    token fields."""
    rows = [row for name, each in sets.items() for row in _make_rows(name, each)]
    if not rows:
        return []
    names = ("texts", "tokens", "shortest", "median", "95%", "longest", "longer than a sample", "samples", "full")
    several = len({field for _, field, *_ in rows}) > 1
    header = ("of each", *(f"{name}/{field}" if several else name for name, field, *_ in rows))
    turned = list(zip(names, *(numbers for _, _, *numbers in rows), strict=True))
    return [Shown("lengths of texts in tokens", header, turned, tuple(range(1, len(header))))]


def _make_rows(name: str, chosen: PreparedSet) -> list[tuple[str, ...]]:
    table, found = chosen.table, []
    if isinstance(table, PackedRows):
        for field, each in table.fields.items():
            packed = each.packing
            found.append(_column(name, field, each.sizes, packed.length, packed.num_samples, packed.fill))
    elif isinstance(table, TextRows):
        rows = chosen.rows.at(np.arange(len(chosen.rows)))
        for field, (component, tokens) in table.fields.items():
            sizes = tokens.sizes[rows]
            spaces = np.full(len(sizes), component.longest)
            if component.buckets and chosen.bucket_ids is not None:
                spaces = np.array(component.buckets)[chosen.bucket_ids]
            fill = float(np.minimum(sizes, spaces).sum() / max(spaces.sum(), 1))
            found.append(_column(name, field, sizes, component.longest, len(sizes), fill))
    return found


def _column(name: str, field: str, sizes: np.ndarray, length: int, samples: int, fill: float) -> tuple[str, ...]:
    """Return one column of the table of text lengths: the names of a set and of a field, then the numbers as text.

    name     name of the set
    sizes    tokens of each text
    length   tokens of a sample; longer texts are cut, or divided if texts are packed
    samples  number of samples
    fill     fraction of the positions in all samples that hold a token"""
    if not len(sizes):
        return (name, field, *("0" for _ in range(9)))
    middle, high = np.percentile(sizes, [50, 95])
    numbers = (len(sizes), sizes.sum(), sizes.min(), middle, high, sizes.max(), (sizes > length).sum(), samples)
    return (name, field, *(f"{number:,.0f}" for number in numbers), f"{fill:.1%}")


def list_trained_parts(fields: Sequence[FieldSpec], training: PreparedSet) -> list[Shown]:
    """Return a table for each token field whose first sample has tokens that do not count in the loss. (The first token
    of a text never counts, and does not lead to a table.) The table shows the text of this sample, with a new row
    wherever counted and uncounted tokens meet."""
    found = []
    for spec in fields:
        if spec.component.get("type") != "tokens" or "." in spec.name or not training.num_samples:
            continue
        names = [f"{spec.name}.{output}" for output in ("mask", "positions", "trained")]
        made = training.gather(np.zeros(1, np.int64), [spec.name, *names])
        ids, mask, positions, trained = (made[name][0] for name in (spec.name, *names))
        if not (mask & ~trained & (positions > 0)).any():
            continue
        rows = _parts(ids[mask], trained[mask], tokenizer_of(spec.component))
        title = (
            f"first sample of {spec.name}, {format_count(int(trained.sum()), 'token')} of {int(mask.sum()):,} trained"
        )
        found.append(Shown(title, ("trained", "text"), rows))
    return found


def _parts(ids: np.ndarray, trained: np.ndarray, words: Tokenizer) -> list[tuple[str, ...]]:
    cuts = np.flatnonzero(np.diff(trained.astype(np.int8))) + 1
    rows: list[tuple[str, ...]] = []
    for tokens, flags in zip(np.split(ids, cuts), np.split(trained, cuts), strict=True):
        text = words.decode(tokens.tolist(), skips_special=False).replace("\n", "\\n")
        shown = text if len(text) <= _LONGEST else f"{text[: _LONGEST // 2]} ... {text[-_LONGEST // 2 :]}"
        rows.append(("yes" if flags[0] else "", shown))
    return rows[:_PARTS]


def token_files(sets: Mapping[str, PreparedSet]) -> list[str]:
    """Return a line for each folder of the cache with tokens of the sets: how many tokens and texts it has, their size,
    and its path. Tokens that are not cached get a line too."""
    found: dict[str, Tokens] = {}
    for each in sets.values():
        table = each.table
        if isinstance(table, TokenTable):
            found[table.tokens.folder] = table.tokens
        elif isinstance(table, PackedRows):
            found |= {each.tokens.folder: each.tokens for each in table.fields.values()}
        elif isinstance(table, TextRows):
            found |= {tokens.folder: tokens for _, tokens in table.fields.values()}
    return [
        f"{format_count(len(each.tokens), 'token')} of {format_count(each.num_texts, 'text')}, "
        f"{each.tokens.nbytes / 1e6:,.1f} MB{f', in {format_path(folder)}' if folder else ', not cached'}"
        for folder, each in found.items()
    ]
