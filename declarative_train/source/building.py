"""Builder of the tree of nodes from YAML parser events. It uses a stack instead of recursion, with limits on depth and
size.

It reports mistakes that are valid YAML but not a valid recipe: duplicate keys, empty values, tags, keys that are not
text, aliases that expand without limit. YAML reads an unquoted `{{ x }}` as a mapping; it becomes the text that was
meant.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

from declarative_train.core.diagnostics.diagnostic import Diagnostic
from declarative_train.core.diagnostics.lines import Lines
from declarative_train.core.span import Span
from declarative_train.source import lexing
from declarative_train.source.checks.templates import template_in_key
from declarative_train.source.checks.yaml_layout import duplicate_key, missing_space, unquoted_template
from declarative_train.source.checks.yaml_values import (
    anchor_in_itself,
    decimal_comma,
    empty_item,
    empty_key,
    empty_value,
    explicit_tag,
    key_not_scalar,
    key_not_text,
    leading_zero,
    several_documents,
    too_deep,
    too_many_nodes,
    unknown_anchor,
    wrong_merge_key,
)
from declarative_train.source.lexing import join_pieces, num_open
from declarative_train.source.node import Entry, Mapping, Node, Scalar, Sequence, is_plain, kind_of
from declarative_train.source.scalars import has_leading_zero, pieces, resolve

MAX_DEPTH = 64
MAX_NODES = 200_000

_COUNTED_OTHERWISE = re.compile("[\x85\u2028\u2029\ufeff]")
_PROPERTIES = re.compile(r"(?:(?:!<[^>]*>|[&!][^\s,\[\]{}]*)[ \t\r\n]*)+")


class Stop(Exception):  # noqa: N818 (not an error: the mistake is reported already)
    """Exception that ends the reading of a file after a mistake, which is already reported."""


class _OpenCollection:
    """Mapping or list whose end has not been read yet. `start`: offset of its first character. `place`: line and column
    of this character. `known`: how many diagnostics and how many nodes there were before it."""

    __slots__ = (
        *("anchor", "column", "entries", "first_node", "flow", "has_empty", "height", "is_plain", "items", "key"),
        *("line", "mapping", "merges", "mistakes", "names", "skip_value", "start", "template", "pieces"),
    )

    def __init__(
        self, mapping: bool, flow: bool, start: int, place: tuple[int, int], anchor: str | None, known: tuple[int, int]
    ) -> None:
        self.mapping, self.flow, self.start, self.anchor = mapping, flow, start, anchor
        self.line, self.column = place
        self.mistakes, self.first_node = known
        self.items: list[Node] = []
        self.entries: list[Entry] = []
        self.merges: list[tuple[int, Scalar, Node]] = []
        self.names: dict[str, Scalar] = {}
        self.key: Scalar | None = None
        self.pieces: list[Scalar] = []  # of a value such as `(1, 2)`, which YAML cuts at the comma
        self.skip_value = self.has_empty = self.template = False
        self.is_plain = True
        self.height = 0


class Builder:
    """Builder of the tree of nodes of one YAML text. `begin`: offset in `lines` where the parsed text begins.
    `repairs`: {offset: original text} of places that were replaced by `x` so that the parser accepts the text.

    Lines and columns are those of the parser, which is fast. Where it counts differently, they are computed from
    offsets: after a byte order mark, a repair or a line break of YAML 1.1.
    """

    def __init__(self, lines: Lines, begin: int, repairs: dict[int, str]) -> None:
        self.lines, self.begin, self.repairs = lines, begin, repairs
        self.diagnostics: list[Diagnostic] = []
        self.last_quote: tuple[int, int] | None = None
        self._stack: list[_OpenCollection] = []
        self._anchors: dict[str, tuple[Node, int, int]] = {}  # node, number of nodes, height
        self._open_anchors: set[str] = set()
        self._num_nodes = 0
        self._root: Node | None = None
        self._num_documents = 0
        is_whole = begin == lines.starts[0] and not repairs
        self._marks_count_alike = is_whole and not _COUNTED_OTHERWISE.search(lines.text, begin)

    def build(self, parser: Any) -> Node | None:
        while (event := parser.get_event()) is not None:
            kind = type(event)
            if kind is yaml.ScalarEvent:
                self._add(self._scalar(event), event.anchor)
            elif kind is yaml.MappingStartEvent or kind is yaml.SequenceStartEvent:
                self._open(event, kind is yaml.MappingStartEvent)
            elif kind is yaml.MappingEndEvent or kind is yaml.SequenceEndEvent:
                self._close(event)
            elif kind is yaml.AliasEvent:
                self._alias(event)
            elif kind is yaml.DocumentStartEvent:
                self._num_documents += 1
                if self._num_documents > 1:
                    start = event.start_mark.index + self.begin
                    self._report(several_documents(self.lines.span(start, start + 3)))
                    break
        return self._root

    def _report(self, diagnostic: Diagnostic) -> None:
        self.diagnostics.append(diagnostic)

    # --- leaves -------------------------------------------------------------------------------------------------

    def _scalar(self, event: Any) -> Scalar:
        first, last = event.start_mark, event.end_mark
        start, end = first.index + self.begin, last.index + self.begin
        text, style = event.value, event.style
        if event.tag is not None or event.anchor is not None:
            start = self._skip_properties(event, start, end)
        elif not style and self._marks_count_alike:  # most scalars
            span = Span(self.lines.path, first.line + 1, first.column + 1, last.line + 1, last.column + 1)
            return self._plain(text, start, end, span)
        if event.tag is not None and not text and not style:
            text = self.lines.text[event.start_mark.index + self.begin : end].strip()  # the user meant the tag as text
            return Scalar(text, text, self.lines.span(event.start_mark.index + self.begin, end))
        if style in ("'", '"'):
            self.last_quote = (start, end)
            places = pieces(self.lines, start + 1, end - 1, text, escapes=True)
            return Scalar(text, text, self.lines.span(start, end), True, places)
        if style in ("|", ">"):
            return self._block_scalar(text, start, end)
        if start in self.repairs:
            text = self.repairs[start]
            return Scalar(text, text, self.lines.span(start, end))
        return self._plain(text, start, end, self.lines.span(start, end))

    def _plain(self, text: str, start: int, end: int, span: Span) -> Scalar:
        places = () if end - start == len(text) else pieces(self.lines, start, end, text, escapes=False)
        value = resolve(text)
        if type(value) is int and has_leading_zero(text):
            self._report(leading_zero(span, text, value))
        return Scalar(value, text, span, False, places)

    def _block_scalar(self, text: str, start: int, end: int) -> Scalar:
        """Return the node for a block scalar, a text that begins with `|` or `>`. `text`: its value. `start`, `end`:
        offsets of the whole block scalar in the file. The span of the node is shorter: from the first to the last
        character that is not a blank, without the `|` or `>`."""
        line, _ = self.lines.place(start)
        begin = self.lines.starts[line] if line < len(self.lines) else end
        raw = self.lines.text[begin:end]
        if not raw.strip():
            return Scalar(text, text, self.lines.span(start, start + 1))
        begin += len(raw) - len(raw.lstrip())
        stop = begin + len(raw.strip())
        return Scalar(
            text, text, self.lines.span(begin, stop), False, pieces(self.lines, begin, stop, text, escapes=False)
        )

    def _skip_properties(self, event: Any, start: int, end: int) -> int:
        """Return the offset at which a value begins, after its anchor and tag. Report a tag, because recipes must not
        have tags. `start`, `end`: offsets of the value with its anchor and tag.
        """
        found = _PROPERTIES.match(self.lines.text, start)
        stop = (
            min(found.end(), end) if found and isinstance(event, yaml.ScalarEvent) else found.end() if found else start
        )
        if event.tag is not None:
            typed = self.lines.text[start:stop]
            at = start + max(typed.find("!"), 0)
            word = typed[at - start :].split()[0] if typed[at - start :].split() else "!"
            plain = isinstance(event, yaml.ScalarEvent) and not event.style
            whole = self.lines.text[at:end].strip() if plain and "\n" not in self.lines.text[at:end] else None
            self._report(explicit_tag(self.lines.span(at, at + len(word)), word, text=whole))
        return stop

    # --- collections --------------------------------------------------------------------------------------------

    def _open(self, event: Any, mapping: bool) -> None:
        start = event.start_mark.index + self.begin
        if event.tag is not None or event.anchor is not None:
            start = self._skip_properties(event, start, event.end_mark.index + self.begin)
        if len(self._stack) >= MAX_DEPTH:
            self._report(too_deep(self.lines.span(start, start + 1), MAX_DEPTH))
            raise Stop
        if event.anchor is not None:
            self._open_anchors.add(event.anchor)
        known = (len(self.diagnostics), self._num_nodes)
        place = self.lines.place(start)
        self._stack.append(_OpenCollection(mapping, bool(event.flow_style), start, place, event.anchor, known))

    def _close(self, event: Any) -> None:
        frame = self._stack.pop()
        end = event.end_mark.index + self.begin
        node: Node
        if frame.template:
            del self.diagnostics[frame.mistakes :]
            text = self.lines.text[frame.start : end]
            span = self.lines.span(frame.start, end)
            self._report(unquoted_template(span, text, lexing.quote(text)))
            node = Scalar(text, text, span)
        elif frame.mapping:
            if frame.has_empty:
                self._report_empty(frame)
            if frame.merges:
                self._merge(frame)
            values = [entry.value for entry in frame.entries]
            node = Mapping(tuple(frame.entries), self._span(frame, end, values), is_plain=frame.is_plain)
        else:
            node = Sequence(tuple(frame.items), self._span(frame, end, frame.items), frame.is_plain)
        if frame.anchor is not None:
            self._open_anchors.discard(frame.anchor)
        if self._stack:
            self._stack[-1].height = max(self._stack[-1].height, frame.height + 1)
        self._add(node, frame.anchor, self._num_nodes - frame.first_node, frame.height + 1)

    def _span(self, frame: _OpenCollection, end: int, values: list[Node]) -> Span:
        """Return the span of a mapping or list. With brackets, it goes from bracket to bracket. Without brackets, it
        goes from the start of the collection to the end of its last value."""
        if frame.flow:
            return self.lines.span(frame.start, end)
        line, column = frame.line, frame.column
        for value in reversed(values):  # values of aliases and merge keys are elsewhere
            last = value.span
            if last.line > line or (last.line == line and last.column >= column):
                return Span(self.lines.path, line, column, last.end_line, last.end_column)
        return Span(self.lines.path, line, column, line, column)

    def _merge(self, frame: _OpenCollection) -> None:
        """Insert the entries of each merge key `<<: *base` at the position of that key. An entry is left out if the
        mapping itself has its key."""
        own = {entry.name for entry in frame.entries}
        for position, key, value in reversed(frame.merges):
            sources = value.items if isinstance(value, Sequence) else (value,)
            merged: list[Entry] = []
            for source in sources:
                if not isinstance(source, Mapping):
                    kind = kind_of(source)
                    self._report(wrong_merge_key(key.span, kind))
                    continue
                merged += [entry for entry in source.entries if entry.name not in own]
                own |= {entry.name for entry in source.entries}
            frame.entries[position:position] = merged

    def _alias(self, event: Any) -> None:
        start, end = event.start_mark.index + self.begin, event.end_mark.index + self.begin
        span = self.lines.span(start, end)
        found = self._anchors.get(event.anchor)
        if event.anchor in self._open_anchors:
            self._report(anchor_in_itself(span, event.anchor))
        elif found is None:
            self._report(unknown_anchor(span, event.anchor, self._anchors))
        else:
            node, size, height = found
            self._num_nodes += size
            if self._num_nodes > MAX_NODES:
                self._report(too_many_nodes(span, MAX_NODES, alias=True))
                raise Stop
            if len(self._stack) + height > MAX_DEPTH:
                self._report(too_deep(span, MAX_DEPTH))
                raise Stop
            if self._stack:
                self._stack[-1].height = max(self._stack[-1].height, height)
            self._add(node, None)
            return
        self._add(Scalar(f"*{event.anchor}", f"*{event.anchor}", span), None)

    # --- adding a node to the open collection -------------------------------------------------------------------

    def _add(self, node: Node, anchor: str | None, size: int = 0, height: int = 0) -> None:
        self._num_nodes += 1
        if self._num_nodes > MAX_NODES:
            self._report(
                too_many_nodes(Span(self.lines.path, node.span.line, 1, node.span.line, 2), MAX_NODES, alias=False)
            )
            raise Stop
        if anchor is not None:
            self._anchors[anchor] = (node, size + 1, height)
        if not self._stack:
            self._root = node
            return
        frame = self._stack[-1]
        if frame.is_plain:
            frame.is_plain = is_plain(node)
        if not frame.mapping:
            if isinstance(node, Scalar) and node.is_empty:
                node = self._empty_item(node)
            frame.items.append(node)
            if frame.flow and isinstance(node, Scalar) and (frame.pieces or "(" in node.text):
                self._repair_cut_value(frame, node, is_mapping=False)
        elif frame.key is None and not frame.skip_value:
            self._key(frame, node)
        else:
            self._value(frame, node)

    def _key(self, frame: _OpenCollection, node: Node) -> None:
        if not isinstance(node, Scalar):
            start = self.lines.offset(node.span.line, node.span.column)
            if frame.flow and isinstance(node, Mapping) and start == frame.start + 1:
                frame.template = True  # `{{`: the end of the mapping is the end of the template
            else:
                self._report(key_not_scalar(node.span, "a list" if isinstance(node, Sequence) else "a mapping"))
            frame.skip_value = True
            return
        if node.value is None and node.is_empty:
            self._report(
                empty_key(Span(node.span.path, node.span.line, node.span.column, node.span.line, node.span.column + 1))
            )
            frame.skip_value = True
            return
        if not node.quoted and not isinstance(node.value, str):
            kind = {bool: "a boolean", int: "a number", float: "a number"}.get(type(node.value), "null")
            self._report(key_not_text(node.span, node.text, kind))
        elif "{" in node.text and ("{{" in node.text or "{%" in node.text):
            self._report(template_in_key(node.span, node.text))
        frame.key = node

    def _value(self, frame: _OpenCollection, node: Node) -> None:
        key, frame.key = frame.key, None
        if frame.skip_value or key is None:
            frame.skip_value = False
            return
        if key.text == "<<" and not key.quoted:
            frame.merges.append((len(frame.entries), key, node))
            return
        if frame.flow and isinstance(node, Scalar) and (frame.pieces or "(" in node.text):
            if not node.is_empty:
                frame.pieces = []
            if self._repair_cut_value(frame, key if node.is_empty else node, is_mapping=True):
                return
        first = frame.names.setdefault(key.text, key)
        if first is not key:
            self._report(duplicate_key(key.span, key.text, first.span))
            return
        if isinstance(node, Scalar):
            if node.value is None and node.is_empty:
                node = Scalar(None, "", key.span)  # an empty value has no position, so it gets that of its key
                frame.has_empty = True
            elif node.span.line > key.span.line and not node.quoted and lexing.KEY_WITHOUT_SPACE.fullmatch(node.text):
                self._report_missing_space(node.span)
        frame.entries.append(Entry(key, node))

    def _report_empty(self, frame: _OpenCollection) -> None:
        for position, entry in enumerate(frame.entries):
            if not (isinstance(entry.value, Scalar) and entry.value.is_empty):
                continue
            if frame.flow and lexing.KEY_WITHOUT_SPACE.fullmatch(entry.name) and not entry.key.quoted:
                self._report(missing_space(entry.key.span, entry.name))
                continue
            if frame.flow and position and self._report_decimal_comma(frame.entries[position - 1].value, entry.key):
                continue
            after = frame.entries[position + 1].key if position + 1 < len(frame.entries) else None
            is_below = after is not None and not frame.flow and after.span.line > entry.key.span.line
            following = (after.text, after.span) if is_below and after is not None else None
            self._report(empty_value(entry.key.span, entry.name, following, flow=frame.flow))

    def _report_decimal_comma(self, before: Node, key: Scalar) -> bool:
        """Report a number with a decimal comma, such as `0,001`, which YAML reads as two values: the number `before`
        and the key `key`. Other diagnostics at `key` are removed. Return False if this is not such a number."""
        at, number = key.span, before.span
        if not (isinstance(before, Scalar) and type(before.value) is int and key.text.isdigit()):
            return False
        if (number.end_line, number.end_column + 1) != (at.line, at.column):
            return False
        known = [item for item in self.diagnostics if (item.span.line, item.span.column) == (at.line, at.column)]
        for item in known:
            self.diagnostics.remove(item)
        span = Span(at.path, number.line, number.column, at.end_line, at.end_column)
        self._report(decimal_comma(span, f"{before.text},{key.text}"))
        return True

    def _repair_cut_value(self, frame: _OpenCollection, piece: Scalar, *, is_mapping: bool) -> bool:
        """Store `piece`, the next piece of a value such as `(1, 2)`, which YAML splits at its commas. If it is the last
        piece, report the mistake and replace all pieces by one value. Return whether it was the last. `is_mapping`:
        whether the value is in a mapping, not in a list."""
        pieces = [*frame.pieces, piece]
        open_brackets = num_open(pieces)
        frame.pieces = pieces if open_brackets > 0 and not piece.quoted else []
        if open_brackets or len(pieces) < 2:
            return False
        meant, diagnostic = join_pieces(pieces, self.lines)
        cut = {(each.span.line, each.span.column) for each in pieces[1:]}
        self.diagnostics = [item for item in self.diagnostics if (item.span.line, item.span.column) not in cut]
        self._report(diagnostic)
        if not is_mapping:
            frame.items[-len(pieces) :] = [meant]
            return True
        inner = {id(each) for each in pieces[1:]}
        frame.entries = [entry for entry in frame.entries if id(entry.key) not in inner]
        frame.names = {name: each for name, each in frame.names.items() if id(each) not in inner}
        at = next(i for i, entry in enumerate(frame.entries) if entry.value is pieces[0])
        frame.entries[at] = Entry(frame.entries[at].key, meant)
        return True

    def _report_missing_space(self, span: Span) -> None:
        text = lexing.without_comment(self.lines.line(span.line)[span.column - 1 :])
        self._report(missing_space(Span(span.path, span.line, span.column, span.line, span.column + len(text)), text))

    def _empty_item(self, node: Scalar) -> Scalar:
        at = self.lines.text.rfind("-", 0, self.lines.offset(node.span.line, node.span.column))
        span = self.lines.span(at, at + 1) if at >= 0 else node.span
        self._report(empty_item(span))
        return Scalar(None, "", span)
