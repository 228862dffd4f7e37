"""Files of one JSON object per line -> a table held in memory."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Literal

from declarative_train.components.data import SourceError, Table
from declarative_train.components.datasets.files import (
    FilesDataset,
    check_beginning,
    open_file,
    packing,
    shown,
    skips_bad_rows,
)

if TYPE_CHECKING:
    import pyarrow as pa

_DEEPEST = 1_000  # lists and objects within each other; some ten thousand would overflow the stack of the reader
_MOST_CHANGES = 100  # lines that hold another type of value, each found by reading the file once more
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"?')


class JsonlDataset(FilesDataset):
    """Rows of JSON lines files, read whole into memory: one object per line, its keys are the columns.

    A key that a line does not have, or `null`, is a missing value. Several files are one table, file after file.
    Files that end in `.gz`, `.bz2` or `.zst` are unpacked.
    """

    type: Literal["jsonl"] = "jsonl"

    def open(self) -> Table:
        from declarative_train.components.datasets.arrow import MemoryTable

        bad: dict[str, list[tuple[int, str]]] = {}
        return MemoryTable([(path, _read(path, bad.setdefault(path, []))) for path in self.files()], bad)


def _read(path: str, bad: list[tuple[int, str]]) -> pa.Table:
    """`bad`: takes the lines that are left out, where bad rows are skipped."""
    import pyarrow as pa
    from pyarrow import json

    kind = packing(path)
    if kind is None:
        check_beginning(path, "a file of JSON lines", None)
    try:
        with pa.input_stream(open_file(path), compression=kind) as file:
            content = file.read_buffer()
        if skips_bad_rows():
            return _read_good(path, content.to_pybytes(), bad)
        _check_depth(path, content)
        block = max(1 << 20, min(content.size + 1, 1 << 30))  # a line must fit into one block
        options = json.ReadOptions(use_threads=False, block_size=block)
        return json.read_json(pa.BufferReader(content), read_options=options)
    except pa.ArrowInvalid as error:
        raise SourceError("unreadable", _explained(path, str(error))) from error
    except OSError as error:
        raise SourceError("unreadable", f"cannot read {shown(path)}: {error}") from error


def _read_good(path: str, content: bytes, bad: list[tuple[int, str]]) -> pa.Table:
    """Without lines that hold no JSON object, or a value of another type than the lines before."""
    import json as strict

    import pyarrow as pa
    from pyarrow import json

    numbers, lines = [], []
    for number, line in enumerate(content.split(b"\n")):
        if not line.strip():
            continue
        try:
            if line.count(b"[") + line.count(b"{") > _DEEPEST and _depth(line) > _DEEPEST:
                raise ValueError(f"it has more than {_DEEPEST:,} lists and objects within each other")
            if not isinstance(strict.loads(line), dict):
                raise ValueError("it holds no JSON object")
        except ValueError as error:
            why = "it is not UTF-8" if isinstance(error, UnicodeDecodeError) else str(error)
            bad.append((number, why if why.startswith("it ") else f"it is not JSON: {why}"))
            continue
        numbers.append(number)
        lines.append(line)
    for _ in range(_MOST_CHANGES):
        whole = b"\n".join(lines) + b"\n"
        options = json.ReadOptions(use_threads=False, block_size=max(1 << 20, min(len(whole) + 1, 1 << 30)))
        try:
            return json.read_json(pa.BufferReader(whole), read_options=options)
        except pa.ArrowInvalid as error:
            changed: Any = re.search(r"in row (\d+)", str(error))
            if changed is None or not lines:
                raise
            place = int(changed[1])
            said = re.search(r"Column\(/([^)]*)\) changed from (\w+) to (\w+)", str(error))
            why = "it is not JSON" if said is None else f"`{said[1]}` changes from {said[2]} to {said[3]}"
            bad.append((numbers.pop(place), why))
            del lines[place]
    message = f"more than {_MOST_CHANGES} rows of {shown(path)} hold values of another type than those before"
    raise SourceError("unreadable", message)


def _check_depth(path: str, content: pa.Buffer) -> None:
    """Raises SourceError for a line that is nested deeper than the reader can follow."""
    import numpy as np

    ends = np.flatnonzero(np.frombuffer(content, np.uint8) == ord("\n"))
    begins = np.concatenate([[0], ends + 1])
    ends = np.append(ends, content.size)
    for line in np.flatnonzero(ends - begins > _DEEPEST).tolist():
        text = memoryview(content)[begins[line] : ends[line]].tobytes()
        if text.count(b"[") + text.count(b"{") > _DEEPEST and _depth(text) > _DEEPEST:
            where = f"row {line + 1} of {shown(path)}"
            raise SourceError("unreadable", f"{where} has more than {_DEEPEST:,} lists and objects within each other")


def _depth(text: bytes) -> int:
    depth = deepest = 0
    for sign in re.findall(rb"[\[{\]}]", _STRING.sub(b"", text)):
        depth += 1 if sign in b"[{" else -1
        deepest = max(deepest, depth)
    return deepest


def _explained(path: str, error: str) -> str:
    if "Empty JSON" in error:
        return f"{shown(path)} is empty"
    changed: Any = re.search(r"Column\(/([^)]*)\) changed from (\w+) to (\w+) in row (\d+)", error)
    if changed is not None:
        name, was, became, row = changed.groups()
        return f"`{name}` changes from {was} to {became} in row {int(row) + 1} of {shown(path)}"
    row = re.search(r"in row (\d+)", error)
    where = f"row {int(row[1]) + 1} of {shown(path)}" if row else shown(path)
    reason = re.sub(r" in row \d+", "", error.removeprefix("JSON parse error: ")).splitlines()[0]
    return f"{where} is not JSON: {reason[:200]}"
