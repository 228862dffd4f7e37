"""YAML nodes with the position where the user typed them.

After `extends`, `--with` and `--set` are merged, one tree has nodes of several files; each keeps its own span.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator
from operator import is_
from typing import Final, NamedTuple

from declarative_train.core.span import Span

ScalarValue = str | int | float | bool | None

Piece = tuple[int, int, int]  # (offset in the text, line, column) where a row of consecutive characters begins


class Scalar(NamedTuple):
    """Single value. `value` follows the core rules of YAML 1.2 (`1e-4` is a float, `no` a string). `text` is the
    value as text without quotes: as typed, or the result of a template. `template`: the template as typed, or None.

    `pieces`: if the text has several lines or escapes, where each run of its characters is in the file; otherwise ().
    """

    value: ScalarValue
    text: str
    span: Span
    quoted: bool = False
    pieces: tuple[Piece, ...] = ()
    template: str | None = None

    @property
    def offset(self) -> int:
        """Number of characters before `text` in the span: 1 if the scalar begins with a quote, else 0."""
        return 1 if self.quoted else 0

    @property
    def is_empty(self) -> bool:
        """True if a key has no value at all. A written `null` or `~` is not empty."""
        return self.value is None and not self.text and self.template is None

    def place(self, start: int, length: int = 1) -> Span:
        """Return the span of `length` characters of `text`, from index `start` on. If `text` is the result of a
        template, return the span of the whole scalar, because its characters are not in the file."""
        if self.template is not None:
            return self.span
        if not self.pieces:
            if self.span.line != self.span.end_line:
                return self.span
            return self.span.within(self.offset + start, length)
        offset, line, column = next((piece for piece in reversed(self.pieces) if piece[0] <= start), self.pieces[0])
        column += start - offset
        return Span(self.span.path, line, column, line, column + length)


class Sequence(NamedTuple):
    """List of nodes. `is_plain`: True if the list is known to contain no template and no null at any depth; False
    means unknown."""

    items: tuple[Node, ...]
    span: Span
    is_plain: bool = False


class Entry(NamedTuple):
    key: Scalar
    value: Node

    @property
    def name(self) -> str:
        return self.key.text


class Mapping:
    """Mapping of keys to nodes. `alone`: True if it was written in the short form of a single entry (`loss: ...` for
    `losses: {loss: ...}`), which a merge treats differently (`source/merge.py`). `is_plain`: True if no value at any
    depth is a template or null; False if this is unknown."""

    __slots__ = ("alone", "entries", "is_plain", "span")

    def __init__(
        self, entries: tuple[Entry, ...], span: Span, alone: bool = False, is_plain: bool = False
    ) -> None:  # a frozen dataclass would take three times as long to create, and a recipe has thousands of nodes
        self.entries: Final = entries
        self.span: Final = span
        self.alone: Final = alone
        self.is_plain: Final = is_plain

    def __repr__(self) -> str:
        return f"Mapping({self.entries!r}, {self.span!r})"

    def entry(self, name: str) -> Entry | None:
        for entry in self.entries:
            if entry.key.text == name:
                return entry
        return None

    def get(self, name: str) -> Node | None:
        found = self.entry(name)
        return None if found is None else found.value

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries)

    def with_entries(self, entries: Iterable[Entry]) -> Mapping:
        """Return a copy of this mapping, at the same span, with other entries."""
        return Mapping(tuple(entries), self.span, self.alone)

    def with_values(self, change: Callable[[Entry], Node]) -> Mapping:
        """Return a copy in which each value is `change(entry)`; this mapping itself if no value changes."""
        values = [change(entry) for entry in self.entries]
        if all(map(is_, values, [entry.value for entry in self.entries])):
            return self
        return self.with_entries([Entry(entry.key, new) for new, entry in zip(values, self.entries, strict=True)])

    def only(self, names: Container[str]) -> Mapping:
        """Return a copy with only the entries whose keys are in `names`."""
        kept = tuple([entry for entry in self.entries if entry.key.text in names])
        return Mapping(kept, self.span, self.alone, self.is_plain)

    def without(self, names: Container[str]) -> Mapping:
        """Return a copy without the entries whose keys are in `names`."""
        kept = tuple([entry for entry in self.entries if entry.key.text not in names])
        return Mapping(kept, self.span, self.alone, self.is_plain)


Node = Scalar | Sequence | Mapping

Path = tuple[str | int, ...]  # keys and list positions from the root: ("model", "graph", "hidden", "out_features")


def is_template(text: str) -> bool:
    return "{" in text and ("{{" in text or "{%" in text or "{#" in text)


def find(root: Node, path: Path) -> Node | None:
    """Return the node at `path` below `root`, or None if there is none."""
    node: Node | None = root
    for part in path:
        if isinstance(node, Mapping):
            node = node.get(str(part))
        elif isinstance(node, Sequence) and isinstance(part, int) and 0 <= part < len(node.items):
            node = node.items[part]
        else:
            return None
    return node


def scalars(node: Node, *, plain: bool = True) -> Iterator[Scalar]:
    """Yield every scalar in a node, nested ones included, in the order of the text. For a scalar, yield the node
    itself. `plain=False`: skip lists and mappings whose `is_plain` is true: they contain no null and no template."""
    waiting = [node]
    while waiting:
        each = waiting.pop()
        if isinstance(each, Scalar):
            yield each
        elif plain or not each.is_plain:
            if isinstance(each, Sequence):
                waiting += reversed(each.items)
            else:
                waiting += [entry.value for entry in reversed(each.entries)]


def is_open(node: Node) -> bool:
    """Return whether a node is or contains a template that was not rendered, so that the value is unknown."""
    return any(isinstance(each.value, str) and is_template(each.value) for each in scalars(node, plain=False))


def to_value(node: Node) -> object:
    """Return a node as plain Python data. A sequence becomes a tuple, which frozen pydantic models accept in strict
    mode."""
    if isinstance(node, Scalar):
        return node.value
    if isinstance(node, Sequence):
        return tuple(to_value(item) for item in node.items)
    return {entry.name: to_value(entry.value) for entry in node.entries}


def is_plain(node: Node) -> bool:
    """Return True only if a node has neither a null nor a template in it. False may also mean that this is unknown."""
    if not isinstance(node, Scalar):
        return node.is_plain
    value = node.value
    return value is not None and not (isinstance(value, str) and is_template(value))


def kind_of(node: Node) -> str:
    """Return the kind of a node, for a message: `a list`, `a mapping`, `a text` or `nothing`. For a number or a
    boolean, return its text in backticks."""
    if not isinstance(node, Scalar):
        return "a list" if isinstance(node, Sequence) else "a mapping"
    return "a text" if isinstance(node.value, str) else "nothing" if node.value is None else f"`{node.text}`"


def describe_node(node: Node) -> str:
    """Return a description of a node for a message: `a list`, `a mapping`, `empty`, or the value. A text is in
    backticks; a text of more than 60 characters is only `a text`."""
    if isinstance(node, Sequence):
        return "a list"
    if isinstance(node, Mapping):
        return "a mapping"
    if node.value is None:
        return "empty"
    if isinstance(node.value, str):
        return f"the text `{node.value}`" if len(node.value) <= 60 else "a text"
    return f"`{node.text}`" if isinstance(node.value, bool) else f"{node.text or node.value}"
