"""Rows of csv and JSON lines files, read in pieces of a few MiB that end at line ends.

A csv is read as text: the field that reads a value decides its type (`fields.py`). A csv with quotes may have a line
end inside a row, and a compressed file cannot be read from the middle. Such files are parsed from the beginning to list
their pieces."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from csv import reader as csv_reader
from functools import cache
from typing import IO, TYPE_CHECKING, Any, NamedTuple, NoReturn, cast

import numpy as np

from declarative_train.components.datasets import DATASETS
from declarative_train.components.datasets.jsonl import read_lines
from declarative_train.files.open_files import format_path, open_file, packing
from declarative_train.files.paths import SourceError
from declarative_train.inference.input import (
    Input,
    InputChunk,
    InputError,
    Piece,
    Pieces,
    check_columns,
    make_row_namer,
)
from declarative_train.inference.trained import UsageError

if TYPE_CHECKING:
    import pyarrow as pa

    from declarative_train.components.datasets.csv import CsvDataset

_BLOCK_BYTES = 4 << 20


class _LineRange(NamedTuple):
    """Consecutive lines of a file: the `size` bytes from offset `begin` on. `row`: index in the file of the first row
    in these lines."""

    file: str
    row: int
    begin: int
    size: int


class _ReadColumns(NamedTuple):
    """Rows of a file that were already parsed when the file was divided into pieces. `row`: index of the first of these
    rows in the file. `columns`: their values."""

    file: str
    row: int
    columns: Mapping[str, Any]


# --- csv


def csv_input(files: Sequence[str], title: str, source: Mapping[str, object], titled: str | None = None) -> Input:
    """Return an Input that reads csv files. The dialect (delimiter, encoding, ...) is that of the run's `source` if
    this is a csv, otherwise the default. If the first file is a `.tsv`, values are separated by tabs. `title`: what
    messages call all files together. `titled`: what they call a single file; None: its path."""
    own = dict(source) if source.get("type") == "csv" else {"type": "csv"}
    if files[0].lower().endswith(".tsv"):
        own["delimiter"] = "\t"
    how = cast("CsvDataset", DATASETS.read(own | {"path": list(files)}))
    title_of = {file: titled or format_path(file) for file in files}
    header = cache(lambda file: _header(file, how, title_of[file]))
    first = header(files[0])

    def pieces(columns: Sequence[str], most: int | None) -> Pieces:
        start = 0
        for file in files:
            check_columns(columns, [name.strip() for name in header(file)], title_of[file])
            for piece in _split_pieces(_csv_pieces(file, how, columns, title_of[file], most), most):
                yield piece._replace(start=start)
                start += piece.num_rows

    def read_piece(piece: Piece, columns: Sequence[str]) -> InputChunk:
        where: _LineRange | _ReadColumns = piece.where
        named = title_of[where.file]
        found = (
            where.columns
            if isinstance(where, _ReadColumns)
            else _csv_columns(where, how, header(where.file), columns, named)
        )
        return _chunk(piece, found, named, where.row)

    return Input(title, [name.strip() for name in first], pieces, read_piece, files, decimal=how.decimal)


def _chunk(piece: Piece, columns: Mapping[str, Any], title: str, row: int) -> InputChunk:
    found = len(next(iter(columns.values()))) if columns else piece.num_rows
    if found != piece.num_rows:
        raise InputError(
            f"{title} from row {row + 1:,} on: {piece.num_rows:,} lines are {found:,} rows; help: write "
            "each row on one line"
        )
    return InputChunk(title, piece.start, piece.num_rows, columns, make_row_namer(title, row))


def _header(file: str, how: CsvDataset, title: str) -> list[str]:
    if how.columns is not None:
        return list(how.columns)
    try:
        with _open(file) as stream, io.TextIOWrapper(stream, "utf-8-sig", newline="") as text:
            line = next(csv_reader(text, delimiter=how.delimiter), [])
    except UnicodeDecodeError:
        raise InputError(f"{title} is not UTF-8; help: save it as UTF-8 (from Excel: `CSV UTF-8`)") from None
    if not line:
        raise InputError(f"{title} is empty: it has no line with the names of the columns")
    twice = [name for name in line if line.count(name) > 1]
    if twice:
        raise InputError(f"{title} has two columns called `{twice[0].strip()}`")
    return line


def _open(file: str) -> IO[bytes]:
    import pyarrow as pa

    try:
        kind = packing(file)
        opened: IO[bytes] = open_file(file)
        return opened if kind is None else io.BufferedReader(pa.input_stream(opened, compression=kind))
    except SourceError as error:
        raise UsageError(str(error)) from None


def _csv_pieces(file: str, how: CsvDataset, columns: Sequence[str], title: str, most: int | None) -> Pieces:
    """Yield a csv file as pieces: ranges of bytes, which are parsed later. From the first block with a quote or a lone
    carriage return on, pieces have parsed values instead, and so have all pieces of a compressed file.

    `how`: the dialect. `columns`: the columns to parse. `title`: the file's name in messages. `most`: maximum number of
    rows of a range of bytes; None: no limit.
    """
    row = 0
    if packing(file) is None:
        with _open(file) as stream:
            header = b"" if how.columns is not None else stream.readline()
            plain = _is_plain(header)
            begin = len(header)
            while plain:
                block = stream.read(_BLOCK_BYTES)
                if not block:
                    return
                block += stream.readline()
                plain = _is_plain(block)
                for count, size in _parts(block, most) if plain else ():
                    if count:
                        yield Piece(0, count, _LineRange(file, row, begin, size))
                    row, begin = row + count, begin + size
    skipped = row
    for batch in _csv_batches(file, how, columns, title):  # from the first row, so that errors name the right line
        left = batch if skipped == 0 else batch.slice(min(skipped, batch.num_rows))
        skipped -= batch.num_rows - left.num_rows
        if left.num_rows:
            yield Piece(0, left.num_rows, _ReadColumns(file, row, dict(zip(columns, left.columns, strict=True))))
            row += left.num_rows


def _is_plain(block: bytes) -> bool:
    """Return whether a block of csv can be split at line ends without parsing. This is so if it has no quotes, within
    which a line end belongs to a value, and no carriage return without a line feed."""
    return b'"' not in block and block.count(b"\r") == block.count(b"\r\n")


def _parts(block: bytes, most: int | None) -> list[tuple[int, int]]:
    """Split a block into parts of whole lines. Return (number of rows, number of bytes) of each part. `most`: maximum
    number of rows per part; None: no limit. Empty lines are not rows."""
    content = np.frombuffer(block, np.uint8)
    nexts = np.flatnonzero(content == ord("\n")) + 1
    if not len(nexts) or nexts[-1] < len(content):
        nexts = np.append(nexts, len(content))
    begins = np.concatenate([[0], nexts[:-1]])
    last = content[nexts - 1] == ord("\n")
    ends = nexts - last
    ends = ends - ((ends > begins) & (content[ends - 1] == ord("\r")))
    rows = np.cumsum(ends > begins)
    total = int(rows[-1])
    cuts = [int(np.searchsorted(rows, limit)) for limit in range(most or total, total, most or max(total, 1))]
    sizes = np.diff([0, *(int(nexts[cut]) for cut in cuts), len(content)]).tolist()
    counts = np.diff([0, *(int(rows[cut]) for cut in cuts), total]).tolist()
    return list(zip(counts, sizes, strict=True))


def _split_pieces(pieces: Pieces, most: int | None) -> Pieces:
    """Yield `pieces`, but divide each that has more than `most` rows (None: no limit). Pieces whose values are not
    parsed yet never have more."""
    for piece in pieces:
        where = piece.where
        if most is None or piece.num_rows <= most or not isinstance(where, _ReadColumns):
            yield piece
            continue
        for begin in range(0, piece.num_rows, most):
            count = min(most, piece.num_rows - begin)
            columns = {name: values.slice(begin, count) for name, values in where.columns.items()}
            yield Piece(0, count, _ReadColumns(where.file, where.row + begin, columns))


def _csv_columns(
    where: _LineRange, how: CsvDataset, raw: Sequence[str], columns: Sequence[str], title: str
) -> dict[str, Any]:
    import pyarrow as pa

    named = {name.strip(): name for name in raw}
    content = _bytes_of(where)
    try:
        wanted = [named[name] for name in columns]
        table = how.read_text(pa.BufferReader(content), raw, wanted, len(content) + 1).read_all()
    except pa.ArrowInvalid as error:
        for _ in _csv_batches(where.file, how, columns, title):
            pass  # parsed as a whole, so that the error names the line of the file
        _refuse(where.file, how, str(error), title)
    return {name: table.column(named[name]).combine_chunks() for name in columns}


def _bytes_of(where: _LineRange) -> bytes:
    with _open(where.file) as stream:
        stream.seek(where.begin)
        return stream.read(where.size)


def _csv_batches(file: str, how: CsvDataset, columns: Sequence[str], title: str) -> Iterator[pa.RecordBatch]:
    """Parse a whole csv file and yield its rows in batches. `how`: the dialect. `columns`: columns of the batches.
    `title`: the file's name in messages. Raises InputError."""
    import pyarrow as pa

    named = {name.strip(): name for name in _header(file, how, title)}
    try:
        with _open(file) as stream:
            yield from how.read_text(stream, how.columns, [named[name] for name in columns], _BLOCK_BYTES)
    except pa.ArrowInvalid as error:
        _refuse(file, how, str(error), title)


