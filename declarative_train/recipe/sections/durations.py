"""Fields that hold a duration: `100 steps`, `2 epochs`, `5%`; each key says which units it takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from pydantic import PlainSerializer, PlainValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

from declarative_train.terms.duration import Duration, parse_duration

PROGRESS = ("steps", "epochs", "samples", "tokens", "%")  # what a plan can turn into optimizer steps
CLOCK = ("minutes", "hours")
_NUMBER = r"[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?"


def _reader(units: tuple[str, ...]) -> Callable[[object], Duration]:
    def read(value: object) -> Duration:
        if isinstance(value, Duration):
            return value
        if isinstance(value, int | float) and not isinstance(value, bool):
            raise PydanticCustomError("bare_duration", "{value}", {"value": f"{value:g}", "units": units})
        try:
            duration = parse_duration(str(value), units)
        except ValueError as problem:
            raise PydanticCustomError("bad_duration", "{problem}", {"problem": str(problem)}) from None
        if duration.value <= 0:
            raise PydanticCustomError(
                "bad_duration", "{problem}", {"problem": f"`{duration}` is nothing: leave it out"}
            )
        if duration.unit not in units:
            wanted = f"`{duration}` is in {duration.unit}; this takes {', '.join(units)}"
            raise PydanticCustomError("bad_duration", "{problem}", {"problem": wanted})
        return duration

    return read


def _schema(units: tuple[str, ...]) -> dict[str, object]:
    words = "|".join("%" if unit == "%" else f"{unit[:-1]}s?" for unit in units)
    return {
        "type": "string",
        "pattern": rf"^\s*{_NUMBER}\s*({words})\s*$",
        "examples": [f"10 {unit}" if unit != "%" else "5%" for unit in units],
    }


_TEXT = PlainSerializer(str)

Progress = Annotated[Duration, PlainValidator(_reader(PROGRESS)), _TEXT, WithJsonSchema(_schema(PROGRESS))]
"""Part of a run, counted in work done."""

Clock = Annotated[Duration, PlainValidator(_reader(CLOCK)), _TEXT, WithJsonSchema(_schema(CLOCK))]
"""Time on the clock."""

Samples = Annotated[Duration, PlainValidator(_reader(("samples",))), _TEXT, WithJsonSchema(_schema(("samples",)))]
"""A number of samples."""
