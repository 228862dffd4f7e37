"""Fields that hold a duration: `100 steps`, `2 epochs`, `5%`; each key says which units it takes."""

from typing import Annotated

from pydantic_core import PydanticCustomError, core_schema

from declarative_train.terms.duration import Duration, parse_duration

PROGRESS = ("steps", "epochs", "samples", "tokens", "%")  # what a plan can turn into optimizer steps
CLOCK = ("minutes", "hours")
_NUMBER = r"[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?"


class _Text:
    """Reads a Duration from text, writes it as text. Speaks to pydantic's core by itself: `PlainValidator` and
    `PlainSerializer` would first work out a schema of Duration, and throw it away."""

    def __init__(self, units: tuple[str, ...]) -> None:
        self.units = units

    def __get_pydantic_core_schema__(self, source: object, handler: object) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(
            self.read, serialization=core_schema.plain_serializer_function_ser_schema(str)
        )

    def __get_pydantic_json_schema__(self, schema: object, handler: object) -> dict[str, object]:
        words = "|".join("%" if unit == "%" else f"{unit[:-1]}s?" for unit in self.units)
        return {
            "type": "string",
            "pattern": rf"^\s*{_NUMBER}\s*({words})\s*$",
            "examples": [f"10 {unit}" if unit != "%" else "5%" for unit in self.units],
        }

    def read(self, value: object) -> Duration:
        if isinstance(value, Duration):
            return value
        if isinstance(value, int | float) and not isinstance(value, bool):
            raise PydanticCustomError("bare_duration", "{value}", {"value": f"{value:g}", "units": self.units})
        try:
            duration = parse_duration(str(value), self.units)
        except ValueError as problem:
            context = {"problem": str(problem), "units": self.units}
            raise PydanticCustomError("bad_duration", "{problem}", context) from None
        if duration.value <= 0:
            raise PydanticCustomError(
                "bad_duration", "{problem}", {"problem": f"`{duration}` is nothing: leave it out"}
            )
        if duration.unit not in self.units:
            wanted = f"`{duration}` is in {duration.unit}; this takes {', '.join(self.units)}"
            raise PydanticCustomError("bad_duration", "{problem}", {"problem": wanted})
        return duration


Progress = Annotated[Duration, _Text(PROGRESS)]
"""Part of a run, counted in work done."""

Clock = Annotated[Duration, _Text(CLOCK)]
"""Time on the clock."""

Samples = Annotated[Duration, _Text(("samples",))]
"""A number of samples."""
