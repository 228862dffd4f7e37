"""Result of an evaluation as text: metrics, a table of classes or residuals, confusions, the worst samples."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from declarative_train.app.views.table import table
from declarative_train.core.amounts import format_count
from declarative_train.core.amounts import format_number as four_decimals
from declarative_train.inference.report import Report, WorstSample

if TYPE_CHECKING:
    from declarative_train.inference.evaluate import EvaluationResult

MOST_CLASSES = 30  # number of listed classes; if there are more, those with the most samples
_MOST_MISTAKES = 10
_MOST_IN_TABLE = 12


def evaluation_text(found: EvaluationResult, width: int | None) -> str:
    width = width or 100
    parts = [f"{found.trained}\n{found.set}: {format_count(found.num_samples, 'sample')}"]
    parts.append(_metrics(found))
    if found.comparison is not None:
        parts.append(found.comparison.line(found.own_value))
    for report in found.reports:
        parts += list(_report(report, width))
    parts += [f"note: {notice}" for notice in found.notices]
    if found.comparison is not None and found.comparison.note:
        parts.append(f"note: {found.comparison.note}")
    return "\n\n".join(parts)


def format_number(value: float) -> str:
    """Return a value as text. Values from 10,000 get fewer decimals, because they are usually prices and similar, not
    losses."""
    return f"{value:,.1f}" if 1e4 <= abs(value) < 1e12 else four_decimals(value)


def _metrics(found: EvaluationResult) -> str:
    rows = []
    for name, value in found.values.items():
        logged = found.logged.get(name)
        rows.append((name, format_number(value), "" if logged is None else format_number(logged)))
    if not any(row[2] for row in rows):
        return table(("metric", "value"), [row[:2] for row in rows], right=(1,))
    return table(("metric", "value", "logged by the run"), rows, right=(1, 2))


def _report(report: Report, width: int) -> Iterator[str]:
    listed = "  ".join(f"{name} {format_number(value)}" for name, value in report.metrics.items())
    yield f"{report.name} ({_KINDS[report.kind]})\n  {_wrap(listed, width)}"
    if report.classes:
        yield _classes(report)
    if report.confusion:
        yield _confusion(report, width)
    if report.residuals:
        header = tuple(report.residuals)
        row = tuple(format_number(value) for value in report.residuals.values())
        yield "residuals (predicted - target), by the share of samples below\n" + table(
            header, [row], right=range(len(header))
        )
    if report.worst:
        yield _worst(report, width)


_KINDS = {
    "class": "one of several classes",
    "number": "a number, in the unit of its column",
    "yes_no": "yes or no",
}


def _wrap(text: str, width: int) -> str:
    lines, line = [], ""
    for part in text.split("  "):
        if line and len(line) + len(part) + 4 > width:
            lines.append(line)
            line = part
        else:
            line = f"{line}  {part}" if line else part
    return "\n  ".join([*lines, line])


def _classes(report: Report) -> str:
    chosen = sorted(report.classes, key=lambda each: -each.support)[:MOST_CLASSES]
    shown = [each for each in report.classes if each in chosen] if len(report.classes) <= MOST_CLASSES else chosen
    rows: list[tuple[str, ...]] = [
        (
            _cut(each.name, 24),
            format_number(each.precision),
            format_number(each.recall),
            format_number(each.f1),
            f"{each.support:,}",
        )
        for each in shown
    ]
    header: tuple[str, ...] = ("class", "precision", "recall", "f1", "support")
    if any(each.average_precision is not None for each in shown):
        header = (*header, "average precision")
        averages = ["-" if each.average_precision is None else format_number(each.average_precision) for each in shown]
        rows = [(*row, average) for row, average in zip(rows, averages, strict=True)]
    text = table(header, rows, right=(1, 2, 3, 4, 5))
    more = len(report.classes) - len(shown)
    return f"{text}\n{format_count(more, 'more class')} with less support" if more else text


def _confusion(report: Report, width: int) -> str:
    """Return the whole confusion matrix as text if it is small, otherwise the most frequent confusions."""
    names = [each.name for each in report.classes]
    if len(names) <= _MOST_IN_TABLE:
        rows = [(_cut(name, 14), *map(str, counts)) for name, counts in zip(names, report.confusion, strict=True)]
        text = table(("is \\ said", *(_cut(name, 8) for name in names)), rows, right=range(1, len(names) + 1))
        if max(map(len, text.splitlines())) <= width:
            return text
    mistakes = [
        (count, names[row], names[column])
        for row, counts in enumerate(report.confusion)
        for column, count in enumerate(counts)
        if row != column and count
    ]
    if not mistakes:
        return "no item was assigned to a wrong class"
    mistakes.sort(key=lambda each: -each[0])
    rows = [(_cut(one, 24), _cut(other, 24), f"{count:,}") for count, one, other in mistakes[:_MOST_MISTAKES]]
    return "the most frequent mistakes\n" + table(("is", "said", "items"), rows, right=(2,))


def _worst(report: Report, width: int) -> str:
    rows = [_worst_row(each) for each in report.worst]
    header = ("where", "loss" if report.kind != "number" else "error", "is", "said", "p", "the row")
    used = [at for at in range(len(header)) if any(row[at] for row in rows)]
    fixed = sum(max(len(header[at]), *(len(row[at]) for row in rows)) + 2 for at in used if at != len(header) - 1)
    room = max(width - fixed, 12)
    cut = [[_cut(row[at], room) if at == len(header) - 1 else row[at] for at in used] for row in rows]
    return "the worst samples\n" + table(
        tuple(header[at] for at in used), cut, right=[at for at in used if at in (1, 4)]
    )


def _worst_row(each: WorstSample) -> tuple[str, ...]:
    values = ", ".join(f"{name} {_plain(value)}" for name, value in each.row.items())
    where = each.place.partition(" of ")[0]
    probability = "" if each.probability is None else format_number(each.probability)
    return where, format_number(each.loss), _plain(each.target), _plain(each.predicted), probability, values


def _plain(value: object) -> str:
    if value is None:
        return ""
    return format_number(value) if isinstance(value, float) else str(value)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: max(most - 3, 1)]}..."
