"""What was written otherwise before: read as what it means today, reported, and mended where the text allows it.

`today` is part of writing out short forms, before recipes are merged; `told` reads a text as it was typed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from operator import eq, ge, gt, le, lt, ne
from typing import NamedTuple

from declarative_train.diagnostics.diagnostic import Diagnostic, Fix
from declarative_train.diagnostics.lines import Lines
from declarative_train.recipe.checks.keys import deprecated_form
from declarative_train.recipe.sections.model import DROP
from declarative_train.source.document import Document
from declarative_train.source.node import Entry, Mapping, Node, Path, Scalar
from declarative_train.source.node import Sequence as List
from declarative_train.terms.span import Span

PARALLELISM = "parallelism"
_OF_PIPELINE = ("stages", "schedule", "microbatches", "cut_before", "data_parallel")
_OF_SHARD = ("replicate", "reshard")
_KEYS: dict[str, tuple[str, ...]] = {  # of each `mode`, as a mapping had it
    **dict.fromkeys(("auto", "ddp", "dp", "single"), ()),
    "fsdp": _OF_SHARD,
    "pipeline": _OF_PIPELINE,
}
_AXIS_OF = {"ddp": "replicate", "fsdp": "shard"}


def today(node: Mapping) -> Node | None:
    """`{mode: fsdp, replicate: 2}`, or a part of it in a derived recipe, as axes. None: it is no such mapping, or one
    that was never right. One that says its `mode` replaces a base's of another mode, as it always did."""
    mode, names = node.get("mode"), {entry.name for entry in node} - {"mode"}
    if mode is None:
        if not names or not (names <= set(_OF_PIPELINE) or names <= set(_OF_SHARD)):
            return None
    elif not isinstance(mode, Scalar) or not names <= set(_KEYS.get(str(mode.value), ())):
        return mode if isinstance(mode, Scalar) and not names else None
    elif not names:
        return mode
    axes = _axes(node, mode if isinstance(mode, Scalar) else None)
    return None if axes is None else Mapping(tuple(axes), node.span, alone=mode is not None)


def _axes(node: Mapping, mode: Scalar | None) -> list[Entry] | None:
    inner = [entry for entry in node if entry.name not in ("mode", "data_parallel")]
    if any(entry.name in _OF_SHARD for entry in node):
        shard = [] if mode is None else [Entry(_key("shard", mode.span), _key("all", mode.span))]
        inner.sort(key=lambda entry: entry.name, reverse=True)  # replicas, shards, and then how they are gathered
        at = sum(entry.name == "replicate" for entry in inner)
        return [Entry(_key("data", node.span), Mapping((*inner[:at], *shard, *inner[at:]), node.span))]
    found = [Entry(_key("pipeline", node.span), Mapping(tuple(inner), node.span))] if inner else []
    beside = node.entry("data_parallel")
    if beside is not None:
        data = _data_axis(beside.value, is_whole=mode is not None)
        if data is None:
            return None
        found.insert(0, Entry(Scalar("data", "data", beside.key.span), data))
    return found


def _data_axis(node: Node, *, is_whole: bool) -> Node | None:
    """`{mode: fsdp, size: 2}` -> `{shard: 2}`. What a part of it means depends on the base."""
    if isinstance(node, Scalar) and node.value is None and not node.is_empty:
        return node
    if not isinstance(node, Mapping) or not {entry.name for entry in node} <= {"mode", "size"}:
        return None
    kind, size = node.get("mode"), node.get("size")
    name = "ddp" if kind is None and is_whole else kind.value if isinstance(kind, Scalar) else None
    if size is None or name not in _AXIS_OF:
        return None
    return Mapping((Entry(_key(_AXIS_OF[str(name)], node.span), size),), node.span)


def _key(text: str, span: Span) -> Scalar:
    return Scalar(text, text, span)


def replaces(path: tuple[str | int, ...], base: Mapping, over: Mapping) -> bool:
    """Whether a mapping with a `mode` takes the place of the base's axes: only one of the same mode was merged."""
    return over.alone and _mode(base) != _mode(over)


def _mode(axes: Mapping) -> str:
    if axes.entry("pipeline") is not None:
        return "pipeline"
    data = axes.get("data")
    return "fsdp" if isinstance(data, Mapping) and data.entry("shard") is not None else "ddp"


def null_value(path: tuple[str | int, ...], entry: Entry) -> tuple[Node, Diagnostic] | None:
    """`rename: {"head.": null}` left tensors out, where no base had the entry for the null to remove."""
    if path[:2] != ("model", "weights") or len(path) != 4 or path[3] != "rename":
        return None
    span = entry.value.span
    message = "a null only removes what a base says; what is left out is said by a word"
    found = deprecated_form(span, message, f"write `{DROP}`", (Fix(span, DROP, safe=True),))
    return Scalar(DROP, DROP, span), found


def told(root: Mapping, text: str) -> Sequence[Diagnostic]:
    """What one text says in an old form."""
    return list(_told(root, text))


