"""JSON lines files as a source: a table in memory. Large files are converted once to an Arrow file
(`arrow_cache.py`)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

from declarative_train.components.data import FilesDataset, Table
from declarative_train.components.datasets.arrow_cache import (
    BLOCK_BYTES,
    Budget,
    convert,
    in_memory_or_on_disk,
    open_decompressed,
)
from declarative_train.components.datasets.arrow_columns import check_same_columns
from declarative_train.files.open_files import check_beginning, format_path, packing, skips_bad_rows
from declarative_train.files.paths import SourceError

if TYPE_CHECKING:
    import pyarrow as pa

_DEEPEST = 1_000  # nested lists and objects; ten thousand would overflow the stack of the reader
_MOST_CHANGES = 100  # lines whose values have another type; each costs one more read of the file
_LONGEST_LINE = 256 << 20  # bytes of a line in a file that is converted
_BLANK = re.compile(rb"(?:\A|\n)[ \t\r]*\n")
_MOST_BLANK = 1 << 20  # blank lines of a file that is converted; further ones are not counted in row numbers
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"?')


class JsonlDataset(FilesDataset):
    """Rows of JSON lines files, read into memory. Each line is one object, whose keys are the columns.

    A key that is missing in a line, or is `null`, is a missing value. Several files are one table, file after file.
    Files that end in `.gz`, `.bz2` or `.zst` are decompressed. Files of more than 1 GiB in total are converted once, to
    a file in the user's cache, and read from there in blocks."""

    type: Literal["jsonl"] = "jsonl"

    def open(self) -> Table:
        from declarative_train.components.datasets.arrow_columns import MemoryTable

        def in_memory(budget: Budget | None) -> Table:
            bad: dict[str, list[tuple[int, str]]] = {}
            return MemoryTable([(path, _read(path, bad.setdefault(path, []), budget)) for path in files], bad)

        files = self.files()
        return in_memory_or_on_disk(files, in_memory, lambda: convert(files, self.type, {}, _schema, _batches))


def _read(path: str, bad: list[tuple[int, str]], budget: Budget | None) -> pa.Table:
    """Return the table of a file. `bad`: list to which (line, reason) is appended for each line that is left out. Blank
    lines are always left out, bad rows only if the recipe skips them. `budget`: limit on the memory for compressed
    text; None: no limit. Raises SourceError."""
    import pyarrow as pa
    from pyarrow import json

    if packing(path) is None:
        check_beginning(path, "a file of JSON lines", None)
    try:
        with open_decompressed(path) if budget is None else budget.open_decompressed(path) as file:
            content = file.read_buffer() if packing(path) is None else pa.py_buffer(_read_all(file))
        bad += _find_blank_lines(content)
        if skips_bad_rows():
            return _read_good(path, content.to_pybytes(), bad)
        _check_depth(path, content)
        block = max(1 << 20, min(content.size + 1, 1 << 30))  # a line must fit into one block
        options = json.ReadOptions(use_threads=False, block_size=block)
        return json.read_json(pa.BufferReader(content), read_options=options)
    except pa.ArrowInvalid as error:
        raise SourceError("unreadable", _explain(path, _with_lines(str(error), bad))) from error
    except OSError as error:
        raise SourceError("unreadable", f"cannot read {format_path(path)}: {error}") from error


def _read_all(file: Any) -> bytes:
    """Return the rest of a stream. It is read block by block, because the content of a compressed file may be far
    larger than the file."""
    blocks = []
    while block := file.read(BLOCK_BYTES):
        blocks.append(block)
    return b"".join(blocks)


def _find_blank_lines(content: Any) -> list[tuple[int, str]]:
    """Return (line number from 0, "") for each blank line: a pair like (line, reason) of a bad line, but without a
    reason. The empty text after the last line break is not a line."""
    if _BLANK.search(content) is None:
        return []
    lines = bytes(content).split(b"\n")
    return [(number, "") for number, line in enumerate(lines) if not line.strip()][: None if lines[-1].strip() else -1]


def _with_lines(error: str, gone: Sequence[tuple[int, str]]) -> str:
    """Return pyarrow's message `error` with each row number (N in "in row N") replaced by the number of the line. They
    differ because pyarrow does not see the lines in `gone` (blank or left out): pairs (line, reason). All numbers are
    from 0."""

    def line_of(found: re.Match[str]) -> str:
        row = int(found[1])
        for line, _ in sorted(gone):
            row += line <= row
        return f"in row {row}"

    return re.sub(r"in row (\d+)", line_of, error)


