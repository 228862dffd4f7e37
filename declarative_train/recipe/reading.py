"""Reading of sections: YAML node -> frozen pydantic model. The annotation of a field decides how its value is read:

base class of components (`Optimizer`)   the `type` in the value selects the component
section, or mapping or list of sections  as that section
anything else                            by pydantic
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from collections.abc import Mapping as MappingABC
from functools import partial
from typing import TypeVar

from pydantic import BaseModel

from declarative_train.components.component import Component, recipe_keys
from declarative_train.core.diagnostics.diagnostic import Diagnostic, Fix
from declarative_train.core.diagnostics.suggest import nearest
from declarative_train.core.span import Span
from declarative_train.recipe.checks.keys import missing_key, unknown_key, unknown_type, wrong_type, wrong_value
from declarative_train.recipe.hints.aliases import letters, translate_type
from declarative_train.recipe.hints.relocated_keys import IN_SECTIONS, hint_for
from declarative_train.recipe.sections.section import Section
from declarative_train.recipe.validate import KINDS, Child, children_of, table, validate
from declarative_train.source.node import Mapping, Node, Scalar, Sequence, describe_node, to_value

S = TypeVar("S", bound=Section)
C = TypeVar("C", bound=Component)
Elsewhere = Callable[[str, str | None], str | None]


def read(
    model: type[S], node: Node, where: str, at: Span, elsewhere: Elsewhere = lambda name, near: None
) -> tuple[S | None, list[Diagnostic]]:
    """Return (section, errors): an instance of `model` read from a YAML node, None if there are errors. `where`: dotted
    path of the section. `at`: span at which missing keys are reported. `elsewhere`: function (unknown key, nearest
    known key or None) that returns a hint, or None.
    """
    if not isinstance(node, Mapping):
        hint = _as_mapping(model, node) or _hint_keys(model) or hint_for("name", f"`{where}`")
        return None, [wrong_type(node.span, where, describe_node(node), "a mapping", hint)]
    own, children = node, _Children()
    if model.inline is not None:
        own_keys = [name for name in model.model_fields if name != model.inline]
        own, rest = node.only(own_keys), node.without(own_keys)
        inner = children_of(model)[model.inline].model
        children.take(model.inline, *read_component(inner, node, where, at, own_keys))
        # A mapping of an unknown type replaces that of the base, so keys that it lacks are not reported.
        if children.diagnostics:
            kind = rest.get("type")
            is_no_type = isinstance(kind, Scalar) and isinstance(kind.value, str) and kind.value not in table(inner)
            children.names += [
                name for name in own_keys if own.get(name) is None and (is_no_type or _is_mistyped(name, rest))
            ]
    children.read(model, own, where)
    section, found = validate(
        model,
        own,
        where=f"`{where}`" if where else "the recipe",
        at=at,
        leave=children.names,
        given=children.given,
        elsewhere=elsewhere,
    )
    found = children.diagnostics + found
    return (None if found else section), found


def read_component(
    kind: type[C],
    node: Node,
    where: str,
    at: Span,
    others: Iterable[str] = (),
    choices: MappingABC[str, type[C]] | None = None,
) -> tuple[C | None, list[Diagnostic]]:
    """Return the component that the `type` in the mapping `node` names, or None and errors.

    `kind`: base class of the components, such as `Loss`. `where`: dotted path of the mapping. `at`: span at which a
    missing `type` is reported. `others`: keys of the mapping that do not belong to the component. `choices`: {type:
    class} to choose from; None: all components of this kind.
    """
    word = KINDS[kind][0]
    known = table(kind) if choices is None else choices
    if not isinstance(node, Mapping):
        hint = (_hint_source(node, known) if where.endswith("source") else None) or _hint_type(node, known)
        return None, [wrong_type(node.span, where, describe_node(node), "a mapping with a `type`", hint)]
    name = node.get("type")
    if name is None:
        anyones = {key for each in known.values() for key in recipe_keys(each)} | set(others)
        missing = missing_key(at, "type", f"`{where}`", " | ".join([*sorted(known)[:4], "..."]))
        hints = IN_SECTIONS.get(f"`{word}`", {})
        foreign = ((entry.key.span, entry.name, hints.get(entry.name)) for entry in node)
        if found := [unknown_key(at, key, f"`{where}`", anyones, hint) for at, key, hint in foreign if hint]:
            return None, found
        nobodys = (entry for entry in node if entry.name not in anyones)  # `missing` is dropped for a fragment
        return None, [missing, *(unknown_key(each.key.span, each.name, f"`{where}`", anyones) for each in nobodys)]
    if not isinstance(name, Scalar) or not isinstance(name.value, str):
        return None, [wrong_type(name.span, "type", describe_node(name), f"the type of a {word}")]
    if name.value not in known:
        word = f"type of {word}" if word in ("field", "source", "split") else word  # fields also have names
        return None, [unknown_type(name.span, name.value, word, known)]
    model = known[name.value]
    keys, children = tuple(others), _Children()
    children.read(model, node.without(keys), where)
    component, found = validate(
        model,
        node,
        extra_known=keys,
        leave=[*children.names, *keys],
        given=children.given,
        elsewhere=partial(_find_home, known, model),
    )
    found = children.diagnostics + found
    return (None if found else component), found


def read_node(layer: type[C], node: Mapping, at: Span, words: Iterable[str]) -> tuple[C | None, list[Diagnostic]]:
    """Return (layer, errors): an instance of the class `layer` read from the graph node `node`, None if there are
    errors. `at`: span at which missing keys are reported. `words`: keys that every node may have (`input`, `repeat`,
    ...).
    """
    keys, children = tuple(words), _Children()
    if children_of(layer):
        children.read(layer, node.without(keys), str(layer.model_fields["type"].default))
    made, found = validate(layer, node, at=at, leave=[*children.names, *keys], extra_known=keys, given=children.given)
    found = children.diagnostics + found
    return (None if found else made), found


def _find_home(known: MappingABC[str, type[C]], model: type[C], name: str, near: str | None) -> str | None:
    """Return a hint on an unknown key: which other components have the key (at most four), or else which sections have
    it. Return None if none has it, or if `near` shows that it is probably misspelt.

    `known`: {type: class} of the components to search. `model`: class of the component with the unknown key. `name`:
    the key. `near`: a key of `model` with a similar name, or None."""
    if near is not None:
        return None
    others = [word for word, other in known.items() if name in recipe_keys(other) and other is not model]
    if others:
        return f"it is a key of {', '.join(f'`{word}`' for word in others[:4])}"
    from declarative_train.recipe.hints.key_places import (
        home_of,  # called only for mistakes, because it is slow
    )

    return home_of(name, near)


class _Children:
    """Sections and components that are read from a mapping before pydantic reads its other values. `names`: their keys.
    `given`: {key: section or component}, without those that have errors."""

    def __init__(self) -> None:
        self.given: dict[str, object] = {}
        self.names: list[str] = []
        self.diagnostics: list[Diagnostic] = []

    def take(self, name: str, value: object, found: list[Diagnostic]) -> None:
        self.names.append(name)
        self.diagnostics += found
        if not found:
            self.given[name] = value

    def read(self, model: type[BaseModel], node: Mapping, where: str) -> None:
        children = children_of(model)
        for entry in node:
            child = children.get(entry.name)
            if child is not None:
                path = f"{where}.{entry.name}" if where else entry.name
                self.take(entry.name, *_read_child(child, entry.value, path, entry.key.span))


def _find_repeated(names: Sequence) -> Scalar | None:
    """Return the first item of a list of texts that is equal to an earlier item; None if there is none. Items after one
    that is not a text are ignored."""
    seen = set()
    for item in names.items:
        if not isinstance(item, Scalar) or not isinstance(item.value, str):
            return None
        if item.value in seen:
            return item
        seen.add(item.value)
    return None


def _read_child(child: Child, node: Node, where: str, at: Span) -> tuple[object, list[Diagnostic]]:
    if child.holder is None:
        return _read_one(child, node, where, at)
    if isinstance(node, Sequence) and child.holder is dict and (again := _find_repeated(node)) is not None:
        return None, [wrong_value(again.span, f"`{again.text}` is listed twice", "list it once")]
    if child.holder is dict and not isinstance(node, Mapping):
        hint, fixes = _hint_names(child.model, node, where), tuple[Fix, ...]()
        if where == "data.split" and isinstance(node, Scalar) and (part := _format_split(node)) is not None:
            hint, fixes = f"name it: `{part}`", (Fix(node.span, part, safe=False),)
        return None, [wrong_type(node.span, where, describe_node(node), "a mapping of names", hint, fixes)]
    if child.holder is tuple and not isinstance(node, Sequence):
        return None, [wrong_type(node.span, where, describe_node(node), "a list")]
    values: dict[str | int, object] = {}
    diagnostics: list[Diagnostic] = []
    for key, item, span in _items(node):
        if (hint := IN_SECTIONS.get(f"`{where}`", {}).get(str(key)) if child.holder is dict else None) is not None:
            diagnostics.append(unknown_key(span, str(key), f"`{where}`", (), hint))
            continue
        values[key], found = _read_one(child, item, f"{where}.{key}", span)
        diagnostics += found
    return (values if child.holder is dict else tuple(values.values())), diagnostics


def _format_split(node: Scalar) -> str | None:
    """Return how to write a `split` that is a single fraction: `0.2` or `20%` -> `{validation: 0.2}`. Return None for
    other values."""
    text = node.text.strip().removesuffix("%")
    try:
        part = float(text) / (100 if text != node.text.strip() else 1)
    except ValueError:
        return None
    return f"{{validation: {part:g}}}" if 0 < part < 1 else None


def _items(node: Node) -> Iterator[tuple[str | int, Node, Span]]:
    if isinstance(node, Mapping):
        yield from ((entry.name, entry.value, entry.key.span) for entry in node)
    elif isinstance(node, Sequence):
        yield from ((position, item, item.span) for position, item in enumerate(node.items))


def _read_one(child: Child, node: Node, where: str, at: Span) -> tuple[object, list[Diagnostic]]:
    if child.model in KINDS:
        return read_component(child.model, node, where, at)
    return read(child.model, node, where, at)


def _as_mapping(model: type[BaseModel], node: Node) -> str | None:
    inline = model.inline if issubclass(model, Section) else None
    if inline is None:
        return None
    own = [name for name, field in model.model_fields.items() if field.is_required() and name != inline]
    return _hint_type(node, table(children_of(model)[inline].model), own)


def _hint_names(model: type[BaseModel], node: Node, where: str) -> str | None:
    """Return a hint if `node` is a list or the name of a component, but a mapping {name: component} is expected. None
    for other values.
    """
    if isinstance(node, Sequence):
        return "name each: `{NAME: {...}}`"
    if _as_mapping(model, node) is None:
        return None
    if where == "objective.metrics":
        return f"write `[{to_value(node)}]`"
    return f"name it: `{{NAME: {{type: {to_value(node)}, ...}}}}`"


def _hint_type(node: Node, known: MappingABC[str, type[BaseModel]], others: Iterable[str] = ()) -> str | None:
    """Return a hint if `node` is a component's name where a mapping is expected, else None. The hint shows the mapping:
    `type` and the required keys. `known`: {type: class}. `others`: further required keys, which do not belong to the
    component."""
    if not isinstance(node, Scalar):
        return None
    name = str(node.value)
    if name not in known and not any(letters(name) == letters(each) for each in known):
        name = translate_type(name, known) or name
    name = next((each for each in known if letters(each) == letters(name)), "")
    if not name:
        return None
    needed = [each for each, field in known[name].model_fields.items() if field.is_required()]
    return f"write `{{{', '.join([f'type: {name}', *(f'{each}: ...' for each in [*others, *needed])])}}}`"


def _hint_keys(model: type[BaseModel]) -> str | None:
    """Return a hint that lists the required keys of a section; None if there are none."""
    inline = getattr(model, "inline", None)
    required = (name for name, field in model.model_fields.items() if field.is_required())
    needed = [f"{'type' if name == inline else name}: ..." for name in required]
    return f"write `{{{', '.join(needed)}}}`" if needed else None


def _hint_source(node: Node, known: MappingABC[str, type[BaseModel]]) -> str | None:
    """Return a hint for a path that is written where a source is expected: `{type: csv, path: rows.csv}`, with the type
    that reads such files. None for other values. `known`: {type: class} of the sources.
    """
    path = str(node.value) if isinstance(node, Scalar) else ""
    ending = path.rpartition(".")[2].lower() if "." in path else ""
    kind = {"npz": "npy", "txt": "text", "json": "jsonl", "tsv": "csv", "pq": "parquet"}.get(ending, ending)
    return f"write `{{type: {kind}, path: {path}}}`" if kind in known else None


def _is_mistyped(name: str, rest: Mapping) -> bool:
    """Return whether a key in `rest`, the unknown keys of a section, is probably a misspelling of `name`."""
    return any(nearest(entry.name, [name]) for entry in rest)