def _told(root: Mapping, text: str) -> Iterator[Diagnostic]:
    node = root.get(PARALLELISM)
    if isinstance(node, Mapping) and (new := today(node)) is not None:
        written = _Written(Lines(node.span.path, text))
        words = written(new)
        first = node.entries[0].key.span
        fixes = () if words is None or written.has_comment(node) else (Fix(node.span, words, safe=True),)
        hint = f"write `parallelism: {words}`" if words is not None else "write `{data: {...}, pipeline: {...}}`"
        yield deprecated_form(first, "parallelism is a product of axes", hint, fixes)


def still_mended(found: Sequence[Diagnostic], document: Document) -> list[Diagnostic]:
    """Without the fix of a mapping that takes the place of a base's axes: under its new form the two would merge. Of a
    fragment alone nobody knows the base."""
    gone = [each.by for each in document.dropped if each.path == (PARALLELISM,) and each.reason == "alternative"]
    axes = document.find((PARALLELISM,))
    is_part = document.root.get("fragment") is not None
    if is_part and axes is not None:
        gone.append(axes.span)
    hint = "it replaces a base's axes: write its own, and null for those that it has not"
    if is_part:
        hint = "`--fix` mends it beside its recipe: dtrain lint --fix RECIPE --with FRAGMENT"
    return [
        each._replace(help=hint, fixes=())
        if each.code == "S011" and any(fix.span in gone for fix in each.fixes)
        else each
        for each in found
    ]


class _Written:
    """A tree as text on one line, its values as they were typed."""

    def __init__(self, lines: Lines) -> None:
        self.lines = lines

    def __call__(self, node: Node) -> str | None:
        """None where a value was not typed in one piece, such as an alias."""
        if isinstance(node, Scalar):
            typed = self._typed(node.span)
            return typed if typed.strip("'\"") == node.text else node.text if node.text == "all" else None
        if isinstance(node, List):
            items = [self(item) for item in node.items]
            return None if None in items else f"[{', '.join(map(str, items))}]"
        values = [(entry.name, self(entry.value)) for entry in node]
        return None if any(text is None for _, text in values) else f"{{{', '.join(f'{k}: {v}' for k, v in values)}}}"

    def has_comment(self, node: Node) -> bool:
        return "#" in self._typed(node.span)

    def _typed(self, span: Span) -> str:
        start = self.lines.offset(span.line, span.column)
        return self.lines.text[start : self.lines.offset(span.end_line, span.end_column)]


class Renamed(NamedTuple):
    name: str
    since: str
    """The version that brought the new name."""


DEPRECATED: dict[Path, Renamed] = {}
"""By the old path, such as ("training", "passes"); `*` stands for any one name."""


def renamed(path: Path, node: Mapping) -> Mapping:
    """`node`, which stands at `path`, with today's keys. One that has both is left: the old key is then unknown."""
    if not DEPRECATED:
        return node
    entries = tuple(_today(path, entry, node) for entry in node)
    return node if all(a is b for a, b in zip(entries, node, strict=True)) else node.with_entries(entries)


def _today(path: Path, entry: Entry, node: Mapping) -> Entry:
    found = lookup((*path, entry.name))
    if found is None or node.entry(found.name) is not None:
        return entry
    key = Scalar(entry.name, found.name, entry.key.span)  # typed one way, read the other
    return Entry(key, entry.value)


def lookup(path: Path) -> Renamed | None:
    """What the key at `path`, under its old name, is called."""
    return next((new for old, new in DEPRECATED.items() if _is(old, path)), None)


def _is(pattern: Path, path: Path) -> bool:
    return len(pattern) == len(path) and all(part in ("*", each) for part, each in zip(pattern, path, strict=True))


_FORM = re.compile(r"dtrain\s*(?P<conditions>[<>=!].*)")
_CONDITION = re.compile(r"\s*(?P<sign>>=|<=|==|!=|>|<)\s*(?P<version>\d+(?:\.\d+)*)\s*")
_SIGNS: dict[str, Callable[[tuple[int, ...], tuple[int, ...]], bool]] = {
    "!=": ne,
    "<": lt,
    "<=": le,
    "==": eq,
    ">": gt,
    ">=": ge,
}


def is_met(requires: str, version: str) -> bool:
    """Raises ValueError with what was wanted."""
    form = _FORM.fullmatch(requires.strip())
    conditions = form["conditions"].split(",") if form is not None else [""]
    met = True
    for condition in conditions:
        parts = _CONDITION.fullmatch(condition)
        if parts is None:
            raise ValueError(f"`{requires}` is not of the form `dtrain>=0.1` or `dtrain>=0.1,<0.3`")
        met = met and _SIGNS[parts["sign"]](*_padded(_numbers(version), _numbers(parts["version"])))
    return met


def _numbers(version: str) -> tuple[int, ...]:
    """Of the release: `0.2.0rc1` counts as 0.2.0."""
    return tuple(int(number) for number in re.findall(r"\d+", version.split("+")[0])[:3])


def _padded(one: tuple[int, ...], other: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    length = max(len(one), len(other))
    return one + (0,) * (length - len(one)), other + (0,) * (length - len(other))
