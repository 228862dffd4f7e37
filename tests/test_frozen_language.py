"""`language: 1`: what a recipe means, as data. Words may come; what is there moves only under another number."""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from declarative_train.components.expressions.functions import FUNCTIONS, OPERATORS
from declarative_train.recipe.component_fields import KINDS, table
from declarative_train.recipe.merge_rules import DEFAULT_TYPES, EXCLUSIVE
from declarative_train.recipe.sections.parallelism import MODES
from declarative_train.recipe.sections.section import Section
from declarative_train.recipe.sections.top import LANGUAGE_VERSION, SECTIONS, Top, models_in
from declarative_train.terms.names import NAME, RESERVED

GOLDEN = Path(__file__).parent / "golden" / f"language_{LANGUAGE_VERSION}.json"


def test_nothing_of_the_language_moves_under_its_number() -> None:
    now = language()
    if os.environ.get("ACCEPT"):
        GOLDEN.write_text(json.dumps(now, indent=1, sort_keys=True) + "\n")
    moved = [f"{key}: was {was}, is {now.get(key)}" for key, was in json.loads(GOLDEN.read_text()).items()
             if now.get(key) != was]  # fmt: skip
    assert not moved, f"recipes of language {LANGUAGE_VERSION} would mean something else: {moved[:5]}"


def test_a_default_that_moves_is_found() -> None:
    assert language()["optimizer.adamw.weight_decay"] == "0.01"
    assert language()["function.softmax"].startswith("torch.softmax")


def language() -> dict[str, str]:
    """Every fact by a name of its own."""
    return dict(_facts())


def _facts() -> Iterator[tuple[str, str]]:
    yield "name", NAME
    yield "reserved", " ".join(RESERVED)
    for name, function in (FUNCTIONS | OPERATORS).items():
        yield f"function.{name}", f"{function.target}({function.signature}) {function.dtype}"
    for kind, (word, _) in KINDS.items():
        for name, model in table(kind).items():
            yield from _fields(f"{word}.{name}", model)
    yield from _fields("top", Top)
    for section in SECTIONS:
        for model in models_in(Top.model_fields[section].annotation):
            yield from _fields(f"section.{model.__name__}", model)
    for mode, model in MODES.items():
        yield from _fields(f"mode.{mode}", model)
    for pair in EXCLUSIVE:
        yield f"exclusive.{'.'.join(map(str, pair.holder))}.{pair.either}.{pair.other}", "one of them"
    for path, default in DEFAULT_TYPES.items():
        yield f"default type.{'.'.join(map(str, path))}", str(default)


def _fields(prefix: str, model: type[BaseModel]) -> Iterator[tuple[str, str]]:
    for name, field in model.model_fields.items():
        if field.default_factory is not None:
            continue  # a section, whose fields stand for themselves
        value = "required" if field.default is PydanticUndefined else _shown(field.default)
        yield f"{prefix}.{field.alias or name}", value


def _shown(value: Any) -> str:
    if isinstance(value, Section) or inspect.isclass(value):
        return type(value).__name__
    return str(value)
