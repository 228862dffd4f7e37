"""Short forms written out before recipes are merged, and keys that displace each other."""

from __future__ import annotations

from declarative_train.recipe.deprecated import DEPRECATED, renamed
from declarative_train.source.merge import ANY, MergeRules
from declarative_train.source.node import Entry, Mapping, Node, Path, Scalar, Sequence
from declarative_train.terms.span import Span


def normalise(path: Path, node: Node) -> Node:
    """The long form of what stands at `path`, under today's keys; what is no short form stays as it is, right or
    wrong."""
    if isinstance(node, Mapping):
        node = renamed(path, node)
    if path == ("parallelism",) and _is_value(node):
        return _mapping(node.span, mode=node)
    if path == ("objective",) and isinstance(node, Mapping):
        return _with_losses(node)
    if path == ("objective", "metrics") and isinstance(node, Sequence):
        return _named(node)
    if path == ("model", "weights") and _is_value(node):
        return Mapping((_entry("", _mapping(node.span, path=node), node.span),), node.span)
    if path == ("model", "weights") and isinstance(node, Mapping) and isinstance(node.get("path"), Scalar):
        return Mapping((_entry("", node, node.span),), node.span)
    if path[:2] == ("data", "split") and len(path) == 3 and _is_value(node):
        return _mapping(node.span, type=_text("random", node.span), fraction=node)
    if path[:2] == ("data", "split") and len(path) == 3 and isinstance(node, Mapping):
        return _with_own_source(node)
    return node


def _with_losses(node: Mapping) -> Mapping:
    """`loss: {...}` is `losses: {loss: ...}`, alone. Beside it, `losses` may only hold nulls, which remove the base's
    first; and beside `losses` a `loss: null` does that."""
    short, long = node.entry("loss"), node.entry("losses")
    if short is None or (long is not None and not _go_together(short.value, long.value)):
        return node
    terms: tuple[Entry, ...] = (short,)
    if long is not None and isinstance(long.value, Mapping) and not _says(short.value):
        terms, long = (short, *long.value.entries), None
    span = short.value.span
    losses = _entry("losses", Mapping(terms, span, alone=_says(short.value)), short.key.span)
    entries: list[Entry] = []
    for entry in node.entries:
        if entry is short:
            entries += (losses,) if long is None else (long, losses)
        elif entry.name != "losses":
            entries.append(entry)
    return Mapping(tuple(entries), node.span)


def _go_together(short: Node, long: Node) -> bool:
    """Only one of `loss` and `losses` gives something; the other removes."""
    if not isinstance(long, Mapping):
        return _says(short) and _is_null(long)
    return not _says(short) or (bool(long.entries) and all(_is_null(entry.value) for entry in long.entries))


def _with_own_source(node: Mapping) -> Mapping:
    """A set with a `source` is of the type that is called so: it replaces one that is cut from the rows, and is
    replaced by one."""
    source = node.entry("source")
    if source is None or not _says(source.value) or node.entry("type") is not None:
        return node
    return Mapping((_entry("type", _text("source", source.key.span), source.key.span), *node.entries), node.span)


def _named(node: Sequence) -> Node:
    """`[accuracy]` is `{accuracy: {}}`: the name is the type where none is given. A list that names one twice stays as
    it is, for who reads it to refuse."""
    entries = []
    for item in node.items:
        if not isinstance(item, Scalar) or not isinstance(item.value, str):
            return node
        entries.append(Entry(item, Mapping((), item.span)))
    if len({entry.name for entry in entries}) < len(entries):
        return node
    return Mapping(tuple(entries), node.span)


def _says(node: Node) -> bool:
    """Anything but null, which removes."""
    return not isinstance(node, Scalar) or node.value is not None


def _is_null(node: Node) -> bool:
    return isinstance(node, Scalar) and node.value is None and not node.is_empty


def _is_value(node: Node) -> bool:
    return isinstance(node, Scalar) and _says(node)


def _mapping(span: Span, **values: Node) -> Mapping:
    return Mapping(tuple(_entry(key, value, span) for key, value in values.items()), span)


def _entry(key: str, value: Node, span: Span) -> Entry:
    return Entry(_text(key, span), value)


def _text(text: str, span: Span) -> Scalar:
    return Scalar(text, text, span)


def _default_type(path: Path) -> str | None:
    """What a mapping without `type` is."""
    if len(path) != 3:
        return None
    if path[:2] == ("data", "fields"):
        return "tensor"
    return str(path[2]) if path[:2] == ("objective", "metrics") else None


def _pair(*holder: str, either: str, other: str) -> frozenset[Path]:
    return frozenset({(*holder, either), (*holder, other)})


MERGE_RULES = MergeRules(
    normalise=normalise,
    exclusive=(
        _pair("data", "fields", ANY, either="column", other="columns"),
        _pair("layout", either="gpus", other="gpus_per_node"),
        _pair("layout", either="gpus", other="nodes"),
        _pair("model", "blocks", ANY, either="output", other="outputs"),
        _pair("model", "blocks", ANY, "graph", ANY, either="input", other="inputs"),
        _pair("model", "graph", ANY, either="input", other="inputs"),
        _pair("objective", "metrics", ANY, either="of", other="input"),
        _pair("objective", "metrics", ANY, either="of", other="mask"),
        _pair("objective", "metrics", ANY, either="of", other="target"),
        _pair("training", either="epochs", other="steps"),
        _pair("training", either="gradient_accumulation_steps", other="microbatch_size"),
        _pair("training", "lr_schedule", either="every", other="milestones"),
    ),
    default_type=_default_type,
    depth=max(3, *(len(path) - 1 for path in DEPRECATED)) if DEPRECATED else 3,  # of a set under `data.split`
)
