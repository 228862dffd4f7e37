"""Selectors of `model.parameters`, which choose parameters by name, and the settings for these parameters.

`attn`         without a dot: this name at any depth, and everything below it (as in .gitignore)
`gpt.attn`     with a dot: from the root
`*`, `{0..7}`, `{a,b}`   in a name: any characters, one of the numbers, one of the words

If several selectors match a parameter and set the same key, the last one counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from collections.abc import Mapping as MappingABC
from typing import NamedTuple

from declarative_train.core.diagnostics.diagnostic import Diagnostic
from declarative_train.core.span import Span
from declarative_train.recipe.checks.blocks import published_model
from declarative_train.recipe.checks.keys import wrong_type
from declarative_train.recipe.checks.parameters import bad_selector, selector_matches_nothing
from declarative_train.recipe.model.tree import PublishedError
from declarative_train.recipe.paths import Paths
from declarative_train.recipe.reading import read
from declarative_train.recipe.sections.parameters import ParameterSettings
from declarative_train.recipe.validate import Added, adding, list_added
from declarative_train.source.node import Mapping, Node, Scalar, find, is_template, scalars
from declarative_train.source.template import Templates

_MOST_NUMBERS = 10_000
_RANGE = re.compile(r"(\d+)\.\.(\d+)")
_NAME = re.compile(r"[A-Za-z0-9_*]+")
_PART = re.compile(r"(?:\{[^{}]*\}|[^.{}])+")
_INDEX = re.compile(r"\bindex\b")


_NOTHING = ParameterSettings()


class Pattern(NamedTuple):
    """Regular expression of a selector, which matches names of parameters. In a match, the group `body` is the part of
    the name that the selector itself matches, and `below` is the rest. For the selector `encoder` and the name
    `encoder.0.weight`, `below` is `.0.weight`."""

    form: re.Pattern[str]

    def match(self, name: str) -> re.Match[str] | None:
        return self.form.fullmatch(name)


def compile_selector(text: str) -> Pattern:
    """Return a selector as a regular expression. Raises ValueError with the expected form."""
    parts = _PART.findall(text)
    if not text or ".".join(parts) != text:
        raise ValueError("a selector is names joined by dots, with `*`, `{0..7}` and `{a,b}` inside a name")
    body = r"\.".join(_part(part) for part in parts)
    head = r"(?:[^.]+\.)*?" if len(parts) == 1 else ""
    return Pattern(re.compile(rf"{head}(?P<body>{body})(?P<below>(?:\.[^.]+)*)"))


def _part(text: str) -> str:
    """Return the regular expression for one part of a selector. Parts are separated by dots."""
    out = ""
    for piece in re.split(r"(\{[^{}]*\})", text):
        if piece.startswith("{"):
            out += f"(?:{'|'.join(_braces(piece[1:-1]))})"
        elif piece:
            out += _name(piece)
    return out


def _braces(inside: str) -> list[str]:
    numbers = _RANGE.fullmatch(inside)
    if numbers is None:
        return [_name(word.strip()) for word in inside.split(",")]
    first, last = int(numbers[1]), int(numbers[2])
    if last < first:
        raise ValueError(f"`{{{inside}}}` counts down: write `{{{last}..{first}}}`")
    if last - first >= _MOST_NUMBERS:
        raise ValueError(f"`{{{inside}}}` has more than {_MOST_NUMBERS} numbers: write `*`")
    return [str(number) for number in range(first, last + 1)]


def _name(text: str) -> str:
    if not _NAME.fullmatch(text):
        raise ValueError(f"`{text}` is not a name, a `*`, `{{0..7}}` or `{{a,b}}`")
    return text.replace("*", "[^.]*")


class ParameterRule(NamedTuple):
    """Entry of `model.parameters`, or of `parameters` in a block: a selector of parameters, and their settings.

    prefix     path of the node that calls the block; "" for an entry of `model.parameters`
    by_index   settings as written, if a template in them reads `index` (of a `repeat` copy), else None
    templates  renders them for each copy, with the variables `names`
    may_miss   the selector may match no parameter, as in a shipped block
    only       keys of the settings that apply; None: all
    added      components of plugins
    paths      makes paths in the settings absolute"""

    selector: str
    span: Span
    prefix: str
    pattern: Pattern
    settings: ParameterSettings
    by_index: Mapping | None = None
    templates: Templates | None = None
    names: MappingABC[str, object] = {}
    may_miss: bool = False
    only: tuple[str, ...] | None = None
    added: Added = {}
    paths: Paths | None = None

    def match(self, name: str) -> ParameterSettings | None:
        """Return the settings for the parameter `name`; None if the selector does not match it."""
        place = self._place(name)
        if place is None:
            return None
        found = self.settings if self.by_index is None else self._at(_index(place))[0]
        return found if found is None or self.only is None else found.only(self.only)

    def problems(self, names: Iterable[str]) -> list[Diagnostic]:
        """Return the errors of settings that use `index`, the number of a `repeat` copy. Only those of the first copy
        with errors are returned. Other settings were checked when they were read. `names`: names of all parameters."""
        if self.by_index is None:
            return []
        indices = {_index(place) for name in names if (place := self._place(name)) is not None}
        found = (self._at(index)[1] for index in sorted(indices, key=lambda index: (index is None, index)))
        return next((diagnostics for diagnostics in found if diagnostics), [])

    def _place(self, name: str) -> re.Match[str] | None:
        if not self.prefix:
            return self.pattern.match(name)
        inside = name.removeprefix(f"{self.prefix}.")
        return None if inside == name else self.pattern.match(inside)

    def _at(self, index: int | None) -> tuple[ParameterSettings | None, list[Diagnostic]]:
        assert self.by_index is not None
        assert self.templates is not None
        names = dict(self.names) if index is None else {**self.names, "index": index}
        rendered, diagnostics = self.templates.render(self.by_index, names)
        if diagnostics:
            return None, diagnostics
        with adding(self.added):
            return _settings(rendered, self.selector, self.span, self.prefix, self.paths)


def parse_rules(
    node: Node,
    prefix: str,
    templates: Templates,
    names: MappingABC[str, object],
    *,
    may_miss: bool = False,
    paths: Paths | None = None,
) -> tuple[tuple[ParameterRule, ...], list[Diagnostic]]:
    """Return the rules in a mapping `parameters` ({selector: settings}), and errors. `node`: this mapping, as
    written. `prefix`: path of the graph node whose block has the mapping; "" for `model.parameters`. `names`:
    variables that templates in the mapping can read. `may_miss`: whether a selector may match nothing. `paths`:
    resolves paths in the settings."""
    if not isinstance(node, Mapping):
        return (), [wrong_type(node.span, "parameters", "not a mapping", "a mapping of selectors")]
    rules: list[ParameterRule] = []
    diagnostics: list[Diagnostic] = []
    for entry in node:
        rule, found = _rule(entry.key, entry.value, prefix, templates, names, paths)
        diagnostics += found
        if rule is not None:
            rules.append(rule._replace(may_miss=may_miss))
    return tuple(rules), diagnostics


def _rule(
    key: Scalar,
    node: Node,
    prefix: str,
    templates: Templates,
    names: MappingABC[str, object],
    paths: Paths | None,
) -> tuple[ParameterRule | None, list[Diagnostic]]:
    diagnostics: list[Diagnostic] = []
    pattern = None
    try:
        pattern = compile_selector(key.text)
    except ValueError as problem:
        diagnostics.append(bad_selector(key.span, key.text, str(problem)))
    by_index = node if isinstance(node, Mapping) and _uses_index(node) else None
    known = names if by_index is None else {**names, "index": 0}  # every `repeat` has a copy 0
    rendered, found = templates.render(node, known)
    if found:
        return None, [*diagnostics, *found]
    settings, found = _settings(rendered, key.text, key.span, prefix, paths)
    diagnostics += found
    if pattern is None or settings is None or diagnostics:
        return None, diagnostics
    rule = ParameterRule(
        key.text, key.span, prefix, pattern, settings, by_index, templates, names, added=list_added(), paths=paths
    )
    return rule, diagnostics


def _settings(
    node: Node, selector: str, at: Span, prefix: str, paths: Paths | None
) -> tuple[ParameterSettings | None, list[Diagnostic]]:
    settings, diagnostics = read(ParameterSettings, node, f"model.parameters.{selector}", at)
    if settings is not None and settings.tie is not None and prefix:
        settings = settings.model_copy(update={"tie": f"{prefix}.{settings.tie}"})
    if settings is not None and settings.adapter is not None and settings.adapter.made_from is not None:
        given = find(node, ("adapter", "from")) or node
        folder = settings.adapter.made_from if paths is None else paths.resolve(settings.adapter.made_from, given.span)
        try:
            settings = settings.model_copy(update={"adapter": settings.adapter.with_folder(folder)})
        except PublishedError as problem:
            return None, [*diagnostics, published_model(given.span, str(problem), problem.hint)]
    return settings, diagnostics


def _uses_index(node: Node) -> bool:
    texts = (each.value for each in scalars(node, plain=False) if isinstance(each.value, str))
    return any(is_template(text) and _INDEX.search(text) is not None for text in texts)


def _index(place: re.Match[str]) -> int | None:
    """Return the index of the `repeat` copy to which a parameter belongs, such as 3 for `layers.3.weight`; None if it
    belongs to none. `place`: match of a selector with the parameter's name. The index is the last number in the matched
    part of the name, otherwise the number directly after this part."""
    passed = [part for part in place["body"].split(".") if part.isdigit()]
    behind = place["below"].split(".")[1:2]
    found = passed[-1:] or [part for part in behind if part.isdigit()]
    return int(found[0]) if found else None


def settings_of(rules: Iterable[ParameterRule], name: str) -> ParameterSettings:
    """Return the settings for the parameter `name`, combined from all entries that match it. If several of them set the
    same key, the last one counts.
    """
    settings: ParameterSettings | None = None
    for rule in rules:
        found = rule.match(name)
        if found is not None:
            settings = found if settings is None else settings.update_with(found)
    return _NOTHING if settings is None else settings


def check_rules(rules: Iterable[ParameterRule], names: Iterable[str]) -> Iterator[Diagnostic]:
    """Yield an error for each selector that matches no parameter, unless its rule has `may_miss`. Also yield the errors
    in settings whose templates read `index` (of a `repeat` copy), because they are rendered only here. `names`: names
    of all parameters of the model.

    `rules` can have a selector several times: once for each use of its block. It needs only one match."""
    known, rules = tuple(names), tuple(rules)
    met = {rule.span for rule in rules if rule.may_miss or any(rule.match(name) is not None for name in known)}
    for rule in rules:
        if rule.span not in met and not rule.problems(known):
            met.add(rule.span)
            inside = [name.removeprefix(f"{rule.prefix}.") for name in known if name.startswith(rule.prefix)]
            yield selector_matches_nothing(rule.span, rule.selector, inside)
        yield from rule.problems(known)
