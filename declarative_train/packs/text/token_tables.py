"""Tables of tokens: texts are tokenized once, and sets then read the tokens. A row is one text; if texts are packed, it
is a sample of several texts."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Any, cast

import numpy as np

from declarative_train.components.data import BadValueError, Column, Table
from declarative_train.core.amounts import format_count
from declarative_train.data.field_reader import BadSampleError, FieldReader, base_of, column_names
from declarative_train.data.rows import RowRange, SetRows
from declarative_train.data.skipping import is_scanned
from declarative_train.files.open_files import local_path, objects, size_bytes
from declarative_train.packs.text import layout
from declarative_train.packs.text.cache import Encoded, EncodingJob, Tokens, make_tokens
from declarative_train.packs.text.packing import Packing, join_packings, pack, pack_together
from declarative_train.packs.text.tokenizer import Tokenizer
from declarative_train.packs.text.tokens import TokensField

_PROBED = 16  # number of texts whose content is part of the cache key


def is_of_tokens(reader: FieldReader) -> bool:
    return isinstance(reader.field, TokensField)


def read_tokens(
    table: Table, rows: SetRows, readers: Sequence[FieldReader], *, skips: bool = False
) -> tuple[Table, SetRows, tuple[FieldReader, ...]]:
    """Tokenize the texts of a table. Return (table of tokens, rows of the set in this table, readers of its fields), or
    the arguments if no field reads texts. If texts are packed, a row of the new table is a sample of several texts.

    `rows`: rows of the set in the given table. `readers`: readers of the fields. `skips`: leave out rows without a
    text. Raises BadSampleError and SourceError."""
    mine = {base_of(reader.name): reader for reader in reversed(readers) if is_of_tokens(reader)}
    if not mine or isinstance(table, TextRows | PackedRows):
        return table, rows, tuple(readers)
    found = {name: tokens_of(table, reader, skips=skips) for name, reader in mine.items()}
    changed = tuple(
        replace(reader, columns=(column_of(base_of(reader.name), field_of(reader)),))
        if is_of_tokens(reader)
        else reader
        for reader in readers
    )
    if all(field_of(reader).pack is None for reader in mine.values()):
        texts = {name: (field_of(mine[name]), each) for name, each in found.items()}
        return (
            TextRows(table, texts, reads_files=len(texts) < len({base_of(reader.name) for reader in readers})),
            rows,
            changed,
        )
    chosen = rows.at(np.arange(len(rows)))
    made_of = PackedRows(table, {name: (mine[name], found[name]) for name in mine}, chosen)
    return made_of, RowRange(0, made_of.num_rows), changed


def field_of(reader: FieldReader) -> TokensField:
    return cast("TokensField", reader.field)


def column_of(name: str, field: TokensField) -> Column:
    """Return the column of tokens that replaces the columns of texts of the field `name`. Each of its values is an
    array with the field's output for one text, such as its token ids."""
    return Column(f"{field.output} of {name}", layout.DTYPES[field.output], (field.longest,))


def tokens_of(table: Table, reader: FieldReader, *, skips: bool = False) -> Tokens:
    """Return the tokens of a token field for all rows of a table. `skips`: a row without a text has no tokens;
    otherwise such a row is an error. Raises BadSampleError and SourceError."""
    field, columns = field_of(reader), reader.columns
    found = field.open_tokenizer()
    texts = [column for column in columns if column.name != field.tools]
    skips = skips and is_scanned(table) and all(field.needs_value(column) for column in texts)

    def read(start: int, stop: int) -> Sequence[object]:
        values = table.read(column_names([reader]), slice(start, stop))
        return field.join_columns([values[column.name] for column in columns])

    def encode(value: Any, row: int) -> Encoded:
        if skips and field.missing_key(value) is not None:
            return Encoded([])
        return field.encode(value, columns, row, found)

    about = _cache_key(table, reader, found)
    work = EncodingJob(
        table.num_rows,
        read,
        encode,
        found.num_tokens,
        field.marks_trained(columns),
        [about, "skip"] if skips and about is not None else about,
        sum(size_bytes(path) for path in table.files if local_path(path) is not None and os.path.isfile(path)),
    )
    try:
        return make_tokens(work)
    except BadValueError as error:
        raise BadSampleError(reader, error.row, error) from error