def _refuse(file: str, how: CsvDataset, problem: str, title: str) -> NoReturn:
    made = how.explain(file, problem)
    hint = f"; help: {made.help}" if made.help else ""
    raise InputError(f"{str(made).replace(format_path(file), title)}{hint}") from None


# --- jsonl


def jsonl_input(files: Sequence[str], title: str) -> Input:
    first = next(_json_pieces(files[0], None), None)
    names = [] if first is None else _json_table(first.where).column_names
    if first is None:
        raise InputError(f"{title} is empty")

    def pieces(columns: Sequence[str], most: int | None) -> Pieces:
        start = 0
        for file in files:
            for piece in _json_pieces(file, most):
                yield piece._replace(start=start)
                start += piece.num_rows

    def read_piece(piece: Piece, columns: Sequence[str]) -> InputChunk:
        import pyarrow as pa

        where: _LineRange | _ReadColumns = piece.where
        table = _json_table(where)
        found = {
            name: table.column(name).combine_chunks()
            if name in table.column_names
            else pa.nulls(table.num_rows)  # a key that no line of the piece has
            for name in columns
        }
        return _chunk(piece, found, format_path(where.file), where.row)

    return Input(title, names, pieces, read_piece, files)


def _json_pieces(file: str, most: int | None) -> Pieces:
    row = begin = 0
    is_packed = packing(file) is not None
    with _open(file) as stream:
        while block := stream.read(_BLOCK_BYTES):
            block += stream.readline()
            at = 0
            for count, size in _parts(block, most):
                part = block[at : at + size]
                if count and part.strip():
                    lines = _LineRange(file, row, begin, size)
                    yield Piece(0, count, _ReadColumns(file, row, {"": part}) if is_packed else lines)
                row, begin, at = row + count, begin + size, at + size


def _json_table(where: _LineRange | _ReadColumns) -> pa.Table:
    import pyarrow as pa

    block: bytes = where.columns[""] if isinstance(where, _ReadColumns) else _bytes_of(where)
    try:
        table = read_lines(where.file, where.row, block, [])
        if not any(pa.types.is_timestamp(kind) for kind in table.schema.types):
            return table
        texts = [field.with_type(pa.string()) if pa.types.is_timestamp(field.type) else field for field in table.schema]
        return read_lines(where.file, where.row, block, [], pa.schema(texts))
    except SourceError as error:
        raise InputError(str(error)) from None
