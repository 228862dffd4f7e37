"""Sink that prints events to the terminal: a summary of the run, a progress bar, a row per epoch, and how the run
ended.

Without a terminal it prints plain lines; with `quiet`, only warnings. The result of the run is printed later, by the
command that started it (`app/views/result.py`). The training loop draws the bar, with numbers that are already on the
host."""

from __future__ import annotations

import json
import re
import shutil
import sys
import time
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Self, TextIO

from declarative_train.core.amounts import amount, clock, format_count, format_number
from declarative_train.core.machine import own_command
from declarative_train.core.untrusted import in_lines
from declarative_train.run.event import (
    EpochDone,
    EvaluationDone,
    Event,
    MemoryMeasured,
    Notice,
    Progress,
    RunEnded,
    RunStarted,
    StepDone,
    TextsWritten,
)
from declarative_train.run.sink import Sink

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

REFRESH_S = 0.1  # between two updates of the bar, and between two flushes of frequent lines
FREQUENT_EVENTS = (Progress, StepDone, EpochDone)
PLAIN_LINE_S = 10.0  # without a terminal, at most one step line in this time
COLUMN = 12
TEXT = 60  # most characters of a text sample
NARROW = 11  # column width in a narrow terminal


class ConsoleSink(Sink):
    """Sink that prints the events of one run: a progress bar and a row per epoch in a terminal, else plain lines."""

    @classmethod
    def of_run(cls, run_dir: Path, quiet: bool) -> Self:
        return cls(quiet=quiet)

    def __init__(self, stream: TextIO | None = None, *, quiet: bool = False) -> None:
        self._stream = stream or sys.stderr
        self._quiet = quiet
        self._bar: Bar | None = None
        self._started: RunStarted | None = None
        self._latest: StepDone | None = None
        self._steps = deque[StepDone](maxlen=1000)  # the latest ones, if the plan has predictions
        self._evaluations: dict[str, float] = {}
        self._memory: MemoryMeasured | None = None
        self._columns: tuple[str, ...] = ()
        self._widths: Mapping[str, int] = {}
        self._drawn_s = 0.0
        self._lines: list[str] = []  # not yet written
        self._flushed_s = 0.0
        self._first_step_s: float | None = None

    def write(self, event: Event) -> None:
        if self._quiet and not (isinstance(event, Notice) and event.is_warning):
            return
        match event:
            case Progress():
                self._draw(event.step)
                if not self._lines:
                    return
            case RunStarted():
                self._start(event)
            case StepDone():
                self._latest = event
                if self._started is not None and self._started.predicted:
                    self._steps.append(event)
                self._step_line(event)
            case EvaluationDone():
                self._evaluation(event)
            case TextsWritten():
                for prompt, text in zip(event.prompts, event.texts, strict=True):
                    self._say(f"step {event.step}: {_brief(prompt)} -> {_brief(text)}")
            case EpochDone():
                self._epoch_row(event)
            case Notice():
                self._say(f"{'warning' if event.is_warning else 'note'}: {event.message}")
            case MemoryMeasured():
                self._memory = event
            case RunEnded():
                self._end(event)
        if not isinstance(event, FREQUENT_EVENTS) or time.monotonic() - self._flushed_s > REFRESH_S:
            self._flush()

    def flush(self) -> None:
        """Do nothing, because a resumed run does not need what a terminal showed."""

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
        self._flush()

    def _start(self, event: RunStarted) -> None:
        self._started = event
        self._say(event.plan_brief)
        if event.first_step:
            self._print(f"resumed after step {event.first_step} of {event.num_steps}")
        self._first_step_s = time.monotonic()
        if self._stream.isatty():
            self._flush()  # the lines must appear above the bar
            self._bar = progress_bar(self._stream)
            self._bar.start()
            self._bar.add_task(
                event.name, total=event.num_steps, completed=event.first_step, loss="", rate="", left="", epoch=""
            )

    def _draw(self, step: int) -> None:
        bar, started = self._bar, self._started
        if bar is None or started is None:
            return
        now = time.monotonic()
        if now - self._drawn_s < REFRESH_S and step < started.num_steps:
            return
        self._drawn_s = now
        latest = self._latest
        elapsed = now - (self._first_step_s or now)
        done = step - started.first_step
        left = elapsed / done * (started.num_steps - step) if done else 0.0
        epoch = ""
        if started.steps_per_epoch:
            total = -(-started.num_steps // started.steps_per_epoch)
            epoch = f"epoch {min(total, (step - 1) // started.steps_per_epoch + 1)}/{total}"
        bar.update(
            bar.task_ids[0],
            completed=step,
            epoch=epoch,
            loss=f"loss {format_number(latest.loss)}" if latest else "",
            rate=f"{latest.samples_per_s:,.0f} samples/s" if latest else "",
            left=f"{clock(left)} left",
        )
        bar.refresh()

    def _step_line(self, event: StepDone) -> None:
        """Print a line of progress if there is no progress bar, but at most once in `PLAIN_LINE_S` seconds."""
        started = self._started
        if self._bar is not None or started is None:
            return
        now = time.monotonic()
        if now - self._drawn_s < PLAIN_LINE_S:
            return
        self._drawn_s = now
        self._print(
            f"step {event.step}/{started.num_steps}  loss {format_number(event.loss)}  "
            f"{event.samples_per_s:,.0f} samples/s"
        )

    def _evaluation(self, event: EvaluationDone) -> None:
        started = self._started
        self._evaluations |= event.values
        ends_an_epoch = started is not None and started.steps_per_epoch and event.step % started.steps_per_epoch == 0
        if not ends_an_epoch:
            values = "  ".join(f"{name} {format_number(value)}" for name, value in event.values.items())
            self._print(f"step {event.step}  {values}  ({format_count(event.num_samples, 'sample')})")

    def _epoch_row(self, event: EpochDone) -> None:
        values = event.values | self._evaluations
        self._evaluations = {}
        if not values.keys() <= set(self._columns):  # first row, or first row with an evaluation
            self._columns = tuple(dict.fromkeys((*self._columns, *values)))
            names = ("epoch", "step", *self._columns, "seconds")
            lines, self._widths = header(names, None if self._bar is None else self._bar.console.width)
            self._print("\n".join(lines))
        widths = self._widths
        cells = [f"{event.epoch:>{widths['epoch']}}", f"{event.step:>{widths['step']}}"]
        cells += [f"{format_number(values.get(name)):>{widths[name]}}" for name in self._columns]
        self._print("".join([*cells, f"{event.seconds:>{widths['seconds']}.1f}"]))

    def _end(self, event: RunEnded) -> None:
        self.close()
        started = self._started
        self._print("")
        status = "stopped early" if event.status == "early_stop" else event.status
        after = f"{status} after {format_count(event.step, 'step')}"
        if started is not None and started.first_step:
            after += f" ({event.step - started.first_step:,} in this session)"
        why = ": the metric of early_stop did not improve within its patience" if event.status == "early_stop" else ""
        self._print(f"{after}, {clock(event.seconds)}{why}")
        if started is None:
            return
        if self._steps:
            self._print(f"predicted   {format_speed(started.predicted)}")
            self._print(f"measured    {format_speed(summarize(self._steps))}")
        if self._memory is not None:
            self._say(f"memory      {format_memory(self._memory)}")
        if any(Path(started.run_dir).glob("events.out.tfevents.*")):
            self._print(f"watch       {own_command()} tensorboard {started.run_dir}")

    def _flush(self) -> None:
        lines, self._lines = self._lines, []
        self._stream.write("".join(lines))
        self._stream.flush()
        self._flushed_s = time.monotonic()

    def _say(self, text: str) -> None:
        """Print a text, wrapped at spaces to the width of the terminal."""
        width = shutil.get_terminal_size().columns if self._stream.isatty() else None
        self._print("\n".join(wrap(line, width) for line in text.splitlines()))

    def _print(self, text: str) -> None:
        text = in_lines(text)
        if self._bar is not None:
            self._bar.console.print(text, markup=False, highlight=False, soft_wrap=True)
        else:
            self._lines.append(f"{text}\n")


def _brief(text: str) -> str:
    """Return a text in quotation marks, shortened to one line. Control characters, which an untrained model may
    generate, become JSON escapes."""
    found = ""
    for sign in text:
        shown = sign if sign.isprintable() and sign not in '"\\' else json.dumps(sign)[1:-1]
        if len(found) + len(shown) > TEXT:
            return f'"{found}..."'
        found += shown
    return f'"{found}"'


def wrap(line: str, width: int | None) -> str:
    """Return a line broken into lines of at most `width` columns; unchanged if `width` is None. Continuation lines are
    indented. In a line such as `word    text`, they begin in the column of the text."""
    if width is None or len(line) <= width:
        return line
    import textwrap

    found = re.match(r"\w+ {2,}", line)
    indent = " " * (found.end() if found is not None else 6)
    return textwrap.fill(line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def summarize(steps: Collection[StepDone]) -> dict[str, float]:
    """Return the median step time and MFU, and the peak memory, of these logging steps. The keys are those of the
    plan's predictions: `step_ms`, `mfu`, `memory_gib`. A value that was never measured is left out."""
    found = {"memory_gib": max(step.memory_bytes for step in steps) / 2**30}
    times = [step.step_s * 1e3 for step in steps if step.step_s is not None]
    shares = [step.mfu for step in steps if step.mfu is not None]
    if times:
        found["step_ms"] = median(times)
    if shares:
        found["mfu"] = median(shares)
    return found


def format_memory(event: MemoryMeasured) -> str:
    """Return a text with the predicted and the measured memory of the rank with the highest measured peak."""
    rank = max(range(len(event.measured)), key=lambda each: event.measured[each])
    whose = f" on rank {rank}, the maximum of {len(event.measured)}" if len(event.measured) > 1 else ""
    predicted, measured = amount(event.predicted[rank], "B"), amount(event.measured[rank], "B")
    return f"predicted {predicted}, measured {measured}{whose} ({event.how} in step {event.step:,})"


def median(values: Sequence[float]) -> float:
    """Return the median; of an even number of values, the larger of the two middle ones. (Importing `statistics` takes
    10 ms.)"""
    return sorted(values)[len(values) // 2]


def format_speed(values: Mapping[str, float]) -> str:
    """Return speed and memory as a text such as `12.3 ms a step, 9.50 GiB, MFU 45.0%`. Unknown values are left out."""
    forms = {"step_ms": "{:.3g} ms a step", "memory_gib": "{:.2f} GiB", "mfu": "MFU {:.1%}"}
    return ", ".join(form.format(values[name]) for name, form in forms.items() if name in values)


def progress_bar(stream: TextIO) -> Bar:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
    from rich.progress import Progress as RichProgress

    return RichProgress(
        TextColumn("{task.fields[epoch]}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[loss]}"),
        TextColumn("{task.fields[rate]}"),
        TextColumn("{task.fields[left]}"),
        console=Console(file=stream),
        auto_refresh=False,
        transient=True,
    )


def header(names: Sequence[str], width: int | None) -> tuple[list[str], dict[str, int]]:
    """Return the lines with the column names, and a dict from each name to the width of its column. If `width` is too
    small, names are broken after each `/`."""
    wide = {name: max(COLUMN, len(name) + 2) if "/" in name or name == "seconds" else 7 for name in names}
    if width is None or sum(wide.values()) <= width:
        return ["".join(f"{name:>{wide[name]}}" for name in names)], wide
    parts = {name: name.replace("/", "/ ").split() for name in names}
    widths = {name: max(NARROW if "/" in name else 7, *(len(part) + 2 for part in parts[name])) for name in names}
    height = max(map(len, parts.values()))
    padded = {name: [""] * (height - len(each)) + each for name, each in parts.items()}
    return ["".join(f"{padded[name][line]:>{widths[name]}}" for name in names) for line in range(height)], widths