def _cache_key(table: Table, reader: FieldReader, found: Tokenizer) -> object:
    """Return the key under which the tokens are cached, a JSON value. Return None if the table has no files, because
    changes of its texts could not be detected.

    The key also has a hash of a few texts: with other settings of the source, the same file can give other texts.
    """
    if not table.files:
        return None
    files = []
    for path in table.files:
        local = local_path(path)
        state = None if local is None else os.stat(local)
        files.append([path, size_bytes(path), 0, 0] if state is None else [path, state.st_size, state.st_mtime_ns, 1])
    rows = np.unique(np.linspace(0, table.num_rows - 1, min(_PROBED, table.num_rows)).astype(np.int64))
    names = column_names([reader])
    read = table.read(names, rows) if len(rows) else {}
    probe = [value for values in read.values() for value in values.tolist()]
    digest = blake2b(repr(probe).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    return [files, table.num_rows, " ".join(names), digest, found.sha256, field_of(reader).list_text_settings()]


def _unread(table: Table, found: Mapping[str, Tokens]) -> Iterator[tuple[str, str, str]]:
    """Yield (name, message, hint) for each field whose chat template does not read some keys of the messages. `table`:
    the table with the messages. `found`: tokens of each field, by name."""
    for name, tokens in found.items():
        if tokens.unread:
            keys = ", ".join(
                f"`{key}` ({format_count(count, 'row')}, first {table.place(row)})"
                for key, (count, row) in sorted(tokens.unread.items())
            )
            message = f"its chat template does not use these keys of messages: {keys}"
            hint = "remove them from the data, or name a template that reads them: `template: chat.jinja`"
            yield name, message, hint


class TextRows(Table):
    """Table with the columns of `table`, and with columns for the tokens of its texts. `reads_files`: some fields also
    read columns of `table`. Only then the new table has the blocks of `table` (rows that are read together)."""

    def __init__(self, table: Table, fields: dict[str, tuple[TokensField, Tokens]], *, reads_files: bool) -> None:
        self.source, self.fields = table, fields
        self._columns = {
            column_of(name, field.output_of(output)).name: (name, output)
            for name, (field, _) in fields.items()
            for output in layout.OUTPUTS
        }
        self.columns, self.num_rows, self.files, self.left_out = (
            table.columns,
            table.num_rows,
            table.files,
            table.left_out,
        )
        self.blocks = table.blocks if reads_files else None
        self.members = table.members

    def read(self, columns: Sequence[str], rows: slice | np.ndarray) -> dict[str, np.ndarray]:
        return self._read_columns(columns, rows, self.source.read)

    def read_once(self, columns: Sequence[str], rows: slice) -> dict[str, np.ndarray]:
        return self._read_columns(columns, rows, self.source.read_once)

    def size_bytes(self, columns: Sequence[str]) -> int | None:
        return self.source.size_bytes([name for name in columns if name not in self._columns])

    def _read_columns(
        self, columns: Sequence[str], rows: Any, read: Callable[[list[str], Any], dict[str, np.ndarray]]
    ) -> dict[str, np.ndarray]:
        others = [name for name in columns if name not in self._columns]
        found = read(others, rows) if others else {}
        numbers = np.arange(*rows.indices(self.num_rows)) if isinstance(rows, slice) else rows
        for field in self.fields:
            mine = (name for name in columns if name in self._columns and self._columns[name][0] == field)
            wanted = {name: self._columns[name][1] for name in mine}
            if wanted:
                made_of = self._lay_out(field, numbers, wanted.values())
                found |= {name: made_of[output] for name, output in wanted.items()}
        return found

    def _lay_out(self, name: str, rows: np.ndarray, outputs: Collection[str]) -> dict[str, np.ndarray]:
        field, tokens = self.fields[name]
        begins, ends = field.cut_to_length(tokens.starts[rows], tokens.starts[rows + 1])
        pieces = layout.Pieces(tokens.tokens, begins, ends - begins, np.ones(len(rows), np.int64), tokens.trained)
        return layout.rows(outputs, pieces, field.longest, field.pad_of(field.open_tokenizer()))

    def lengths(self, column: str, rows: np.ndarray) -> np.ndarray:
        field, tokens = self.fields[self._columns[column][0]]
        found: np.ndarray = np.minimum(tokens.starts[rows + 1] - tokens.starts[rows], field.longest)
        return found

    def place(self, row: int) -> str:
        return self.source.place(row)

    def unread(self) -> Iterator[tuple[str, str, str]]:
        return _unread(self.source, {name: tokens for name, (_, tokens) in self.fields.items()})


class PackedField:
    """Field whose texts are packed, several in one sample. `sizes`: number of tokens of each text. `packing`: which
    texts, or parts of texts, each sample has."""

    def __init__(self, reader: FieldReader, tokens: Tokens, chosen: np.ndarray) -> None:
        self.field, self.tokens, self.text = field_of(reader), tokens, reader.columns[0].name
        self.sizes, self._starts = tokens.sizes[chosen], tokens.starts[chosen]
        self._pad = self.field.pad_of(self.field.open_tokenizer())

    def set_packing(self, packing: Packing) -> None:
        self.packing = packing
        self._begins = self._starts[packing.texts] + packing.offsets

    def cut_texts(self) -> None:
        """Cut texts that are longer than a sample to its length. Call it before the texts are packed."""
        self._starts, ends = self.field.cut_to_length(self._starts, self._starts + self.sizes)
        self.sizes = ends - self._starts

    def lay_out(self, samples: np.ndarray, outputs: Collection[str]) -> dict[str, np.ndarray]:
        """Return the arrays `outputs`, such as `ids` and `mask`, by name. Row i of an array belongs to the sample
        `samples[i]`: its texts, or parts of texts, one after the other, then padding."""
        packing, tokens = self.packing, self.tokens
        firsts = packing.begins[samples]
        counts = packing.begins[samples + 1] - firsts
        chosen = np.arange(int(counts.sum())) + np.repeat(firsts - np.cumsum(counts) + counts, counts)
        pieces = layout.Pieces(tokens.tokens, self._begins[chosen], packing.lengths[chosen], counts, tokens.trained)
        return layout.rows(outputs, pieces, packing.length, self._pad)

    def decode(self, samples: np.ndarray) -> np.ndarray:
        found, made_of = self.field.open_tokenizer(), self.lay_out(samples, ("ids", "mask"))
        texts = [row[mask].tolist() for row, mask in zip(made_of["ids"], made_of["mask"], strict=True)]
        return objects([found.decode(each, skips_special=False) for each in texts])


class PackedRows(Table):
    """Table in which each row is one sample, packed from several texts. All fields of a row contain the same texts.
    `source`: the table of the texts. A column of texts is decoded from the tokens, and is used only for display."""

    def __init__(self, table: Table, fields: Mapping[str, tuple[FieldReader, Tokens]], chosen: np.ndarray) -> None:
        self.fields = {name: PackedField(reader, tokens, chosen) for name, (reader, tokens) in fields.items()}
        self._chosen, self.source = chosen, table
        firsts = [int(np.searchsorted(chosen, first)) for _, first in table.members] or [0]
        first, *others = self.fields.values()
        for each in self.fields.values() if others else ():
            each.cut_texts()
        parts = [
            _pack([each.field for each in self.fields.values()], sizes)
            for sizes in zip(*(np.split(each.sizes, firsts[1:]) for each in self.fields.values()), strict=True)
        ]
        for each, packings in zip(self.fields.values(), zip(*parts, strict=True), strict=True):
            each.set_packing(packings[0] if len(packings) == 1 else join_packings(packings, firsts))
        begins = np.cumsum([0, *(packings[0].num_samples for packings in parts)]).tolist()
        self.members = tuple((name, begin) for (name, _), begin in zip(table.members, begins, strict=False))
        self._outputs = {
            column_of(name, each.field.output_of(output)).name: (each, output)
            for name, each in self.fields.items()
            for output in layout.OUTPUTS
        }
        self.columns = {each.text: Column(each.text, "object") for each in self.fields.values()}
        self.files = table.files
        self.packing = first.packing
        self.num_rows = self.packing.num_samples

    def read(self, columns: Sequence[str], rows: slice | np.ndarray) -> dict[str, np.ndarray]:
        numbers = np.arange(*rows.indices(self.num_rows)) if isinstance(rows, slice) else rows
        found: dict[str, np.ndarray] = {}
        for field in self.fields.values():
            wanted = {name: self._outputs[name][1] for name in columns if self._outputs.get(name, (None,))[0] is field}
            made_of = field.lay_out(numbers, wanted.values()) if wanted else {}
            found |= {name: made_of[output] for name, output in wanted.items()}
            if field.text in columns:
                found[field.text] = field.decode(numbers)
        return found

    @property
    def original(self) -> Table:
        return self.source

    def unread(self) -> Iterator[tuple[str, str, str]]:
        return _unread(self.source, {name: each.tokens for name, each in self.fields.items()})

    def place(self, row: int) -> str:
        """Return a description of a sample for messages: its number, and where its first text is in the source."""
        packing = self.packing
        text = int(self._chosen[packing.texts[packing.begins[row]]])
        return f"sample {row + 1}, which starts in {self.source.place(text)}"


def _pack(fields: Sequence[TokensField], sizes: Sequence[np.ndarray]) -> list[Packing]:
    """Pack the texts, and return the packing of each field. If there is only one field, a text may be divided over
    several samples. `sizes`: for each field, how many tokens each text has."""
    if len(fields) > 1:
        return pack_together(sizes, [field.longest for field in fields], fields[0].texts)
    assert fields[0].pack is not None
    return [pack(sizes[0], fields[0].longest, fields[0].pack, fields[0].texts)]
