"""`python -m declarative_train` that also writes down when the first step was done. The log of a run only has the times
of logged steps. Ranks are forked from this process, so that they write it too."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from declarative_train.__main__ import main
from declarative_train.run.event import Event, Progress
from declarative_train.run.sinks.jsonl import JsonlSink

NAME = "first_step"  # a file in the run's folder

write = JsonlSink.write


def and_note(sink: JsonlSink, event: Event) -> None:
    if isinstance(event, Progress):
        JsonlSink.write = write  # type: ignore[method-assign]
        Path(sink._stream.name).with_name(NAME).write_text(repr(time.time()))
    write(sink, event)


if __name__ == "__main__":
    JsonlSink.write = and_note  # type: ignore[method-assign, assignment]
    sys.exit(main())
