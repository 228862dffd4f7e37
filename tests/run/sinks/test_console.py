"""What a run says where there is no terminal: plain lines, each true of the step it names."""

from __future__ import annotations

import io
from collections.abc import Iterable
from dataclasses import replace

import pytest

from declarative_train.run.event import (
    EpochDone,
    EvaluationDone,
    Event,
    RunEnded,
    RunStarted,
    StepDone,
    TextsWritten,
)
from declarative_train.run.sinks import console
from declarative_train.run.sinks.console import ConsoleSink

STARTED = RunStarted("made", "runs/made/1", "single", "cpu", 1, 20, 5, 0, 100, "made: single", "", {}, 0.0)


def told(events: Iterable[Event]) -> str:
    stream = io.StringIO()
    sink = ConsoleSink(stream)
    for event in events:
        sink.write(event)
    sink.close()
    return stream.getvalue()


def step(number: int, loss: float) -> StepDone:
    return StepDone(number, 1, loss, {}, {}, {"lr": 0.1}, None, 1000.0, None, 0.0, 0, None, 0.0)


def epoch(number: int, **values: float) -> EpochDone:
    named = {f"training/{name}": value for name, value in values.items()}
    return EpochDone(number, 5 * number, named, 1.0, 0.0)


def evaluation(at_step: int, loss: float, num_samples: int = 40) -> EvaluationDone:
    return EvaluationDone(at_step, 1, "validation", {"validation/loss": loss}, num_samples, 0.1, 0.0)


def test_a_small_loss_has_digits() -> None:
    assert "step 3/20  loss 1.230e-06  1,000 samples/s" in told([STARTED, step(3, 1.23e-6)])
    assert "loss 0.0004321" in told([STARTED, step(3, 4.321e-4)])


def test_what_was_predicted_stands_beside_what_was_measured_in_the_end() -> None:
    predicted = {"step_ms": 12.5, "memory_gib": 1.5, "mfu": 0.5}
    steps = [
        replace(step(number, 1.0), step_s=step_s, memory_bytes=number * 2**30, mfu=mfu)
        for number, step_s, mfu in ((1, 0.5, 0.01), (2, 0.02, 0.25), (3, 0.01, 0.5))
    ]
    ended = RunEnded(3, "finished", {}, 2.0, 0.0)
    lines = told([replace(STARTED, predicted=predicted), *steps, ended]).splitlines()
    assert "predicted   12.5 ms a step, 1.50 GiB, MFU 50.0%" in lines
    assert "measured    20 ms a step, 3.00 GiB, MFU 25.0%" in lines
    assert "predicted" not in told([STARTED, *steps, ended])


def test_one_step_is_one_step() -> None:
    assert "stopped after 1 step, " in told([STARTED, RunEnded(1, "stopped", {}, 2.0)])
    resumed = replace(STARTED, first_step=4)
    assert "stopped after 5 steps (1 in this session), " in told([resumed, RunEnded(5, "stopped", {}, 2.0)])
    assert "(1 sample)" in told([STARTED, evaluation(3, 0.5, num_samples=1)])


def test_an_evaluation_that_comes_later_gets_its_column() -> None:
    text = told([STARTED, epoch(1, loss=2.0), evaluation(10, 1.5), epoch(2, loss=1.0), epoch(3, loss=0.5)])
    header, first, again, second, third = text.splitlines()[1:]
    assert header.split() == ["epoch", "step", "training/loss", "seconds"]
    assert again.split() == ["epoch", "step", "training/loss", "validation/loss", "seconds"]
    assert first.split() == ["1", "5", "2.0000", "1.0"]
    assert second.split() == ["2", "10", "1.0000", "1.5000", "1.0"]
    assert third.split() == ["3", "15", "0.5000", "-", "1.0"]


def test_step_lines_come_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 1000, 4))
    monkeypatch.setattr(console.time, "monotonic", lambda: float(next(clock)))
    text = told([STARTED, *(step(number, 1.0) for number in range(1, 21))])
    assert 1 < text.count("loss") < 20


def test_in_a_terminal_the_bar_stands_below_the_first_lines() -> None:
    """They were held back, and came on the line of the bar."""

    class Screen(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Screen()
    sink = ConsoleSink(stream)
    sink.write(STARTED)
    begun = stream.getvalue()
    sink.close()
    assert begun.startswith("made: single\n")
    assert "0/20" in begun


def test_the_epochs_fit_a_terminal_of_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    class Screen(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("COLUMNS", "80")
    stream = Screen()
    sink = ConsoleSink(stream)
    sink.write(STARTED)
    values = {f"{where}/{what}": 0.5 for where in ("training", "validation") for what in ("loss", "accuracy")}
    sink.write(EpochDone(1, 5, values, 1.0, 0.0))
    sink.close()
    names = ("epoch", "step", *values, "seconds")
    lines, widths = console.header(names, 80)
    assert [line.split() for line in lines] == [
        ["training/", "training/", "validation/", "validation/"],
        ["epoch", "step", "loss", "accuracy", "loss", "accuracy", "seconds"],
    ]
    assert all(line in stream.getvalue() for line in lines)
    assert sum(widths.values()) <= 80
    assert len(console.header(names, 200)[0]) == len(console.header(names, None)[0]) == 1


def test_texts_take_lines_of_80_columns_and_no_terminal_obeys_them(monkeypatch: pytest.MonkeyPatch) -> None:
    class Screen(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("COLUMNS", "80")
    written = ["the cat sat on the mat and\nthe dog sat " * 4, 'said "no"\t\x1b[2J\x9b2J\r', "\ufffd\u4f60", ""]
    event = TextsWritten(120, ["Tell me all about the cat and the dog, please, at length. " * 2] * 4, written, 0.1, 0.0)
    for stream in (Screen(), io.StringIO()):
        sink = ConsoleSink(stream)
        sink.write(STARTED)
        sink._bar = None
        sink.write(event)
        sink.close()
        raw = stream.getvalue().partition("step 120: ")[2]
        said = " ".join(raw.split())
        assert "\x1b" not in said
        assert "\x9b" not in said
        assert '"said \\"no\\"\\t\\u001b[2J\\u009b2J\\r"' in said
        assert '-> "\ufffd\u4f60" step' in said
        assert said.endswith('-> ""')
        if stream.isatty():
            assert max(len(line) for line in f"step 120: {raw}".splitlines()) <= 80
        else:
            assert len(raw.splitlines()) == 4
        assert '"the cat sat on the mat and\\nthe dog sat the cat sat' in said


def test_a_line_that_is_too_long_goes_on_at_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    class Screen(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("COLUMNS", "80")
    long = f"data    {'synthetic kind classification rows 2000 classes 4: '}training 1,600, validation 400 samples"
    path = f"watch   {'x' * 90}"
    for stream, room in ((Screen(), 80), (io.StringIO(), None)):
        sink = ConsoleSink(stream)
        sink.write(replace(STARTED, plan_brief=f"made: single\n{long}"))
        sink.close()
        folded = long.replace("1,600, validation", "1,600,\n        validation") if room else long
        assert f"made: single\n{folded}\n" in stream.getvalue()
        assert console.wrap(path, room).replace("\n", " ").split() == path.split()


def test_quiet_says_nothing() -> None:
    stream = io.StringIO()
    sink = ConsoleSink(stream, quiet=True)
    for event in (STARTED, step(1, 1.0), epoch(1, loss=1.0), RunEnded(20, "finished", {}, 1.0)):
        sink.write(event)
    sink.close()
    assert not stream.getvalue()
