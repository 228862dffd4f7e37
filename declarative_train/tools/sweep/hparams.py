"""Table of a sweep's hyper-parameters and results for TensorBoard."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from declarative_train.tools.sweep.sweep import Aim, Result


def write_hparams(folder: Path, results: Sequence[Result], aim: Aim) -> None:
    """Write an event file into the sweep's folder, in place of an older one. It defines the columns of TensorBoard's
    table of hyper-parameters, with the metric of `aim` as the first metric. The values are in the event files of the
    runs. Raises OSError."""
    from declarative_train.run.graph_and_hparams import tensorboard_name
    from declarative_train.run.sinks.tensorboard import EventWriter, hparams_columns, new_event_file

    for old in folder.glob("events.out.tfevents.*"):
        old.unlink()
    tried: dict[str, list[object]] = {}
    for result in results:
        for key, value in result.point.values.items():
            tried.setdefault(tensorboard_name(key), []).append(value)
    seen = dict.fromkeys(name for result in results if result.record for name in result.record.values)
    metrics = [aim.metric, *(name for name in seen if name != aim.metric)]
    with new_event_file(folder) as stream:
        EventWriter(stream).put_summary(hparams_columns(tried, metrics), 0, time.time())