def _chunks(path: str) -> Iterator[tuple[int, bytes]]:
    """Yield the pieces of a file, some MiB of whole lines each. With each piece, yield the number of its first line,
    counted from 0. Raises SourceError."""
    import pyarrow as pa

    if packing(path) is None:
        check_beginning(path, "a file of JSON lines", None)
    try:
        with open_decompressed(path) as file:
            first, rest = 0, b""
            while block := file.read(BLOCK_BYTES):
                if len(rest) > _LONGEST_LINE:
                    raise SourceError("unreadable", f"line {first + 1} of {format_path(path)} is longer than 256 MiB")
                whole, end, rest_of = (rest + block).rpartition(b"\n")
                rest = rest_of
                if end:
                    if whole.strip():
                        yield first, whole + end
                    first += whole.count(b"\n") + 1
            if rest.strip():
                yield first, rest
    except (OSError, pa.ArrowInvalid) as error:
        raise SourceError("unreadable", f"cannot read {format_path(path)}: {error}") from error


def _schema(files: Sequence[str], heartbeat: Callable[[], None]) -> Any:
    """Return an Arrow schema whose types can hold all values of all files. `heartbeat`: called after each piece of a
    file, to show progress. Raises SourceError."""
    import pyarrow as pa

    found: dict[str, Any] = {}
    names: list[str] = []
    for path in files:
        own: dict[str, Any] = {}
        for first, content in _chunks(path):
            like = _find_widest_type(pa.struct(list(found.items())))
            schema = read_lines(path, first, content, [], None, like).schema
            own |= dict.fromkeys(schema.names)
            try:
                found |= {
                    field.name: _find_common_type(found.get(field.name, pa.null()), field.type) for field in schema
                }
            except ValueError as error:
                read_lines(path, first, content, [], like and pa.schema(list(like)))  # raises with the row number
                where = f"after row {first + 1} of {format_path(path)}"
                raise SourceError("unreadable", f"a value is of another type than before, {where}: {error}") from error
            heartbeat()
        if not own:
            raise SourceError("unreadable", f"{format_path(path)} is empty")
        names = names or list(own)
        check_same_columns(files[0], names, path, list(own))
    return pa.schema(list(found.items()))


def _find_common_type(one: Any, other: Any) -> Any:
    """Return the Arrow type that can hold the values of both types `one` and `other`. It is the type that pyarrow would
    choose if the values were in one file. Raises ValueError if there is none."""
    import pyarrow as pa

    types = pa.types
    if one == other or types.is_null(other):
        return one
    if types.is_null(one):
        return other
    if types.is_list(one) and types.is_list(other):
        return pa.list_(_find_common_type(one.value_type, other.value_type))
    if types.is_struct(one) and types.is_struct(other):
        both = {field.name: field.type for field in other}
        both = {**{field.name: field.type for field in one}, **both}
        for field in one:
            both[field.name] = _find_common_type(field.type, both[field.name])
        return pa.struct(list(both.items()))
    pair = {str(_find_widest_type(one)), str(_find_widest_type(other))}
    if len(pair) > 1 or types.is_nested(one) or types.is_nested(other):
        raise ValueError(f"{one} and {other}")
    return _find_widest_type(one)


def _find_widest_type(kind: Any) -> Any:
    """Return the widest Arrow type to which values of the type `kind` can be converted. It is float64 for all numbers,
    and text for dates. In lists and objects, the types of the items are widened. Other types stay the same. If `kind`
    is the type of a column of missing values only, return None."""
    import pyarrow as pa

    types = pa.types
    if types.is_null(kind):
        return None
    if types.is_integer(kind) or types.is_floating(kind):
        return pa.float64()
    if types.is_timestamp(kind):
        return pa.string()
    if types.is_list(kind):
        inner = _find_widest_type(kind.value_type)
        return None if inner is None else pa.list_(inner)
    if types.is_struct(kind):
        fields = [(field.name, _find_widest_type(field.type)) for field in kind]
        return pa.struct([(name, inner) for name, inner in fields if inner is not None])
    return kind


def _batches(path: str, schema: Any, bad: list[tuple[int, str]]) -> Iterator[Any]:
    for first, content in _chunks(path):
        yield from read_lines(path, first, content, bad, schema).to_batches()


def read_lines(
    path: str, first: int, content: bytes, bad: list[tuple[int, str]], schema: Any = None, like: Any = None
) -> pa.Table:
    """Return the lines `content` of a file as a table. `first`: how many lines of the file are before them. `schema`:
    types of all columns; None: they are detected. Raises SourceError.

    `bad`: list to which (line, reason) is added for each blank line. If bad rows are skipped, bad lines are added too,
    and a line is also bad if its types differ from `like`, the types of earlier lines."""
    import pyarrow as pa
    from pyarrow import json

    blank = _find_blank_lines(content)
    if len(bad) < _MOST_BLANK:
        bad += [(row + first, why) for row, why in blank]
    try:
        if skips_bad_rows():
            own: list[tuple[int, str]] = []
            table = _read_good(path, content, own, pa.schema(list(like)) if like else schema)
            bad += [(row + first, why) for row, why in own]
            if like is not None:
                gone = {row for row, _ in own}
                lines = [line for row, line in enumerate(content.split(b"\n")) if row not in gone and line.strip()]
                table = _read_good(path, b"\n".join(lines), [], None)
        else:
            _check_depth(path, pa.py_buffer(content), first)
            options = json.ReadOptions(use_threads=False, block_size=max(1 << 20, len(content) + 1))
            parsing = json.ParseOptions(explicit_schema=schema)
            table = json.read_json(pa.BufferReader(content), read_options=options, parse_options=parsing)
        return table if schema is None else table.select(schema.names)
    except pa.ArrowInvalid as error:
        said = _with_lines(str(error), blank)
        said = re.sub(r"in row (\d+)", lambda row: f"in row {int(row[1]) + first}", said)
        raise SourceError("unreadable", _explain(path, said)) from error


