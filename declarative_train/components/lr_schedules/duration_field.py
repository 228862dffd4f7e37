"""Durations as fields of a component: text that is checked, kept as text (the plan is JSON), and read as steps."""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated

from pydantic_core import PydanticCustomError, core_schema

from declarative_train.terms.duration import parse_duration

UNITS = ("steps", "epochs", "samples", "tokens", "%")  # what a plan can turn into optimizer steps


def _canonical(value: object) -> str:
    """`bare_duration` and `bad_duration` are the error types that `recipe/pydantic_errors.py` has diagnostics for."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        raise PydanticCustomError("bare_duration", "{value}", {"value": f"{value:g}", "units": UNITS})
    try:
        duration = parse_duration(str(value), UNITS)
    except ValueError as problem:
        raise PydanticCustomError("bad_duration", "{problem}", {"problem": str(problem), "units": UNITS}) from None
    if duration.value <= 0:
        raise PydanticCustomError("bad_duration", "{problem}", {"problem": f"`{duration}` is nothing"})
    if duration.unit not in UNITS:
        words = f"`{duration}` is in {duration.unit}; this takes {', '.join(UNITS)}"
        raise PydanticCustomError("bad_duration", "{problem}", {"problem": words})
    return str(duration)


_WORDS = "|".join("%" if unit == "%" else f"{unit[:-1]}s?" for unit in UNITS)
_PATTERN = rf"^\s*[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?\s*({_WORDS})\s*$"


class _Text:
    @staticmethod
    def __get_pydantic_core_schema__(source: object, handler: object) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(
            _canonical, serialization=core_schema.to_string_ser_schema()
        )

    @staticmethod
    def __get_pydantic_json_schema__(schema: object, handler: object) -> dict[str, object]:
        return {"type": "string", "pattern": _PATTERN, "examples": ["30 epochs", "1000 steps", "20%"]}


DurationText = Annotated[str, _Text]
"""`30 epochs`, `1000 steps`, `20%`."""


@lru_cache
def num_steps_of(text: str) -> int:
    """The number of a resolved duration (`300 steps`). Raises ValueError for one that the plan has not resolved."""
    duration = parse_duration(text)
    if duration.unit != "steps":
        raise ValueError(f"`{text}` is not in steps: the plan resolves a schedule before it asks for factors")
    return int(duration.value)


def in_steps(num_steps: int) -> str:
    return f"{num_steps} {'step' if num_steps == 1 else 'steps'}"
