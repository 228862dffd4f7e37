"""Reader of YAML files: path -> text -> nodes with their positions, or all mistakes in the text."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import yaml

from declarative_train.core.diagnostics.diagnostic import Diagnostic
from declarative_train.core.diagnostics.lines import Lines, num_marks
from declarative_train.core.span import Span
from declarative_train.source import lexing
from declarative_train.source.building import Builder, Stop
from declarative_train.source.checks.yaml_layout import missing_space
from declarative_train.source.checks.yaml_values import (
    another_encoding,
    control_character,
    empty_file,
    file_too_large,
    not_a_mapping,
    not_a_recipe,
    not_utf8,
)
from declarative_train.source.document import SourceFile
from declarative_train.source.node import Mapping, Node, Scalar
from declarative_train.source.other_files import HEAD, recognize

MAX_BYTES = 5_000_000

_UTF_16 = (b"\xff\xfe", b"\xfe\xff")


def read_file(path: str, role: str) -> tuple[SourceFile | None, list[Diagnostic]]:
    """Read a file of a recipe, without parsing it. Return the file and diagnostics. The file is None if it is of
    another kind (such as a table), too large, or UTF-16. `role`: its role in the recipe (recipe, base, with or block).
    Raises OSError if it cannot be opened."""
    if os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path):
        raise OSError(0, "it is not an ordinary file")  # reading a pipe or a device might never end
    with open(path, "rb") as file:
        data = file.read(MAX_BYTES + 1)
    first = Span(path, 1, 1, 1, 1)
    if not data.startswith(_UTF_16) and (other := recognize(path, data[:HEAD])) is not None:
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


def explain_os_error(problem: OSError) -> str:
    """Return the reason why a file cannot be opened, for a message."""
    if isinstance(problem, FileNotFoundError | NotADirectoryError):
        return "does not exist"
    if isinstance(problem, IsADirectoryError):
        return "is a folder, not a file"
    if isinstance(problem, PermissionError):
        return "cannot be opened: permission denied"
    return f"cannot be read: {problem.strerror or problem}"


def find_siblings(path: str, typed: str) -> Iterator[str]:
    """Yield the paths of the YAML files in the folder of `path`. `typed`: `path` as the user wrote it. The results are
    relative or absolute, as `typed` is."""
    folder = Path(path).parent
    try:
        names = sorted(item.name for item in folder.iterdir() if item.suffix in (".yaml", ".yml"))
    except OSError:
        return
    for name in names:
        yield os.path.join(os.path.dirname(typed), name)


def find_tree(path: str) -> str:
    """Return the root of the folder tree to which a recipe belongs: the folder of its git repository. Without a
    repository it is the working directory if this contains the recipe, else the folder of the recipe."""
    folder = Path(os.path.realpath(path)).parent
    for parent in (folder, *folder.parents):
        if (parent / ".git").exists():
            return str(parent)
    here = Path.cwd()
    return str(here if folder.is_relative_to(here) else folder)


MAX_REPAIRS = 20
_LONG_TEXT = 200_000  # characters; a longer text is read again only twice, because each reading takes long

_FORBIDDEN = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

PARSER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_text(path: str, text: str) -> tuple[Mapping | None, list[Diagnostic]]:
    """Parse the text of a file. Return its mapping (None if the text is not a mapping), and diagnostics. `path`: the
    path of the file, for the spans of all nodes."""
    node, diagnostics = read_value(path, text, num_marks(text))
    if isinstance(node, Mapping) or (diagnostics and node is None):
        return node, diagnostics
    lines = Lines(path, text)
    if node is None or (isinstance(node, Scalar) and node.is_empty):
        return None, [*diagnostics, empty_file(_first_line(lines))]
    if isinstance(node, Scalar) and not node.quoted and lexing.KEY_WITHOUT_SPACE.fullmatch(node.text):
        return None, [*diagnostics, missing_space(node.span, node.text)]
    kind = "a text" if isinstance(node, Scalar) else "a list"
    span = Span(path, node.span.line, node.span.column, node.span.line, node.span.column + 1)
    return None, [*diagnostics, not_a_mapping(span, kind)]


def read_value(path: str, text: str, begin: int = 0) -> tuple[Node | None, list[Diagnostic]]:
    """Parse the value in `text` from offset `begin` on. Return its node (None if there is no value or it cannot be
    read), and diagnostics."""
    lines = Lines(path, text)
    broken = [found.start() for found in _FORBIDDEN.finditer(text, begin)]
    mistakes: list[Diagnostic] = []
    if broken:
        mistakes.append(control_character([lines.span(at, at + 1) for at in broken], text[broken[0]]))
        text = _FORBIDDEN.sub("\N{REPLACEMENT CHARACTER}", text)
    working, repairs = text, dict[int, str]()
    while True:
        builder = Builder(lines, begin, repairs)
        try:
            return _try_build(builder, working[begin:]), _without_repeats(mistakes, builder.diagnostics)
        except Stop:
            return None, _without_repeats(mistakes, builder.diagnostics)
        except yaml.MarkedYAMLError as error:
            from declarative_train.source.syntax import explain  # only for mistakes

            found = explain(error, lines, begin, builder.last_quote, repairs)
        mistakes.append(found.diagnostic)
        limit = MAX_REPAIRS if len(text) < _LONG_TEXT else 2
        if found.repair is None or len(repairs) >= limit or found.repair[0] in repairs:
            return None, _without_repeats(mistakes, builder.diagnostics)
        start, end = found.repair
        repairs[start] = text[start:end]
        working = f"{working[:start]}{'x' * (end - start)}{working[end:]}"


def _try_build(builder: Builder, text: str) -> Node | None:
    parser = PARSER(text)
    try:
        return builder.build(parser)
    finally:
        parser.dispose()


def _without_repeats(*found: list[Diagnostic]) -> list[Diagnostic]:
    """Return the diagnostics without duplicates: parser and builder may report the same mistake."""
    return list(dict.fromkeys(diagnostic for each in found for diagnostic in each))


def _first_line(lines: Lines) -> Span:
    return Span(lines.path, 1, 1, 1, 1 + len(lexing.without_comment(lines.line(1))))