def _read_good(path: str, content: bytes, bad: list[tuple[int, str]], schema: Any = None) -> pa.Table:
    """Return a table of the good lines in `content`: JSON objects with values of the types in `schema`. Without a
    schema, the earlier lines decide the types. For each bad line, append (its number in `content`, from 0; reason) to
    `bad`."""
    import json as strict

    import pyarrow as pa
    from pyarrow import json

    numbers, lines = [], []
    for number, line in enumerate(content.split(b"\n")):
        if not line.strip():
            continue
        try:
            if line.count(b"[") + line.count(b"{") > _DEEPEST and _depth(line) > _DEEPEST:
                raise ValueError(f"it has more than {_DEEPEST:,} nested lists and objects")
            if not isinstance(strict.loads(line), dict):
                raise ValueError("it is not a JSON object")
        except ValueError as error:
            why = "it is not UTF-8" if isinstance(error, UnicodeDecodeError) else str(error)
            bad.append((number, why if why.startswith("it ") else f"it is not JSON: {why}"))
            continue
        numbers.append(number)
        lines.append(line)
    for _ in range(_MOST_CHANGES):
        if not lines and schema is not None:
            return schema.empty_table()
        whole = b"\n".join(lines) + b"\n"
        options = json.ReadOptions(use_threads=False, block_size=max(1 << 20, min(len(whole) + 1, 1 << 30)))
        try:
            parsing = json.ParseOptions(explicit_schema=schema)
            return json.read_json(pa.BufferReader(whole), read_options=options, parse_options=parsing)
        except pa.ArrowInvalid as error:
            changed: Any = re.search(r"in row (\d+)", str(error))
            if changed is None or not lines:
                raise
            place = int(changed[1])
            said = re.search(r"Column\(/([^)]*)\) changed from (\w+) to (\w+)", str(error))
            why = "it is not JSON" if said is None else f"`{said[1]}` changes from {said[2]} to {said[3]}"
            bad.append((numbers.pop(place), why))
            del lines[place]
    message = f"more than {_MOST_CHANGES} rows of {format_path(path)} hold values of another type than those before"
    raise SourceError("unreadable", message)


def _check_depth(path: str, content: pa.Buffer, first: int = 0) -> None:
    """Raise SourceError if lists and objects in a line are nested deeper than pyarrow can read. `first`: number of the
    first line, counted from 0, for the message."""
    import numpy as np

    ends = np.flatnonzero(np.frombuffer(content, np.uint8) == ord("\n"))
    begins = np.concatenate([[0], ends + 1])
    ends = np.append(ends, content.size)
    for line in np.flatnonzero(ends - begins > _DEEPEST).tolist():
        text = memoryview(content)[begins[line] : ends[line]].tobytes()
        if text.count(b"[") + text.count(b"{") > _DEEPEST and _depth(text) > _DEEPEST:
            where = f"row {first + line + 1} of {format_path(path)}"
            raise SourceError("unreadable", f"{where} has more than {_DEEPEST:,} nested lists and objects")


def _depth(text: bytes) -> int:
    depth = deepest = 0
    for sign in re.findall(rb"[\[{\]}]", _STRING.sub(b"", text)):
        depth += 1 if sign in b"[{" else -1
        deepest = max(deepest, depth)
    return deepest


def _explain(path: str, error: str) -> str:
    if "Empty JSON" in error:
        return f"{format_path(path)} is empty"
    changed: Any = re.search(r"Column\(/([^)]*)\) changed from (\w+) to (\w+) in row (\d+)", error)
    if changed is not None:
        name, was, became, row = changed.groups()
        return f"`{name}` changes from {was} to {became} in row {int(row) + 1} of {format_path(path)}"
    row = re.search(r"in row (\d+)", error)
    where = f"row {int(row[1]) + 1} of {format_path(path)}" if row else format_path(path)
    reason = re.sub(r" in row \d+", "", error.removeprefix("JSON parse error: ")).splitlines()[0]
    return f"{where} is not JSON: {reason[:200]}"
