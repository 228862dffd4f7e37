"""Index of everything that a user can write or read: keys, types, functions, commands, diagnostics, pages."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from declarative_train.app.api.hints import hint_of_api
from declarative_train.app.catalogue import catalogue
from declarative_train.app.main import all_commands
from declarative_train.app.views.components import summary
from declarative_train.app.views.sections import KINDS
from declarative_train.components.component import Component, recipe_keys
from declarative_train.components.expressions.functions import FUNCTIONS
from declarative_train.components.field_docs import field_docs
from declarative_train.components.hardware import HARDWARE
from declarative_train.core.diagnostics.suggest import is_slip, nearest
from declarative_train.recipe.hints import aliases
from declarative_train.recipe.hints.words import hint_on_foreign_word
from declarative_train.recipe.model.blocks import list_shipped, read_shipped_file
from declarative_train.recipe.sections.parallelism import WORDS, Axes
from declarative_train.recipe.sections.section import Section
from declarative_train.recipe.sections.top import Top
from declarative_train.recipe.validate import children_of

HEADINGS = Path(__file__).with_name("headings.json")
"""(page, heading) of docs/, which the package does not have: written by `python -m tests.generate`."""
KIND_NAMES = {
    "sources": "source",
    "fields": "field",
    "splits": "split",
    "transforms": "transform",
    "layers": "layer",
    "inits": "init",
    "adapters": "adapter",
    "losses": "loss",
    "metrics": "metric",
    "optimizers": "optimizer",
    "lr_schedules": "schedule",
}
MOST_FIRST = 3  # entries that a command shows for a word that it does not know
ENOUGH = 8  # number of entries from which weaker matches are left out
_NAMED = re.compile(r"`(dtrain \w+|[\w.]+)")
_MODULE = re.compile(r"^(torch|nn|F|tf|keras|sklearn|transformers)\.(\w+\.)*")
_WORDS = re.compile(r"[a-z0-9]+")


def tables() -> dict[str, Mapping[str, type[Component]]]:
    """Return {kind of components: {type: its class}}."""
    from declarative_train.components.adapters import ADAPTERS
    from declarative_train.components.datasets import DATASETS
    from declarative_train.components.fields import FIELDS
    from declarative_train.components.inits import INITS
    from declarative_train.components.layers import LAYERS
    from declarative_train.components.losses import LOSSES
    from declarative_train.components.lr_schedules import LR_SCHEDULES
    from declarative_train.components.metrics import METRICS
    from declarative_train.components.optimizers import OPTIMIZERS
    from declarative_train.components.splits import SPLITS
    from declarative_train.components.transforms import TRANSFORMS

    return {
        "sources": DATASETS,
        "fields": FIELDS,
        "splits": SPLITS,
        "transforms": TRANSFORMS,
        "layers": LAYERS,
        "inits": INITS,
        "adapters": ADAPTERS,
        "losses": LOSSES,
        "metrics": METRICS,
        "optimizers": OPTIMIZERS,
        "lr_schedules": LR_SCHEDULES,
    }


@dataclass(frozen=True, slots=True)
class Entry:
    """Result of a search: something that a user can write or read. `kind`: key, layer, function, command, diagnostic or
    page. `name`: its name; for a key, the dotted path. `about`: a sentence about it."""

    kind: str
    name: str
    about: str

    @property
    def last(self) -> str:
        """Last part of the dotted path if the entry is a key; otherwise the entry's name."""
        return self.name.rpartition(".")[2] if self.kind == "key" else self.name


@dataclass(frozen=True, slots=True)
class Found:
    """Result of the search for a word. `hint`: dtrain's name for a word of another tool, or None. `entries`: the best
    match first."""

    word: str
    hint: str | None
    entries: tuple[Entry, ...]

    @property
    def is_empty(self) -> bool:
        return self.hint is None and not self.entries


def find(word: str) -> Found:
    """Search for a word in the language, the command line and the documentation. If the word belongs to another tool,
    the result has a hint with dtrain's name for it."""
    entries, asked = all_entries(), _MODULE.sub("", word.strip())
    types = {each.name for each in entries if each.kind not in ("key", "page", "diagnostic")}
    hint = hint_on_foreign_word(asked, types)
    named = {name.lower() for name in _NAMED.findall(hint or "")}
    scored = sorted(((_score(each, asked.lower(), named), at) for at, each in enumerate(entries)), key=_by_score)
    best = [(score, entries[at]) for score, at in scored if score is not None]
    last = best[min(ENOUGH, len(best)) - 1][0] if best else 0
    sure = [each for score, each in best if score == 0]
    rest = [each for score, each in best if 0 < score <= last]
    if hint is None and not sure:
        hint = hint_of_api(asked)
    if hint is None and not best and (close := nearest(asked, types)) is not None and is_slip(asked, close, types):
        hint = f"did you mean `{close}`?"
    return Found(word, hint, tuple(sure + rest[: max(0, ENOUGH - len(sure))]))


