"""Renaming of tensors from weight files by the entries `old: new` of `rename` in `model.weights`.

old               new            effect
`encoder`         `body`         names that begin with `encoder` begin with `body`
`attn.*.w`        `att.*.w`      selector with a dot: matches from the start of a name; `*` keeps its text
`w*`              `weight*`      selector without a dot: matches at any depth
`{q,k,v}`         `qkv`          the tensors of these words are joined by rows, in this order
`{q,k}`           `{a,b}`        the tensors are renamed one by one

The rest of a name does not change. For each name, the longest beginning that matches is replaced first; then all
selectors are applied, in the order of the recipe.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import NamedTuple, TypeVar

from declarative_train.core.diagnostics.diagnostic import Diagnostic, Related
from declarative_train.files.open_files import format_path
from declarative_train.plan.checkpoint_files import Shapes
from declarative_train.plan.checks.parameters import rename_matches_nothing
from declarative_train.plan.plan import PartPlan
from declarative_train.recipe.recipe import Recipe, Weights
from declarative_train.recipe.sections.model import DROP

T = TypeVar("T")

_TOKEN = re.compile(r"\*|\{[^{}]*\}|[A-Za-z0-9_.-]+")
_RANGE = re.compile(r"(\d+)\.\.(\d+)")


def renames_of(weights: Weights) -> dict[str, str | None]:
    """Return {prefix of old names, or selector: its replacement}, the `rename` of an entry of `model.weights`. The
    replacement is None for tensors that are dropped."""
    return {prefix: None if into == DROP else into for prefix, into in weights.rename.items()}


class _Selector(NamedTuple):
    """Compiled entry `old: new` of `rename` in which `old` is a selector, such as `attn.{query,key,value}`.

    `form`: regular expression that matches names in the file. `words`: the words in the braces of `old`. `into`: `new`,
    split into tokens. `into_words`: the words in the braces of `new`; if there are none, the tensors that match `words`
    are joined."""

    form: re.Pattern[str]
    words: tuple[str, ...]
    into: tuple[str, ...]
    into_words: tuple[str, ...]

    @property
    def joins(self) -> bool:
        return bool(self.words) and not self.into_words

    def new_name(self, found: re.Match[str]) -> str:
        """Return the new name of a tensor. `found`: match of its old name with the regular expression `form`."""
        groups = found.groupdict()
        stars = iter([item for name, item in groups.items() if name.startswith("star")])
        word = self.words.index(groups["word"]) if self.words else 0
        tokens = [
            next(stars) if token == "*" else self.into_words[word] if token == "{}" else token for token in self.into
        ]
        parts = (groups["head"].rstrip("."), "".join(tokens), groups["below"].lstrip("."))
        return ".".join(part for part in parts if part)


@cache
def _selector(key: str, into: str | None) -> _Selector | None:
    """Compile the entry `key: into` of `rename` if `key` is a pattern, with `*` or `{a,b}`. Return None if it is the
    plain beginning of a name. Raises ValueError with the reason for bad syntax."""
    if not re.search(r"[*{]", key):
        if into is not None and re.search(r"[*{]", into):
            raise ValueError(f"its new name `{into}` has `*` or `{{a,b}}`, which the key must have too")
        return None
    form, stars = "", 0
    words: tuple[str, ...] = ()
    for token in _tokens(key.removesuffix(".")):
        if token == "*":
            form += f"(?P<star{stars}>[^.]*)"
            stars += 1
        elif token.startswith("{") and (numbers := _RANGE.fullmatch(token[1:-1])):
            listed = map(str, range(int(numbers[1]), int(numbers[2]) + 1))
            form += f"(?P<star{stars}>{'|'.join(listed)})"
            stars += 1
        elif token.startswith("{"):
            if words:
                raise ValueError("a key may have only one `{a,b}`: write two entries")
            words = tuple(word.strip() for word in token[1:-1].split(","))
            form += f"(?P<word>{'|'.join(map(re.escape, words))})"
        else:
            form += re.escape(token)
    head = "" if "." in key.removesuffix(".") else r"(?:[^.]+\.)*?"
    compiled = re.compile(rf"(?P<head>{head}){form}(?P<below>(?:\.[^.]+)*)")
    if into is None:
        return _Selector(compiled, words, (), words)
    tokens = _tokens(into.removesuffix("."))
    braces = [token for token in tokens if token.startswith("{")]
    into_words = tuple(word.strip() for word in braces[0][1:-1].split(",")) if braces else ()
    if len(braces) > 1 or (braces and len(into_words) != len(words)):
        raise ValueError(f"its new name `{into}` has other words in braces than the key")
    if tokens.count("*") != stars:
        raise ValueError(f"its new name `{into}` has {tokens.count('*')} `*`, but the key has {stars}")
    return _Selector(compiled, words, tuple("{}" if token in braces else token for token in tokens), into_words)


def _tokens(text: str) -> list[str]:
    found = _TOKEN.findall(text)
    if "".join(found) != text:
        raise ValueError("a selector is names joined by dots, with `*`, `{0..7}` and `{a,b}` inside a name")
    return found


def find_bad_rename(rename: Mapping[str, str | None]) -> tuple[str, str | None] | None:
    """Return (problem, hint) for the first entry of `rename` with bad syntax; None if there is none."""
    for key, into in rename.items():
        try:
            _selector(key, into)
        except ValueError as problem:
            return f"has `{key}` under `rename`: {problem}", None
    return None


class _Renaming(NamedTuple):
    """Result of `rename` for one tensor. `new`: its new name; None if the tensor is dropped. `keys`: the keys of
    `rename` that match its old name.

    `words`: a pair (key, index) for each key such as `{query,key,value}`, which joins it with other tensors. The index
    is that of the word in the old name: 1 for `key`. Joined tensors are sorted by these pairs.
    """

    new: str | None
    keys: tuple[str, ...]
    words: tuple[tuple[str, int], ...]


def _rename_all(found: Iterable[str], rename: Mapping[str, str | None]) -> dict[str, _Renaming]:
    """Apply `rename` to the names `found` in a file. Return {name: result}."""
    selectors = [(key, into, each) for key, into in rename.items() if (each := _selector(key, into)) is not None]
    beginnings = sorted((key for key, into in rename.items() if _selector(key, into) is None), key=len, reverse=True)
    return {name: _rename_one(name, rename, beginnings, selectors) for name in found}


def _rename_one(
    name: str,
    rename: Mapping[str, str | None],
    beginnings: Sequence[str],
    selectors: Sequence[tuple[str, str | None, _Selector]],
) -> _Renaming:
    met: list[str] = []
    words: list[tuple[str, int]] = []
    begin = next((key for key in beginnings if name.startswith(key)), None)
    if begin is not None:
        met.append(begin)
        into = rename[begin]
        if into is None:
            return _Renaming(None, tuple(met), ())
        name = into + name.removeprefix(begin)
    for key, into, selector in selectors:
        at = selector.form.fullmatch(name)
        if at is None:
            continue
        met.append(key)
        if into is None:
            return _Renaming(None, tuple(met), ())
        if selector.joins:
            words.append((key, selector.words.index(at["word"])))
        name = selector.new_name(at)
    return _Renaming(name, tuple(met), tuple(words))


def apply_renames(found: Mapping[str, T], rename: Mapping[str, str | None]) -> dict[str, T]:
    """Return a copy of `found` with renamed keys. The keys are names of tensors in a file. Tensors that `rename` drops
    are left out. `rename` must not join several tensors into one."""
    ways = _rename_all(found, rename)
    return {new: item for name, item in found.items() if (new := ways[name].new) is not None}


def find_join(rename: Mapping[str, str | None]) -> str | None:
    """Return the first key of `rename` that joins several tensors into one; None if there is none."""
    return next(
        (key for key, into in rename.items() if (each := _selector(key, into)) is not None and each.joins), None
    )


def resolve_joins(found: Shapes, rename: Mapping[str, str | None]) -> dict[str, tuple[PartPlan, ...]]:
    """Return a dict from each new name to the tensors of the file that get this name. If a key such as
    `{query,key,value}` joins several tensors, they are in the order of its words. `found`: shapes of the file's
    tensors."""
    made: dict[str, list[tuple[_Renaming, PartPlan]]] = {}
    for name, way in _rename_all(found, rename).items():
        if way.new is not None:
            shape = found[name]
            made.setdefault(way.new, []).append((way, PartPlan(name, shape[0] if shape else 1)))
    return {
        new: tuple(part for _, part in sorted(parts, key=lambda each: each[0].words)) for new, parts in made.items()
    }


def join_shapes(
    made: Mapping[str, Sequence[PartPlan]], found: Shapes
) -> tuple[dict[str, tuple[int, ...]], tuple[str, str | None] | None]:
    """Return the shapes of tensors that are made by concatenating tensors of a file by rows: ({name of the result:
    shape}, None). If tensors that are joined differ in more than their number of rows, return ({}, (problem, hint)).

    `made`: {name of the result: the tensors of the file that are joined}. `found`: shapes of the file's tensors.
    """
    shapes = {}
    for new, parts in made.items():
        given = [found[part.name] for part in parts]
        if len(given) > 1 and (not all(given) or len({shape[1:] for shape in given}) > 1):
            listed = " and ".join(f"{part.name} {shape}" for part, shape in zip(parts, given, strict=True))
            return {}, (f"has {listed}, which `rename` joins by rows to {new}, but they differ in more than rows", None)
        shapes[new] = given[0] if len(given) == 1 else (sum(shape[0] for shape in given), *given[0][1:])
    return shapes, None


def shapes_by(
    rename: Mapping[str, str | None], found: Shapes, *, is_run: bool
) -> tuple[dict[str, tuple[int, ...]], tuple[str, str | None] | None]:
    """Return ({new name of a tensor: its shape}, None) for the tensors of a file. If `rename` cannot be applied to
    them, return ({}, (problem, hint)).

    `found`: {name in the file: shape}. `is_run`: the file is the checkpoint of a run. Its tensors cannot be joined,
    because ranks read them directly from it.
    """
    if twice := find_same_name(found, rename):
        return {}, twice
    if is_run and (key := find_join(rename)) is not None:
        return {}, (
            f"is a run, but `{key}` under `rename` can only join tensors of files",
            "`dtrain export` writes one",
        )
    return join_shapes(resolve_joins(found, rename), found)


def idle_renames(
    recipe: Recipe, weights: Weights, rename: Mapping[str, str | None], found: Iterable[str]
) -> list[Diagnostic]:
    """Return an error for each entry of `rename` that matches no tensor of the file. `weights`: the entry of
    `model.weights` that names the file. `found`: the names in the file."""
    names = list(found)
    return [
        rename_matches_nothing(
            recipe.key_span(("model", "weights", weights.node, "rename", prefix)),
            prefix,
            format_path(weights.path),
            names,
        )
        for prefix in find_unmatched(names, rename)
    ]


def find_removed(recipe: Recipe, node: str) -> tuple[Related, ...]:
    """Return the places at which the recipe removes an inherited entry of `rename` by setting it to null. `node`: the
    node whose weights the entry renames."""
    path = ("model", "weights", node, "rename")
    gone = (each for each in recipe.document.dropped if each.path[:-1] == path and each.reason == "removed")
    return tuple(
        Related(each.by, f"this removes the entry for `{each.path[-1]}` of the extended recipe") for each in gone
    )


def find_unmatched(found: Iterable[str], rename: Mapping[str, str | None]) -> list[str]:
    """Return the keys of `rename` that match none of the names `found` in a file."""
    met = {key for way in _rename_all(found, rename).values() for key in way.keys}
    return [key for key in rename if key not in met]


def find_same_name(found: Iterable[str], rename: Mapping[str, str | None]) -> tuple[str, str | None] | None:
    """Return (problem, hint) if `rename` gives two tensors of a file the same name, so that one of them would be lost;
    otherwise None. Tensors that `rename` joins may get the same name. `found`: the names in the file."""
    before: dict[str, dict[str, _Renaming]] = {}
    for name, way in _rename_all(found, rename).items():
        if way.new is None:
            continue
        others = before.setdefault(way.new, {})
        for other, its in others.items():
            if way.words == its.words or [key for key, _ in way.words] != [key for key, _ in its.words]:
                head, dot, _ = name.rpartition(".")
                left_out = json.dumps(head + dot or name)
                problem = f"has two tensors that would both be renamed to {way.new}: {other} and {name}"
                return problem, f"choose another name for one of them, or drop it: rename: {{{left_out}: drop}}"
        others[name] = way
    return None
