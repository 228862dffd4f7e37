"""Log sink for tests, which stores all events."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from declarative_train.run.event import Event
from declarative_train.run.sink import Sink


@dataclass
class Kept(Sink):
    events: list[Event] = field(default_factory=list)
    is_closed: bool = False

    def write(self, event: Event) -> None:
        self.events.append(event)

    def flush(self) -> None:
        pass

    def close(self) -> None:
        self.is_closed = True

    def of(self, kind: type) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]
