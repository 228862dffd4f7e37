"""Recognition of files that are not recipes, by name and first bytes: the kind of the file, and what to do with it."""

from __future__ import annotations

import os
import re
from typing import NamedTuple

from declarative_train.core.names import EVENTS

HEAD = 4096  # bytes to examine
_CONTROL = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_CONTROL_SHARE = 0.02  # share of control characters from which a file that is not UTF-8 is binary


class FileKind(NamedTuple):
    """Kind of a file that is not a recipe. `what` is its name with an article. `help` may contain `{path}`, the path of
    the file, and `{folder}`, its folder."""

    what: str
    help: str


_FIRST = "; `dtrain init --from {path} --target COLUMN` writes a first recipe"
_TABLE = FileKind("a table", "use it in a recipe under `data.source`" + _FIRST)
_ARRAYS = FileKind("a file of arrays", "use it in a recipe under `data.source`: `{{type: npy, path: {path}}}`")
_DATABASE = FileKind(
    "an SQLite database",
    "use it in a recipe under `data.source`: `{{type: sqlite, path: {path}, table: ...}}`" + _FIRST,
)
_WEIGHTS = FileKind("a file of weights", "use it in a recipe under `model.weights`")
_CODE = FileKind("Python code", "use your own layer in a recipe: `plugins: [{path}]`")
_PICTURE = FileKind(
    "a picture", "use folders of them in a recipe under `data.source`: `{{type: image_folder, path: ...}}`"
)
_EVENTS = FileKind("the record of a run", "`dtrain trace {folder}` prints its events")
_BYTES = FileKind("binary", "pass a recipe: a YAML file")
BY_NAME = {EVENTS: _EVENTS}
BY_ENDING = {
    **dict.fromkeys((".csv", ".tsv", ".jsonl", ".ndjson", ".parquet", ".pq"), _TABLE),
    **dict.fromkeys((".npy", ".npz"), _ARRAYS),
    **dict.fromkeys((".db", ".sqlite", ".sqlite3"), _DATABASE),
    **dict.fromkeys((".ckpt", ".distcp", ".onnx", ".pt", ".pt2", ".pth", ".safetensors"), _WEIGHTS),
    ".py": _CODE,
    ".ipynb": FileKind("a notebook", "in Python, open a recipe with `declarative_train.load(...)`"),
}
BY_BYTES = {
    b"\x89PNG": _PICTURE,
    b"\xff\xd8\xff": _PICTURE,
    b"GIF8": _PICTURE,
    b"PAR1": _TABLE,
    b"SQLite format 3\0": _DATABASE,
    b"\x93NUMPY": _ARRAYS,
    b"PK\x03\x04": FileKind("an archive", "pass a recipe: a YAML file"),
    b"\x1f\x8b": FileKind("an archive", "pass a recipe: a YAML file"),
}


def recognize(path: str, head: bytes) -> FileKind | None:
    """Return the kind of a file that cannot be a recipe, by its name and first bytes; None if it may be a recipe."""
    name = os.path.basename(path)
    found = BY_NAME.get(name) or BY_ENDING.get(os.path.splitext(name)[1].lower())
    found = found or next((each for mark, each in BY_BYTES.items() if head.startswith(mark)), None)
    if found is None and _is_binary(head):
        found = _BYTES
    folder = os.path.dirname(path) or "."
    return None if found is None else FileKind(found.what, found.help.format(path=path, folder=folder))


def _is_binary(head: bytes) -> bool:
    try:
        head.decode("utf-8")
    except UnicodeDecodeError as problem:
        is_cut = problem.reason == "unexpected end of data"  # the examined bytes end inside a character
        return not is_cut and len(_CONTROL.findall(head)) > _CONTROL_SHARE * len(head)
    return head.count(0) > len(head) // 4
