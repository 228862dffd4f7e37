"""A run's events as the epoch table with a remark on each, and its loss as a chart in text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from declarative_train.cli.views.table import table

CHART_HEIGHT = 10
CHART_WIDTH = 64
FLAT = 0.005  # a relative change below this is called none


def epochs_table(epochs: Sequence[Mapping[str, float]]) -> str:
    """One row per epoch; each mapping has `epoch`, `step` and the values by tag."""
    columns = list(dict.fromkeys(name for row in epochs for name in row if name not in ("epoch", "step")))
    rows = []
    for index, row in enumerate(epochs):
        cells = [f"{row[name]:.4f}" if name in row else "-" for name in columns]
        previous = epochs[index - 1] if index else None
        rows.append((f"{row['epoch']:.0f}", f"{row['step']:.0f}", *cells, remark(row, previous, epochs[:index])))
    return table(("epoch", "step", *columns, "remark"), rows, right=tuple(range(len(columns) + 2)))


def remark(
    row: Mapping[str, float], previous: Mapping[str, float] | None, before: Sequence[Mapping[str, float]]
) -> str:
    """What the numbers of this epoch say beside those before it."""
    if previous is None:
        return "the first"
    words = [change("loss", row, previous, "training/loss")]
    validation = "validation/loss"
    if validation in row and validation in previous:
        best = min(item[validation] for item in before if validation in item)
        if row[validation] < best:
            words.append("best validation so far")
        elif row.get("training/loss", 0) < previous.get("training/loss", 0):
            words.append("validation is not better: over-fitting begins")
    return ", ".join(word for word in words if word)


def change(name: str, row: Mapping[str, float], previous: Mapping[str, float], tag: str) -> str:
    if tag not in row or tag not in previous or previous[tag] == 0:
        return ""
    relative = row[tag] / previous[tag] - 1
    if abs(relative) < FLAT:
        return f"{name} as before"
    return f"{name} {'down' if relative < 0 else 'up'} {abs(relative):.0%}"


def chart(steps: Sequence[int], losses: Sequence[float]) -> str:
    """The loss over steps; each column is the mean of its share of the points."""
    if not losses:
        return "no loss was logged"
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
        label = f"{low + span * level / (CHART_HEIGHT - 1):10.4f}" if level in (0, CHART_HEIGHT - 1) else " " * 10
        lines.append(f"{label} |{''.join('*' if found == level else ' ' for found in levels)}".rstrip())
    lines.append(f"{' ' * 10} +{'-' * len(columns)}")
    first, last = f"step {steps[0]}", f"{steps[-1]}"
    lines.append(f"{' ' * 12}{first}{last.rjust(max(len(last) + 4, len(columns) - len(first)))}")
    return "\n".join(lines)
