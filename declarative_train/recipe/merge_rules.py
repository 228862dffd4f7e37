"""Rules for merging recipes: short forms that are expanded before merging, default types, and pairs of keys that
exclude each other.
"""

from __future__ import annotations

from collections.abc import Mapping as MappingABC
from typing import NamedTuple

from declarative_train.core.span import Span
from declarative_train.recipe.hints.other_programs import diagnose_other_file
from declarative_train.recipe.sections.parallelism import AXES_OF_WORDS
from declarative_train.source.merge import ANY, MergeRules, is_null
from declarative_train.source.node import Entry, Mapping, Node, Path, Scalar, Sequence


class Alternatives(NamedTuple):
    """Two keys, `either` and `other`, that exclude each other in a mapping. If the base recipe has one of them and the
    derived recipe has the other, the one of the base is removed. `holder`: path of the mapping."""

    holder: Path
    either: str
    other: str
    is_reported_by_reader: bool = False
    """True if the code that reads the mapping reports a mapping with both keys. If False, the rule `exclusive_keys`
    reports it.
    """


EXCLUSIVE = (
    Alternatives(("training",), "epochs", "steps"),
    Alternatives(("training",), "gradient_accumulation_steps", "microbatch_size"),
    Alternatives(("layout",), "gpus", "nodes"),
    Alternatives(("layout",), "gpus", "gpus_per_node"),
    Alternatives(("data", "fields", ANY), "column", "columns", True),
    Alternatives(("model", "blocks", ANY), "output", "outputs", True),
    Alternatives(("model", "blocks", ANY, "graph", ANY), "input", "inputs", True),
    Alternatives(("model", "graph", ANY), "input", "inputs", True),
    Alternatives(("objective", "metrics", ANY), "of", "input", True),
    Alternatives(("objective", "metrics", ANY), "of", "mask", True),
    Alternatives(("objective", "metrics", ANY), "of", "target", True),
    Alternatives(("training", "lr_schedule"), "every", "milestones", True),
)
DEFAULT_TYPES: dict[Path, str | None] = {  # None: the name of the entry is its type
    ("data", "fields"): "tensor",
    ("objective", "metrics"): None,
}


def normalise(path: Path, node: Node) -> Node:
    """Return the value at `path` in its long form: `precision: bf16` becomes `precision: {compute: bf16}`. A value that
    is not a short form is returned unchanged, even if it is invalid.
    """
    if path == ("training", "precision") and _is_value(node):
        return _mapping(node.span, compute=node)
    if path == ("training", "activation_checkpointing") and _is_value(node):
        return _mapping(node.span, policy=node)
    if path in (("parallelism", "tensor"), ("parallelism", "context")) and _is_value(node):
        return _mapping(node.span, size=node)
    if path == ("objective",) and isinstance(node, Mapping):
        return _expand_loss(node)
    if path == ("objective", "metrics") and isinstance(node, Sequence):
        return _name_metrics(node)
    if path == ("model", "weights") and _is_value(node):
        return Mapping((_entry("", _mapping(node.span, path=node), node.span),), node.span)
    if path == ("model", "weights") and isinstance(node, Mapping) and isinstance(node.get("path"), Scalar):
        return Mapping((_entry("", node, node.span),), node.span)
    if path[:2] == ("model", "weights") and len(path) == 3 and isinstance(node, Scalar) and isinstance(node.value, str):
        return _mapping(node.span, path=node)
    if path[:2] == ("data", "split") and len(path) == 3 and _is_value(node):
        return _mapping(node.span, type=_text("random", node.span), fraction=node)
    if path[:2] == ("data", "split") and len(path) == 3 and isinstance(node, Mapping):
        return _add_source_type(node)
    return node


def _expand_loss(node: Mapping) -> Mapping:
    """Return the section `objective` with `loss: {...}`, its short form for a single loss, replaced by `losses: {loss:
    {...}}`. The new mapping is marked as `alone`: it replaces all losses of a base recipe that have other names. A
    section that wrongly has both keys is returned unchanged."""
    short, long = node.entry("loss"), node.entry("losses")
    if short is None or (long is not None and not _may_be_together(short.value, long.value)):
        return node
    terms: tuple[Entry, ...] = (short,)
    if long is not None and isinstance(long.value, Mapping) and not _is_not_null(short.value):
        terms, long = (short, *long.value.entries), None
    span = short.value.span
    losses = _entry("losses", Mapping(terms, span, alone=_is_not_null(short.value)), short.key.span)
    entries: list[Entry] = []
    for entry in node.entries:
        if entry is short:
            entries += (losses,) if long is None else (long, losses)
        elif entry.name != "losses":
            entries.append(entry)
    return node.with_entries(entries)


