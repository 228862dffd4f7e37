"""Results of an evaluation as TensorBoard events: its numbers, and an image for each report.

The event file is in the folder `evaluations/<set>` of the run's folder. If it were next to the run's own event file,
TensorBoard would stop reading the latter, to which a continued run still writes."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from declarative_train.inference.report import Report
from declarative_train.run.sinks.drawing import INK, LINE, MOST_DRAWN, canvas, confusion_matrix, png
from declarative_train.run.sinks.tensorboard import new_event_file

if TYPE_CHECKING:
    from PIL.Image import Image

    from declarative_train.inference.evaluate import EvaluationResult

FOLDER = "evaluations"
_MARGIN, _WIDE = 110, 640
_DOT = (31, 119, 180)


def write_pictures(found: EvaluationResult, run_dir: Path) -> Path:
    """Write the numbers and images of an evaluation to a TensorBoard event file, and return the folder of the file.
    Raises OSError."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.record_writer import RecordWriter

    folder = run_dir / FOLDER / found.set
    folder.mkdir(parents=True, exist_ok=True)
    values = [Summary.Value(tag=tag, simple_value=value) for tag, value in scalars(found).items()]
    for report in found.reports:
        drawn = picture(report)
        if drawn is not None:
            name, image = drawn
            shown = Summary.Image(height=image.height, width=image.width, colorspace=3, encoded_image_string=png(image))
            values.append(Summary.Value(tag=f"{report.name}/{name}", image=shown))
    now = time.time()
    with new_event_file(folder) as stream:
        records = RecordWriter(stream)
        for event in (
            Event(wall_time=now, file_version="brain.Event:2"),
            Event(wall_time=now, step=found.step, summary=Summary(value=values)),
        ):
            records.write(event.SerializeToString())
    return folder


def scalars(found: EvaluationResult) -> dict[str, float]:
    """Return a dict from tag to value: the recipe's metrics, the metrics of the reports, and the f1 of each class."""
    values = dict(found.values)
    for report in found.reports:
        values |= {f"{report.name}/{name}": value for name, value in report.metrics.items()}
        values |= {f"{report.name}/f1/{each.name}": each.f1 for each in report.classes[:MOST_DRAWN]}
    return values


def picture(report: Report) -> tuple[str, Image] | None:
    if report.confusion and len(report.confusion) <= MOST_DRAWN:
        names = [each.name for each in report.classes]
        return "confusion_matrix", confusion_matrix(report.name, names, report.confusion)
    return ("predicted_and_target", scatter(report)) if report.points else None


def scatter(report: Report) -> Image:
    """Return an image with a point for each row, the target on the x axis and the prediction on the y axis. A line
    shows where both are equal."""
    points = np.asarray(report.points, np.float64)
    low, high = float(points.min()), float(points.max())
    span = (high - low) or 1.0
    side = _WIDE - _MARGIN - 30
    image, draw, font = canvas(_WIDE, side + 60)

    def place(target: float, predicted: float) -> tuple[float, float]:
        return _MARGIN + (target - low) / span * side, 30 + side - (predicted - low) / span * side

    draw.rectangle((*place(low, high), *place(high, low)), outline=LINE)
    draw.line((*place(low, low), *place(high, high)), fill=LINE)
    for target, predicted in points.tolist():
        x, y = place(target, predicted)
        draw.ellipse((x - 2, y - 2, x + 2, y + 2), fill=_DOT)
    draw.text((8, 8), f"{report.name}: target to the right, predicted upwards", fill=INK, font=font)
    for value in (low, low + span / 2, high):
        x, y = place(value, value)
        draw.text((x, 30 + side + 16), f"{value:,.6g}", fill=INK, font=font, anchor="mm")
        draw.text((_MARGIN - 8, y), f"{value:,.6g}", fill=INK, font=font, anchor="rm")
    return image
