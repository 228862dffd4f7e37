"""Pydantic fields that hold a duration: `100 steps`, `2 epochs`, `5%`. Each key defines the units that it accepts.

A section of the recipe holds a `Duration`. A component holds the text, because a plan stores it as JSON. The compiler
replaces the text by a number of steps before the number is needed."""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated

from pydantic_core import PydanticCustomError, core_schema

from declarative_train.core.duration import Duration, parse_duration

PROGRESS = ("steps", "epochs", "samples", "tokens", "%")  # what a plan can turn into optimizer steps
CLOCK = ("minutes", "hours")
_NUMBER = r"[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?"


class _DurationType:
    """Pydantic type that reads and writes durations as text. It builds its core schema directly, because
    `PlainValidator` and `PlainSerializer` would first compute a schema of Duration and discard it."""

    def __init__(self, units: tuple[str, ...], examples: tuple[str, ...] = (), *, keeps_text: bool = False) -> None:
        self.units, self.keeps_text = units, keeps_text
        self.examples = examples or tuple(f"10 {unit}" if unit != "%" else "5%" for unit in units)

    def __get_pydantic_core_schema__(self, source: object, handler: object) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(
            self.read, serialization=core_schema.plain_serializer_function_ser_schema(str)
        )

    def __get_pydantic_json_schema__(self, schema: object, handler: object) -> dict[str, object]:
        words = "|".join("%" if unit == "%" else f"{unit[:-1]}s?" for unit in self.units)
        return {"type": "string", "pattern": rf"^\s*{_NUMBER}\s*({words})\s*$", "examples": list(self.examples)}

    def read(self, value: object) -> Duration | str:
        """Return the duration that a text such as `10 epochs` describes: as a Duration or, with `keeps_text`, as
        normalised text. Raises the pydantic errors `bare_duration` (a number without a unit) and `bad_duration`."""
        if isinstance(value, Duration):
            return value
        if isinstance(value, int | float) and not isinstance(value, bool):
            raise PydanticCustomError("bare_duration", "{value}", {"value": f"{value:g}", "units": self.units})
        try:
            duration = parse_duration(str(value), self.units)
        except ValueError as problem:
            raise self._bad(str(problem)) from None
        if duration.value <= 0:
            raise self._bad(f"`{duration}` is zero" + ("" if self.keeps_text else ": remove it"))
        if duration.unit not in self.units:
            raise self._bad(f"`{duration}` is in {duration.unit}; this takes {', '.join(self.units)}")
        return str(duration) if self.keeps_text else duration

    def _bad(self, problem: str) -> PydanticCustomError:
        return PydanticCustomError("bad_duration", "{problem}", {"problem": problem, "units": self.units})


Progress = Annotated[Duration, _DurationType(PROGRESS)]
"""Part of a run, counted in work done."""

Clock = Annotated[Duration, _DurationType(CLOCK)]
"""Time on the clock."""

Samples = Annotated[Duration, _DurationType(("samples",))]
"""A number of samples."""

DurationText = Annotated[str, _DurationType(PROGRESS, ("30 epochs", "1000 steps", "20%"), keeps_text=True)]
"""`30 epochs`, `1000 steps`, `20%`."""


@lru_cache
def num_steps_of(text: str) -> int:
    """Return the number of steps in a text such as `300 steps`. Raises ValueError for other units, which the compiler
    should have converted to steps."""
    duration = parse_duration(text)
    if duration.unit != "steps":
        raise ValueError(f"`{text}` is not in steps: the plan resolves a schedule before it asks for factors")
    return int(duration.value)


def in_steps(num_steps: int) -> str:
    return f"{num_steps} {'step' if num_steps == 1 else 'steps'}"