def as_text(found: Found, most: int | None = None) -> str:
    """Return a search result as lines: the hint, then the entries, at most `most` of them (None: all)."""
    shown = found.entries[:most]
    width = max((len(each.name) for each in shown), default=0)
    lines = [] if found.hint is None else [f"`{found.word}`: {found.hint}"]
    return "\n".join([*lines, *(f"{each.kind:<10}  {each.name:<{width}}  {each.about}" for each in shown)])


def first_answers(word: str) -> str:
    """Return, as text, the best matches for an unknown word; "" if there are none. If there are more matches, the last
    line names the command that shows them."""
    found = find(word)
    if found.is_empty:
        return ""
    more = f"\n`dtrain find {word}` shows more" if len(found.entries) > MOST_FIRST else ""
    return as_text(found, MOST_FIRST) + more


def _by_score(scored: tuple[int | None, int]) -> tuple[int, int]:
    score, at = scored
    return (9 if score is None else score, at)


def _score(entry: Entry, word: str, named: set[str]) -> int | None:
    """Return how well an entry matches `word`: 0 if `word` is its name, a larger number for a weaker match. None if it
    does not match. `named`: if `word` is a term of another tool, dtrain's names for the same thing."""
    name, last = entry.name.lower(), entry.last.lower()
    if word in (name, last) or aliases.letters(word) == aliases.letters(last):
        return 0
    if name in named or last in named:
        return 1
    parts = _WORDS.findall(last)
    if word in parts or all(each in parts for each in _WORDS.findall(word)):
        return 2
    if len(word) > 2 and any(part.startswith(word) for part in parts):
        return 3
    return 4 if len(word) > 2 and re.search(rf"\b{re.escape(word)}s?\b", entry.about.lower()) else None


@cache
def all_entries() -> tuple[Entry, ...]:
    """Return all entries that a search can find: keys, types, functions, commands, diagnostics, pages."""
    return tuple(dict.fromkeys(_entries()))


def _entries() -> Iterator[Entry]:
    yield from _section_keys(Top, "")
    yield Entry("key", "parallelism", "How the ranks share the work: a word, or a product of axes.")
    yield from (Entry("mode", word, "word of `parallelism`") for word in WORDS)
    yield from _section_keys(Axes, "parallelism")
    for kind, table in tables().items():
        for name, component in table.items():
            yield Entry(KIND_NAMES[kind], name, _first_sentence(summary(component)))
            yield from _component_keys(name, component)
    for name in list_shipped():
        yield Entry("block", name, read_shipped_file(name).text.splitlines()[0].lstrip("# "))
    yield from (Entry("function", name, f"{name}({each.signature})") for name, each in FUNCTIONS.items())
    yield from (Entry("gpu", name, "`dtrain list " + name + "`") for name in HARDWARE)
    yield from (Entry("command", f"dtrain {name}", each.summary) for name, each in all_commands().items())
    yield from (Entry("diagnostic", f"{each.code} {each.name}", each.finds) for each in catalogue().values())
    yield from (Entry("page", f"docs/{page}", heading) for page, heading in json.loads(HEADINGS.read_text()))


def _section_keys(model: type[Section], path: str) -> Iterator[Entry]:
    """Yield the keys of a section and of the sections nested in it. `path`: the dotted path of the section."""
    docs, children = field_docs(model), children_of(model)
    for key, name in recipe_keys(model).items():
        inner = path if key == model.inline else f"{path}.{key}" if path else key
        if inner != path:
            yield Entry("key", inner, _first_sentence(docs.get(name, "")))
        child = children.get(key)
        if child is not None and child.model not in KINDS and issubclass(child.model, Section):
            yield from _section_keys(child.model, f"{inner}.NAME" if child.holder is dict else inner)


def _component_keys(name: str, component: type[Component]) -> Iterator[Entry]:
    docs = field_docs(component)
    for key, field in recipe_keys(component).items():
        if key != "type":
            yield Entry("key", f"{name}.{key}", _first_sentence(docs.get(field, "")))


def _first_sentence(text: str) -> str:
    return re.split(r"(?<=[.;])\s", " ".join(text.split()), maxsplit=1)[0].rstrip(";")


def as_data(found: Found) -> Mapping[str, object]:
    """Return the JSON object that `dtrain find --json` prints."""
    entries = [{"kind": each.kind, "name": each.name, "about": each.about} for each in found.entries]
    return {"word": found.word, "hint": found.hint, "entries": entries}