def _may_be_together(short: Node, long: Node) -> bool:
    """Return whether a section may have both `loss` and `losses`. It may if one of the two has only nulls, because a
    null only removes a loss of the base recipe. `short`: the value of `loss`. `long`: the value of `losses`."""
    if not isinstance(long, Mapping):
        return _is_not_null(short) and is_null(long)
    return not _is_not_null(short) or (bool(long.entries) and all(is_null(entry.value) for entry in long.entries))


def _add_source_type(node: Mapping) -> Mapping:
    """Return `node`, an entry of `data.split`, with `type: source` added if it has a key `source` but no `type`. The
    merge needs the type: a set replaces the set of the base recipe as a whole if their types differ."""
    source = node.entry("source")
    if source is None or not _is_not_null(source.value) or node.entry("type") is not None:
        return node
    return node.with_entries((_entry("type", _text("source", source.key.span), source.key.span), *node.entries))


def _name_metrics(node: Sequence) -> Node:
    """Return a list of metrics in its long form: `[accuracy]` becomes `{accuracy: {}}`. An invalid list (a repeated
    name, or an item that is not a name) is returned unchanged; the reader of the section reports it.
    """
    entries = []
    for item in node.items:
        if not isinstance(item, Scalar) or not isinstance(item.value, str):
            return node
        entries.append(Entry(item, Mapping((), item.span)))
    if len({entry.name for entry in entries}) < len(entries):
        return node
    return Mapping(tuple(entries), node.span)


def _is_not_null(node: Node) -> bool:
    """Return whether a node is anything but null. (A null in a recipe removes the value of the base recipe.)"""
    return not isinstance(node, Scalar) or node.value is not None


def _is_value(node: Node) -> bool:
    return isinstance(node, Scalar) and _is_not_null(node)


def _mapping(span: Span, **values: Node) -> Mapping:
    return Mapping(tuple(_entry(key, value, span) for key, value in values.items()), span)


def _entry(key: str, value: Node, span: Span) -> Entry:
    return Entry(_text(key, span), value)


def _text(text: str, span: Span) -> Scalar:
    return Scalar(text, text, span)


def _default_type(path: Path) -> str | None:
    """Return the type that a component at this path has if the recipe leaves it out: `tensor` for a field, its own name
    for a metric. None if the type must be written.
    """
    return (DEFAULT_TYPES[path[:2]] or str(path[2])) if len(path) == 3 and path[:2] in DEFAULT_TYPES else None


def add_default_types(tree: Mapping) -> Mapping:
    """Return the recipe with `type` added to each component that has a default type and does not set one. Call this
    only after merging, because an added type would replace the type of the base recipe.
    """

    def add_type(path: Path, entry: Entry) -> Node:
        here, node = (*path, entry.name), entry.value
        if not isinstance(node, Mapping):
            return node
        name = _default_type(here)
        if name is not None:
            span = entry.key.span
            added = Entry(_text("type", span), _text(name, span))
            return node if node.entry("type") is not None else node.with_entries((added, *node.entries))
        is_above = any(holder[: len(here)] == here for holder in DEFAULT_TYPES)
        return node.with_values(lambda each: add_type(here, each)) if is_above else node

    return tree.with_values(lambda entry: add_type((), entry))


def axes_of_word(word: Scalar) -> Mapping:
    """Return the mapping that the word stands for as the value of `parallelism`: `fsdp` -> `{data: {shard: all}}`. The
    mapping and all values in it have the span of the word."""

    def make(value: str | MappingABC[str, object]) -> Node:
        if isinstance(value, str):
            return _text(value, word.span)
        return _mapping(word.span, **{key: make(each) for key, each in value.items()})  # type: ignore[arg-type]

    found = make(AXES_OF_WORDS[str(word.value)])
    assert isinstance(found, Mapping)
    return found


def _expand_word(path: Path, word: Scalar, over: Mapping) -> Mapping | None:
    """Return the axes for which `word` stands: `fsdp` -> `{data: {shard: all}}`. Return None for `auto` and `dp`, which
    stand for no axes, and if `path` is not `parallelism`.

    `word`: `parallelism` in the base recipe. `over`: the mapping in a later recipe, which is then merged into the
    result. If it has a data axis of size `all`, the result has none, because only one axis can have this size.
    """
    if path != ("parallelism",) or word.value not in AXES_OF_WORDS:
        return None
    data = over.get("data")
    takes_all = isinstance(data, Mapping) and any(
        isinstance(each.value, Scalar) and each.value.value == "all" for each in data
    )
    return axes_of_word(word).without(("data",) if takes_all else ())


MERGE_RULES = MergeRules(
    normalise=normalise,
    exclusive=tuple(frozenset({(*pair.holder, pair.either), (*pair.holder, pair.other)}) for pair in EXCLUSIVE),
    default_type=_default_type,
    opened=_expand_word,
    foreign=diagnose_other_file,
    depth=3,  # the paths of sets under `data.split`
)
