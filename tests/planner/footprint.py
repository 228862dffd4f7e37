"""Peak of a count of live bytes, by class."""

from __future__ import annotations

from dataclasses import dataclass

from declarative_train.planner.footprint.live_bytes import CLASSES, GRADIENTS, KINDS, WHOLE, LiveBytes


@dataclass(frozen=True, slots=True)
class Footprint:
    """Peak memory. `by_class`: bytes of each class when their sum was the largest."""

    by_class: dict[str, int]

    @property
    def total(self) -> int:
        return sum(self.by_class.values())


def footprint_of(live: LiveBytes) -> Footprint:
    """Return the peak of a count."""
    now, peak, at_peak = [0] * KINDS, 0, [0] * KINDS
    total = 0
    for stored, more in live.changes:
        now[stored.kind] += more
        total += more
        if total > peak:
            peak, at_peak = total, list(now)
    at_peak[GRADIENTS] += at_peak[WHOLE]
    return Footprint(dict(zip(CLASSES, at_peak[: len(CLASSES)], strict=True)))
