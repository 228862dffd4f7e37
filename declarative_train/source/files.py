"""Path of a YAML file -> its text, exactly as it stands on the disk, or why it cannot be read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from declarative_train.diagnostics.diagnostic import Diagnostic
from declarative_train.diagnostics.lines import Lines
from declarative_train.source.checks.yaml_values import (
    another_encoding,
    file_too_large,
    not_a_recipe,
    not_utf8,
)
from declarative_train.source.document import SourceFile
from declarative_train.source.other_files import HEAD, other_kind
from declarative_train.terms.span import Span

MAX_BYTES = 5_000_000

_UTF_16 = (b"\xff\xfe", b"\xfe\xff")


def read_file(path: str, role: str) -> tuple[SourceFile | None, list[Diagnostic]]:
    """The file, or None and what is wrong with its bytes. Raises OSError when there is no file to read."""
    if os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path):
        raise OSError(0, "it is not an ordinary file")  # reading a pipe or a device might never end
    with open(path, "rb") as file:
        data = file.read(MAX_BYTES + 1)
    first = Span(path, 1, 1, 1, 1)
    if not data.startswith(_UTF_16) and (other := other_kind(path, data[:HEAD])) is not None:
        return None, [not_a_recipe(first, *other)]
    if len(data) > MAX_BYTES:
        return None, [file_too_large(first, path, MAX_BYTES)]
    if data.startswith(_UTF_16):
        return None, [another_encoding(first, "UTF-16")]
    try:
        return SourceFile(path, data.decode("utf-8"), role), []
    except UnicodeDecodeError as problem:
        text = data.decode("utf-8", errors="replace")
        at = len(data[: problem.start].decode("utf-8"))
        span = Lines(path, text).span(at, at + 1)
        return SourceFile(path, text, role), [not_utf8(span, data[problem.start])]


def why(problem: OSError) -> str:
    """What a message says of a file that cannot be opened."""
    if isinstance(problem, FileNotFoundError | NotADirectoryError):
        return "is not there"
    if isinstance(problem, IsADirectoryError):
        return "is a folder, not a file"
    if isinstance(problem, PermissionError):
        return "cannot be opened: permission denied"
    return f"cannot be read: {problem.strerror or problem}"


def recipes_beside(path: str, typed: str) -> Iterator[str]:
    """The YAML files in the folder of `path`, named as `typed` would name them."""
    folder = Path(path).parent
    try:
        names = sorted(item.name for item in folder.iterdir() if item.suffix in (".yaml", ".yml"))
    except OSError:
        return
    for name in names:
        yield os.path.join(os.path.dirname(typed), name)


def tree_of(path: str) -> str:
    """The folder tree that a recipe belongs to: its git repository, else the working directory if the recipe is
    below it, else its own folder."""
    folder = Path(os.path.realpath(path)).parent
    for parent in (folder, *folder.parents):
        if (parent / ".git").exists():
            return str(parent)
    here = Path.cwd()
    return str(here if folder.is_relative_to(here) else folder)
