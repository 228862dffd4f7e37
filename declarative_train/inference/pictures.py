"""An evaluation as TensorBoard shows it: its numbers, and a picture for each report.

They go to a folder of their own in the run's (`evaluations/<set>`), as another curve beside the run's: TensorBoard no
longer reads an event file of a run that is going on once a newer one is beside it.
"""

from __future__ import annotations

import io
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from declarative_train.inference.evaluate import Evaluation
from declarative_train.inference.reports import Report
from declarative_train.logs.sinks.tensorboard import new_event_file
from declarative_train.logs.sinks.tfrecord import record

if TYPE_CHECKING:
    from PIL.Image import Image

FOLDER = "evaluations"
MOST_DRAWN = 40  # classes of a table that are drawn: more would be dots
_SIDE, _MARGIN, _WIDE = 420, 110, 640
_INK, _PAPER, _LINE, _DOT = (20, 20, 20), (255, 255, 255), (150, 150, 150), (31, 119, 180)


def write_pictures(found: Evaluation, run_dir: Path) -> Path:
    """The folder that was written to. Raises OSError."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary

    folder = run_dir / FOLDER / found.set
    folder.mkdir(parents=True, exist_ok=True)
    values = [Summary.Value(tag=tag, simple_value=value) for tag, value in scalars(found).items()]
    for report in found.reports:
        drawn = picture(report)
        if drawn is not None:
            name, image = drawn
            content = io.BytesIO()
            image.save(content, "png")
            shown = Summary.Image(
                height=image.height, width=image.width, colorspace=3, encoded_image_string=content.getvalue()
            )
            values.append(Summary.Value(tag=f"{report.name}/{name}", image=shown))
    now = time.time()
    with new_event_file(folder) as stream:
        for event in (
            Event(wall_time=now, file_version="brain.Event:2"),
            Event(wall_time=now, step=found.step, summary=Summary(value=values)),
        ):
            stream.write(record(event.SerializeToString()))
    return folder


def scalars(found: Evaluation) -> dict[str, float]:
    """By tag: the run's own metrics, then those of the reports."""
    values = dict(found.values)
    for report in found.reports:
        values |= {f"{report.name}/{name}": value for name, value in report.metrics.items()}
        values |= {f"{report.name}/f1/{each.name}": each.f1 for each in report.classes[:MOST_DRAWN]}
    return values


def picture(report: Report) -> tuple[str, Image] | None:
    if report.confusion and len(report.confusion) <= MOST_DRAWN:
        return "confusion_matrix", confusion_matrix(report)
    return ("predicted_and_target", scatter(report)) if report.points else None


def confusion_matrix(report: Report) -> Image:
    """Rows are what is, columns what was said; the darker, the larger the share of the row."""
    table = np.asarray(report.confusion, np.int64)
    names = [each.name for each in report.classes]
    share = table / np.maximum(table.sum(1, keepdims=True), 1)
    cell = max(14, min(64, _SIDE // len(table)))
    image, draw, font = _canvas(_MARGIN + cell * len(table) + 20, _MARGIN + cell * len(table) + 20)
    draw.text((8, 8), f"{report.name}: rows are what is, columns what was said", fill=_INK, font=font)
    for row in range(len(table)):
        top = _MARGIN + row * cell
        draw.text((_MARGIN - 6, top + cell // 2), _short(names[row]), fill=_INK, font=font, anchor="rm")
        draw.text(
            (_MARGIN + row * cell + cell // 2, _MARGIN - 6), _short(names[row], 6), fill=_INK, font=font, anchor="ms"
        )
        for column in range(len(table)):
            left = _MARGIN + column * cell
            dark = share[row, column]
            colour = tuple(int(255 - dark * (255 - full)) for full in (8, 48, 107))
            draw.rectangle((left, top, left + cell, top + cell), fill=colour, outline=(225, 225, 225))
            count = str(table[row, column])
            if table[row, column] and draw.textlength(count, font=font) <= cell - 2:
                ink = _PAPER if dark > 0.5 else _INK
                draw.text((left + cell // 2, top + cell // 2), count, fill=ink, font=font, anchor="mm")
    return image


def scatter(report: Report) -> Image:
    """Each point a row: what it is to the right, what was said upwards, with the line on which both are equal."""
    points = np.asarray(report.points, np.float64)
    low, high = float(points.min()), float(points.max())
    span = (high - low) or 1.0
    side = _WIDE - _MARGIN - 30
    image, draw, font = _canvas(_WIDE, side + 60)

    def place(target: float, predicted: float) -> tuple[float, float]:
        return _MARGIN + (target - low) / span * side, 30 + side - (predicted - low) / span * side

    draw.rectangle((*place(low, high), *place(high, low)), outline=_LINE)
    draw.line((*place(low, low), *place(high, high)), fill=_LINE)
    for target, predicted in points.tolist():
        x, y = place(target, predicted)
        draw.ellipse((x - 2, y - 2, x + 2, y + 2), fill=_DOT)
    draw.text((8, 8), f"{report.name}: target to the right, predicted upwards", fill=_INK, font=font)
    for value in (low, low + span / 2, high):
        x, y = place(value, value)
        draw.text((x, 30 + side + 16), f"{value:,.6g}", fill=_INK, font=font, anchor="mm")
        draw.text((_MARGIN - 8, y), f"{value:,.6g}", fill=_INK, font=font, anchor="rm")
    return image


def _canvas(width: int, height: int) -> tuple[Image, Any, Any]:
    from PIL import Image, ImageDraw, ImageFont

    image = Image.new("RGB", (max(width, 360), height), _PAPER)
    return image, ImageDraw.Draw(image), ImageFont.load_default()


def _short(name: str, most: int = 14) -> str:
    return name if len(name) <= most else f"{name[: most - 1]}~"
