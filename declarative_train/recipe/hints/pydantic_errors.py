"""Conversion of pydantic's errors to diagnostics. Each diagnostic has its own span and uses the words of recipes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Sequence as SequenceABC
from typing import Any, Literal, NamedTuple, get_args, get_origin

from pydantic import BaseModel

from declarative_train.components.component import recipe_keys
from declarative_train.core.diagnostics.diagnostic import Diagnostic
from declarative_train.core.diagnostics.suggest import did_you_mean, nearest, suggest_fix
from declarative_train.core.span import Span
from declarative_train.recipe.checks.blocks import bad_name
from declarative_train.recipe.checks.durations import bad_duration, bare_duration
from declarative_train.recipe.checks.keys import missing_key, unknown_key, unknown_type, wrong_type, wrong_value
from declarative_train.recipe.hints.aliases import FROM_THE_INPUT, KEYS, NOTES, OTHERWISE, replace_word, value_here
from declarative_train.recipe.hints.relocated_keys import hint_for
from declarative_train.recipe.hints.value_hints import WORDS_FOR_VALUES, ValueHint, value_hint
from declarative_train.recipe.sections.section import models_in
from declarative_train.source.node import Mapping, Node, Scalar, Sequence, describe_node, find, to_value

_SHORT = (("precision", "compute"), ("activation_checkpointing", "policy"))  # mappings with a short form
_KINDS = {  # pydantic's error type -> expected value, in words
    "int_type": "an integer",
    "int_from_float": "an integer",
    "int_parsing": "an integer",
    "float_type": "a number",
    "float_parsing": "a number",
    "string_type": "text",
    "bool_type": "`true` or `false`",
    "tuple_type": "a list",
    "list_type": "a list",
    "frozen_set_type": "a list",
    "set_type": "a list",
    "dict_type": "a mapping",
    "mapping_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
    "none_required": "nothing (`null`)",
    "is_instance_of": "something else",
}
_BOUNDS = {
    "greater_than": "more than {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
    "multiple_of": "a multiple of {multiple_of}",
    "finite_number": "a finite number",
    "string_pattern_mismatch": "text like `{pattern}`",
}


class _Problem(NamedTuple):
    """Error of pydantic with its position in the recipe.

    path     keys and indices from the validated mapping to the value, as far as the recipe has them
    rest     further keys, such as a missing key
    node     the YAML node at `path`
    union    path of a value that may have several forms (a pydantic union), else None
    branch   the form of this value to which the error belongs"""

    error: Any
    node: Node
    span: Span  # of the value
    key_span: Span  # of its key
    path: tuple[str | int, ...]
    union: tuple[str | int, ...] | None
    branch: str
    rest: tuple[str | int, ...]


class Reading(NamedTuple):
    """Arguments of `validate` (recipe/validate.py) that its messages need. `node`: the mapping. `where`: its name in
    messages. `extra_known`: keys to suggest for an unknown key, in addition to the fields of `model`. `model`: the
    pydantic class that the mapping should fit. `elsewhere`: function (unknown key, most similar allowed key or None)
    that returns where the key belongs, or None."""

    node: Mapping
    where: str
    extra_known: tuple[str, ...]
    model: type[BaseModel]
    elsewhere: Callable[[str, str | None], str | None]


def explain(errors: Iterable[Any], kept: Mapping, place: Span, reading: Reading) -> list[Diagnostic]:
    """Return the diagnostics for pydantic's `errors` about a mapping of the recipe. `kept`: what pydantic validated:
    the mapping without the entries that already have a diagnostic. `place`: span at which missing keys are reported.
    `reading`: the arguments of `validate`, which called pydantic."""
    problems = _drop_echoes([_place(error, kept, place) for error in errors], reading)
    return [_diagnostic(problem, reading) for problem in _choose(problems)]


def _drop_echoes(problems: list[_Problem], reading: Reading) -> list[_Problem]:
    """Return the errors without those that another diagnostic covers: a missing key that is present under a misspelt
    name; a list that is too short because one of its items is wrong; a short form next to its long form (`loss` next to
    `losses`)."""
    typed = [(p.path[:-1], str(p.error["loc"][-1])) for p in problems if p.error["type"] == "extra_forbidden"]

    def is_mistyped(problem: _Problem) -> bool:
        if problem.error["type"] != "missing":
            return False
        name = str(problem.error["loc"][-1])
        return any(path == problem.path and (name in KEYS.get(key, ()) or nearest(key, [name])) for path, key in typed)

    def is_echo(problem: _Problem) -> bool:
        kind, path = problem.error["type"], problem.path
        if kind == "too_short":
            return any(other.path[: len(path)] == path and other is not problem for other in problems)
        if kind == "extra_forbidden" and len(path) == 1:
            return path[0] in getattr(reading.model, "short_forms", ())
        return is_mistyped(problem)

    return [problem for problem in problems if not is_echo(problem)]


def _place(error: Any, root: Mapping, place: Span) -> _Problem:
    node: Node = root
    span, key_span = root.span, place
    path: list[str | int] = []
    union: tuple[str | int, ...] | None = None
    branch: list[str] = []
    loc: tuple[str | int, ...] = error["loc"]
    absent = error["type"] in ("missing", "union_tag_not_found")
    for position, part in enumerate(loc):
        last = position == len(loc) - 1
        if isinstance(node, Mapping) and (entry := node.entry(str(part))) is not None:
            node, span, key_span = entry.value, entry.value.span, entry.key.span
            path.append(part)
        elif isinstance(node, Sequence) and isinstance(part, int) and part < len(node.items):
            node = node.items[part]
            span = key_span = node.span
            path.append(part)
        elif part == "[key]" or (last and absent):
            return _Problem(error, node, span, key_span, tuple(path), union, "/".join(branch), loc[position:])
        else:
            if union is None:
                union = tuple(path)
            branch.append(str(part))
    return _Problem(error, node, span, key_span, tuple(path), union, "/".join(branch), ())


def _choose(problems: list[_Problem]) -> list[_Problem | list[_Problem]]:
    """Return the errors to report, one item for each mistake. For a value that may have several forms, pydantic returns
    the errors of every form.

    If the value has none of these forms, one item is the list of all these errors. If it has a form, but with mistakes
    inside, only the errors of the form with the fewest mistakes are returned.
    """
    chosen: list[_Problem | list[_Problem]] = []
    unions: dict[tuple[str | int, ...], list[_Problem]] = {}
    for problem in problems:
        if problem.union is None:
            chosen.append(problem)
        else:
            unions.setdefault(problem.union, []).append(problem)
    for path, members in unions.items():
        branches = list(dict.fromkeys(member.branch for member in members))
        if len(branches) == 1:
            chosen += members
            continue
        inside = [b for b in branches if not any(_at_door(m, path) for m in members if m.branch == b)]
        if inside:
            best = min(inside, key=lambda b: sum(m.branch == b for m in members))
            chosen += [m for m in members if m.branch == best]
        else:
            chosen.append([m for m in members if m.path == path] or members)
    return chosen


def _at_door(problem: _Problem, path: tuple[str | int, ...]) -> bool:
    return problem.path == path and problem.error["type"] in _KINDS.keys() | {"literal_error"}


def _diagnostic(problem: _Problem | list[_Problem], reading: Reading) -> Diagnostic:
    where = reading.where
    if isinstance(problem, list):
        return _report_no_branch(problem, where)
    error, kind = problem.error, problem.error["type"]
    if error["loc"][-1:] == ("[key]",):
        return bad_name(problem.key_span, str(error["loc"][-2]), f"an entry of `{_join_path(problem.path[:-1])}`")
    # The long form of `precision: bf16` has a key `compute` that the user did not write, so `precision` is named.
    is_short = problem.path[-2:] in _SHORT and problem.key_span == problem.span
    name = _join_path(problem.path[:-1] if is_short else problem.path)
    inside = where if not problem.path else f"`{name}`"
    if kind == "extra_forbidden":
        return _unknown_key(problem, reading)
    if kind == "missing" and isinstance(error["loc"][-1], int):
        return wrong_value(problem.span, f"`{name}` has too few entries", f"set {error['loc'][-1] + 1} or more")
    if kind == "missing":
        name = str(error["loc"][-1])
        return missing_key(problem.key_span, name, inside, _list_words(reading.model, problem.path, name))
    if kind == "union_tag_not_found":
        return missing_key(problem.key_span, error["ctx"]["discriminator"].strip("'"), inside)
    if kind == "union_tag_invalid":
        return _unknown_tag(problem, _last_name(problem.path))
    if kind == "bare_duration":
        return bare_duration(problem.span, name, error["ctx"]["value"], error["ctx"]["units"])
    if kind == "bad_duration":
        is_typed = isinstance(problem.node, Scalar) and problem.node.template is None and not problem.node.pieces
        typed = problem.node.text if isinstance(problem.node, Scalar) and is_typed else ""
        return bad_duration(problem.span, name, error["ctx"]["problem"], typed, error["ctx"].get("units", ()))
    if kind in _KINDS:
        return wrong_type(
            problem.span,
            name or where,
            describe_node(problem.node),
            _KINDS[kind],
            *value_hint(problem.node, kind, name),
        )
    return _value(problem, name or where)


def _unknown_key(problem: _Problem, reading: Reading) -> Diagnostic:
    key, parent, span = str(problem.error["loc"][-1]), problem.path[:-1], problem.key_span
    where = f"`{_join_path(parent)}`" if parent else reading.where
    known = [*_list_keys(reading.model, parent), *(reading.extra_known if not parent else ())]
    holder = find(reading.node, parent)
    entries = holder.entries if isinstance(holder, Mapping) else ()
    present = {entry.name for entry in entries if entry.key.span.path == span.path}  # without the keys of a base recipe
    word, note = OTHERWISE.get(key, ("", ""))
    if word in known:
        return unknown_key(span, key, where, known, f"its name here is `{word}`, {note}")
    word = next((word for word in KEYS.get(key, ()) if word in known), "")
    if word:
        fixes = () if word in present else replace_word(span, key, word)
        return unknown_key(span, key, where, known, f"its name here is `{word}`", fixes=fixes)
    if key in FROM_THE_INPUT:
        return unknown_key(span, key, where, known, "remove it: it follows from the input")
    home = NOTES.get(key) or hint_for(key, where) or reading.elsewhere(key, nearest(key, known))
    return unknown_key(span, key, where, known, home, present)


def _value(problem: _Problem, name: str) -> Diagnostic:
    error, kind = problem.error, problem.error["type"]
    context = error.get("ctx", {})
    found = describe_node(problem.node)
    if kind == "literal_error":
        allowed = _parse_words(context["expected"])
        typed = f"`{problem.node.text}`" if isinstance(problem.node, Scalar) else found
        message = f"`{name}` is {typed}, expected one of {', '.join(allowed)}"
        said = value_hint(problem.node, "bool_type") if "true" in allowed else ValueHint()
        if (word := value_here(typed.strip("`"), allowed)) is not None:
            fixes = replace_word(problem.span, typed.strip("`"), word)
            return wrong_value(problem.span, message, f"its name here is `{word}`", fixes)
        text = str(to_value(problem.node))
        if (note := WORDS_FOR_VALUES.get(_last_name(problem.path), {}).get(text.lower())) is not None:
            said = ValueHint(note)
        if said.help is None:
            said = ValueHint(did_you_mean(text, allowed), suggest_fix(problem.span, text, allowed, closed=True))
        return wrong_value(problem.span, message, *said)
    if kind in _BOUNDS:
        is_number = isinstance(to_value(problem.node), int | float)
        hint = value_hint(problem.node, kind, name).help if is_number else None
        return wrong_value(problem.span, f"`{name}` is {found}, but must be {_format_bound(kind, context)}", hint)
    if kind in ("too_short", "too_long", "string_too_short", "string_too_long"):
        few = kind.endswith("short")
        bound = context["min_length" if few else "max_length"]
        what = (
            "characters" if kind.startswith("string") else "entries" if isinstance(problem.node, Sequence) else "keys"
        )
        return wrong_value(problem.span, f"`{name}` must have {'at least' if few else 'at most'} {bound} {what}")
    if kind in ("value_error", "assertion_error"):
        return wrong_value(problem.span, str(context.get("error", error["msg"])))
    return wrong_value(problem.span, f"`{name}`: {error['msg'][:1].lower()}{error['msg'][1:]}")


def _report_no_branch(problems: SequenceABC[_Problem], where: str) -> Diagnostic:
    """Return the diagnostic for a value that has none of the allowed forms. `problems`: pydantic's error for each form.
    `where`: what the message calls the value if it is the whole mapping that was validated."""
    first = problems[0]
    wanted: list[str] = []
    for problem in problems:
        kind = problem.error["type"]
        if kind in _KINDS:
            wanted.append(_KINDS[kind])
        elif kind == "literal_error":
            wanted.append(" or ".join(f"`{word}`" for word in _parse_words(problem.error["ctx"]["expected"])))
        elif kind in _BOUNDS:
            wanted.append(_format_bound(kind, problem.error.get("ctx", {})))
        elif kind in ("value_error", "assertion_error"):
            wanted.append(str(problem.error["ctx"]["error"]))
    words = list(dict.fromkeys(wanted)) or [first.error["msg"].lower()]
    name = _join_path(first.path) or where
    return wrong_type(
        first.span, name, describe_node(first.node), " or ".join(words), *value_hint(first.node, "int_type", name)
    )


def _format_bound(kind: str, context: dict[str, Any]) -> str:
    plain = {key: int(v) if isinstance(v, float) and v.is_integer() else v for key, v in context.items()}
    return _BOUNDS[kind].format(**plain)


def _unknown_tag(problem: _Problem, name: str) -> Diagnostic:
    tag = problem.error["ctx"]["tag"]
    key = problem.error["ctx"]["discriminator"].strip("'")
    value = problem.node.get(key) if isinstance(problem.node, Mapping) else None
    span = value.span if value is not None else problem.span
    return unknown_type(
        span, str(tag), f"`{name}`" if name else "component", _parse_words(problem.error["ctx"]["expected_tags"])
    )


def _list_words(model: type[BaseModel], path: tuple[str | int, ...], name: str) -> str:
    """Return the words that the key `name` accepts, such as `min | max`, or "" if it accepts other values. `path`: path
    of the mapping with this key, inside a value of the type `model`."""
    for holder in _models_at(model, path):
        field = holder.model_fields.get(recipe_keys(holder).get(name, name))
        if field is not None and get_origin(field.annotation) is Literal:
            return " | ".join(map(str, get_args(field.annotation)))
    return ""


def _list_keys(model: type[BaseModel], path: tuple[str | int, ...]) -> list[str]:
    """Return the keys that are allowed in the mapping at `path` inside a value of the type `model`."""
    found = _models_at(model, path)
    if len(found) != 1:
        return sorted({name for each in found for name in recipe_keys(each)})
    return [*recipe_keys(found[0]), *getattr(found[0], "short_forms", ())]


def _models_at(model: type[BaseModel], path: tuple[str | int, ...]) -> list[type[BaseModel]]:
    """Follow `path` from `model` through the annotations of fields, and return the pydantic models at its end. A union
    gives several."""
    found = [model]
    for part in path:
        if isinstance(part, str) and len(found) == 1:
            field = found[0].model_fields.get(recipe_keys(found[0]).get(part, part))
            found = [] if field is None else list(models_in(field.annotation))
    return found


def _parse_words(expected: str) -> list[str]:
    """Return the list of words in an error text of pydantic: `'a', 'b' or 'c'` gives a, b, c."""
    parts = expected.replace(" or ", ", ").split(", ")
    return [{"True": "true", "False": "false", "None": "null"}.get(part, part.strip("'")) for part in parts]


def _last_name(path: tuple[str | int, ...]) -> str:
    return next((part for part in reversed(path) if isinstance(part, str)), "")


def _join_path(path: tuple[str | int, ...]) -> str:
    return ".".join(str(part) for part in path)
