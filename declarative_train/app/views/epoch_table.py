"""Table of a run's epochs, with a remark on each, and a chart of the loss made of characters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from textwrap import wrap

from declarative_train.app.views.table import table
from declarative_train.core.amounts import format_number
from declarative_train.run.event import EpochDone

LOSS, VALIDATION = "training/loss", "validation/loss"

CHART_HEIGHT = 10
CHART_WIDTH = 64
FLAT = 0.005  # largest relative change that counts as no change
BRIEF = "remark: the change of the training loss; the epoch of the lowest validation loss"


def epochs_table(epochs: Sequence[EpochDone], width: int | None = None) -> str:
    """Return a table with one row per epoch, each compared with the previous ones. Lines have at most `width`
    characters."""
    whole = _epochs_table(epochs, None, is_brief=False)
    if width is None or max(map(len, whole.splitlines())) <= width:
        return whole
    return "\n".join([_epochs_table(epochs, width, is_brief=True), "", *wrap(BRIEF, width)])


def _epochs_table(epochs: Sequence[EpochDone], width: int | None, *, is_brief: bool) -> str:
    columns = list(dict.fromkeys(name for epoch in epochs for name in epoch.values))
    rows = []
    for index, epoch in enumerate(epochs):
        cells = [format_number(epoch.values.get(name)) for name in columns]
        said = remark(epochs[: index + 1], is_brief=is_brief)
        rows.append((str(epoch.epoch), f"{epoch.step:,}", *cells, said))
    return table(("epoch", "step", *columns, "remark"), rows, right=tuple(range(len(columns) + 2)), width=width)


def remark(epochs: Sequence[EpochDone], *, is_brief: bool = False) -> str:
    """Return a remark on the last of `epochs`, which compares it with those before. `is_brief`: use the abbreviations
    that `BRIEF` explains."""
    *before, epoch = epochs
    if not before:
        return "the first"
    words = [change(epoch.values.get(LOSS), before[-1].values.get(LOSS), is_brief=is_brief)]
    value = epoch.values.get(VALIDATION)
    earlier = [
        (other.values[VALIDATION], other.epoch)
        for other in before
        if math.isfinite(other.values.get(VALIDATION, math.nan))
    ]
    if value is not None and earlier:
        best, best_epoch = min(earlier)
        if value < best:
            words.append("best so far" if is_brief else "best validation loss so far")
        else:
            words.append(f"best: {best_epoch}" if is_brief else f"validation loss no better than in epoch {best_epoch}")
    return ", ".join(word for word in words if word)


def change(loss: float | None, before: float | None, *, is_brief: bool = False) -> str:
    if loss is None or before is None or not before or not math.isfinite(before):
        return ""
    if not math.isfinite(loss):
        return f"loss is {loss}"
    relative = loss / before - 1
    if is_brief:
        return f"{relative:+.0%}"
    if abs(relative) < FLAT:
        return "loss as before"
    return f"loss {'down' if relative < 0 else 'up'} {abs(relative):.0%}"


def chart(steps: Sequence[int], losses: Sequence[float]) -> str:
    """Return a chart of the losses over the steps, made of characters. Each column is the mean of equally many
    consecutive losses."""
    finite = [(step, loss) for step, loss in zip(steps, losses, strict=True) if math.isfinite(loss)]
    if not finite:
        return "no loss was logged"
    steps, losses = zip(*finite, strict=True)
    width = min(CHART_WIDTH, len(losses))
    columns = [
        sum(part) / len(part)
        for index in range(width)
        if (part := losses[index * len(losses) // width : (index + 1) * len(losses) // width])
    ]
    low, high = min(columns), max(columns)
    span = (high - low) or 1.0
    levels = [round((value - low) / span * (CHART_HEIGHT - 1)) for value in columns]
    lines = []
    for level in reversed(range(CHART_HEIGHT)):
        label = (
            f"{format_number(low + span * level / (CHART_HEIGHT - 1)):>10}"
            if level in (0, CHART_HEIGHT - 1)
            else " " * 10
        )
        lines.append(f"{label} |{''.join('*' if found == level else ' ' for found in levels)}".rstrip())
    lines.append(f"{' ' * 10} +{'-' * len(columns)}")
    first, last = f"step {steps[0]}", f"{steps[-1]}"
    lines.append(f"{' ' * 12}{first}{last.rjust(max(len(last) + 4, len(columns) - len(first)))}")
    return "\n".join(lines)
