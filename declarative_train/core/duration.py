"""Durations as users write them: `100 steps`, `2 epochs`, `5%`. The compiler converts them into steps or seconds."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Literal, get_args

Unit = Literal["steps", "epochs", "samples", "tokens", "minutes", "hours", "%"]
UNITS: tuple[str, ...] = get_args(Unit)

_EXAMPLES = {
    "steps": "`100 steps`",
    "epochs": "`2 epochs`",
    "%": "`5%`",
    "minutes": "`30 minutes`",
    "hours": "`2 hours`",
}
_OTHER_UNITS = {  # unit of another tool -> number and unit here
    **dict.fromkeys(("d", "day", "days"), (24, "hours")),
    **dict.fromkeys(("h", "hr", "hrs"), (1, "hours")),
    **dict.fromkeys(("m", "min", "mins"), (1, "minutes")),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), (1 / 60, "minutes")),
    **dict.fromkeys(("ep", "e"), (1, "epochs")),
    **dict.fromkeys(("percent", "pct"), (1, "%")),
    **dict.fromkeys(("iter", "iters", "iterations", "it", "updates", "step", "steps"), (1, "steps")),
    **dict.fromkeys(("epoch", "epochs"), (1, "epochs")),
    **dict.fromkeys(("sample", "samples", "examples", "rows"), (1, "samples")),
    **dict.fromkeys(("token", "tokens"), (1, "tokens")),
}
_THOUSANDS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9}
_OTHER_FORM = re.compile(r"(?P<number>\d+(?:[_,]\d{3})*(?:\.\d+)?)(?P<times>[kmb]?)\s*(?P<unit>[a-z]+)", re.IGNORECASE)
_CLOCK = re.compile(r"(?:(?P<days>\d+):)?(?P<hours>\d{1,2}):(?P<minutes>\d\d):(?P<seconds>\d\d)")
_FORM = re.compile(r"(?P<number>\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)\s*(?P<unit>%|[a-z]+)")


@dataclass(frozen=True, slots=True)
class Duration:
    """Duration `value` in the unit `unit`. `value` may be a fraction, because numbers of steps are rounded up later."""

    value: float
    unit: Unit

    def __str__(self) -> str:
        number = str(int(self.value)) if float(self.value).is_integer() else repr(self.value)  # all digits, no 1.2e+06
        if self.unit == "%":
            return f"{number}%"
        return f"{number} {self.unit[:-1] if self.value == 1 else self.unit}"

    @property
    def seconds(self) -> float | None:
        """Seconds, if the unit is minutes or hours. None for other units."""
        scale = {"minutes": 60.0, "hours": 3600.0}.get(self.unit)
        return None if scale is None else self.value * scale

    def steps(
        self, *, steps_per_epoch: int, global_batch_size: int, num_steps: int | None, tokens_per_sample: int | None
    ) -> int:
        """Return the duration in optimizer steps, rounded up, at least 1.

        `num_steps`: the length of the run, to which `%` refers; None if unknown. `tokens_per_sample`: None for samples
        without tokens. Raises ValueError if the unit cannot be converted: minutes and hours, `%` of a run of unknown
        length, or tokens of samples without tokens."""
        exact = self.exact_steps(
            steps_per_epoch=steps_per_epoch,
            global_batch_size=global_batch_size,
            num_steps=num_steps,
            tokens_per_sample=tokens_per_sample,
        )
        return max(1, ceil(exact))

    def exact_steps(
        self, *, steps_per_epoch: int, global_batch_size: int, num_steps: int | None, tokens_per_sample: int | None
    ) -> float:
        """Return the duration in optimizer steps, not rounded up: half an epoch of 5 steps is 2.5. Arguments and
        exceptions are those of `steps`."""
        if self.unit == "steps":
            exact = self.value
        elif self.unit == "epochs":
            exact = self.value * steps_per_epoch
        elif self.unit == "samples":
            exact = self.value / global_batch_size
        elif self.unit == "tokens" and tokens_per_sample is not None:
            exact = self.value / (global_batch_size * tokens_per_sample)
        elif self.unit == "%" and num_steps is not None:
            exact = self.value / 100 * num_steps
        else:
            raise ValueError(f"`{self}` cannot be converted to steps here")
        return round(exact, 9)  # 0.1 * 30 is 3.0000000000000004: rounding first keeps it 3


def parse_duration(text: str, wanted: Sequence[str] = UNITS) -> Duration:
    """Return the Duration that a text `<number> <unit>` describes, in any unit. The unit may be singular. Raises
    ValueError for any other text. `wanted`: the units that the error message suggests."""
    match = _FORM.fullmatch(text.strip())
    if match is None:
        examples = [example for unit, example in _EXAMPLES.items() if unit in wanted]
        raise ValueError(f"`{text}` is not a duration: write a number and a unit, such as {', '.join(examples)}")
    word = match["unit"]
    unit = word if word in UNITS else f"{word}s"
    if unit not in UNITS:
        raise ValueError(f"`{word}` is not a unit of duration: use one of {', '.join(wanted)}")
    if unit == "%" and float(match["number"]) > 100:
        raise ValueError(f"`{text}` is more than the run: the maximum is `100%`")
    return Duration(float(match["number"]), unit)  # type: ignore[arg-type]


def interpret_duration(text: str, wanted: Sequence[str] = UNITS) -> Duration | None:
    """Return the Duration that a text means in other tools, such as `2h`, `01:30:00` or `10k steps`. Return None if the
    text is not such a duration, or if its unit is not in `wanted`."""
    text = re.sub(r"^(?:every|each|once per|per)\s+", "1 ", text.strip(), flags=re.IGNORECASE)
    if text.lower() in _OTHER_UNITS and len(text) > 1:  # `every: epoch`
        text = f"1 {text}"
    clock, other = _CLOCK.fullmatch(text), _OTHER_FORM.fullmatch(text)
    if clock is not None:
        days, hours, minutes, seconds = (int(part or 0) for part in clock.groups())
        value, unit = (days * 24 + hours) * 60 + minutes + seconds / 60, "minutes"
    elif other is not None and other["unit"].lower() in _OTHER_UNITS:
        scale, unit = _OTHER_UNITS[other["unit"].lower()]
        number = float(other["number"].replace(",", "").replace("_", "")) * _THOUSANDS[other["times"].lower()]
        value = round(number * scale, 6)
    else:
        return None
    if unit == "minutes" and value and value % 60 == 0 and "hours" in wanted:
        value, unit = value / 60, "hours"
    return Duration(value, unit) if unit in wanted and value > 0 else None  # type: ignore[arg-type]
