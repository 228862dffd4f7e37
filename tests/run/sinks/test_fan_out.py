"""A sink that fails: a run goes on without one that it can do without, and is told once."""

from __future__ import annotations

from typing import ClassVar

import pytest

from declarative_train.run.event import Event, Notice, Progress
from declarative_train.run.sink import FanOut
from tests.kept import Kept


class Broken(Kept):
    is_record: ClassVar[bool] = False

    def write(self, event: Event) -> None:
        raise OSError("no space left on device")

    def close(self) -> None:
        super().close()
        raise OSError("no space left on device")


def test_a_sink_that_fails_is_reported_once_and_the_others_go_on() -> None:
    kept, broken = Kept(), Broken()
    sinks = FanOut((broken, kept))
    for step in (1, 2, 3):
        sinks.write(Progress(step, 1))
    sinks.close()
    notices = [event for event in kept.events if isinstance(event, Notice)]
    assert [event.step for event in kept.events if isinstance(event, Progress)] == [1, 2, 3]
    assert [(notice.message, notice.is_warning) for notice in notices] == [
        ("Broken is disabled for the rest of this run: no space left on device", True)
    ]
    assert kept.is_closed
    assert broken.is_closed


def test_the_record_of_a_run_must_hold() -> None:
    class Record(Broken):
        is_record: ClassVar[bool] = True

    kept = Kept()
    sinks = FanOut((Record(), kept))
    with pytest.raises(OSError, match="no space"):
        sinks.write(Progress(1, 1))
    with pytest.raises(OSError, match="no space"):
        sinks.close()
    assert kept.is_closed
