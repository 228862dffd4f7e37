"""Sink for TensorBoard.

| tag | values |
|---|---|
| training/loss, training/loss/<term>, training/<metric> | means over the steps since the last logging step |
| <set>/loss, <set>/loss/<term>, <set>/<metric> | results of evaluations |
| <set>/best_<metric> | best value of the metric of `checkpoint.best`, when a run finishes |
| training_epoch/loss, training_epoch/<metric> | training means over an epoch, at its last step |
| training/lr, training/lr/<group> | learning rates, of each parameter group if there are several |
| training/grad_norm | norm of the gradient in the logging step |
| utilisation/samples_per_s, utilisation/tokens_per_s, utilisation/step_ms, utilisation/mfu | measured speed |
| utilisation/memory_gib, utilisation/data_wait_ms | peak memory; waiting time for data, per step |
| utilisation/predicted_peak_gib, measured_peak_gib, .../rank_<n> | peak memory of an early step |
| utilisation/predicted_step_ms, predicted_memory_gib, predicted_mfu | predictions of the plan, as curves in charts |
| <set>/confusion_matrix, <set>/samples | predicted classes: images, or a table if the samples are not images |
| plan, remarks, samples/<n> | texts; `samples/<n>` has the model's continuations of prompt n |
| speed | text: the predicted and the measured time of a step, when a run ends |

The writer runs in a thread, so that no step waits. A resumed run writes a new file, and TensorBoard then drops the
values of earlier files after the step from which the run resumes."""

from __future__ import annotations

import os
import re
import socket
import struct
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, ClassVar, Self

from declarative_train.core.machine import install
from declarative_train.run.event import (
    ClassesPredicted,
    EpochDone,
    EvaluationDone,
    Event,
    GraphNode,
    MemoryMeasured,
    Notice,
    RunEnded,
    RunStarted,
    StepDone,
    TextsWritten,
)
from declarative_train.run.sinks.background import BackgroundSink
from declarative_train.run.sinks.console import format_speed, summarize
from declarative_train.run.sinks.drawing import confusion_matrix, png, samples_sheet, samples_table

if TYPE_CHECKING:
    from tensorboard.compat.proto.summary_pb2 import Summary

NOTICES = "remarks"  # sorts after `plan`
DRAW_S = 5.0  # between two images of a set; the last one is always drawn
COLUMNS = {name: f" {name}" for name in ("lr", "mode", "optimizer")}  # a blank sorts these columns first
MOST_RANKS = 16  # with more ranks there are no curves per rank
_FINISHED = ("finished", "early_stop")  # of RunEnded.status
MEASURED = {"step_ms": "utilisation/step_ms", "memory_gib": "utilisation/memory_gib", "mfu": "utilisation/mfu"}


class TensorBoardSink(BackgroundSink):
    """Sink that writes one TensorBoard event file in `directory`."""

    every_s: ClassVar[float] = 0.5  # longest delay until TensorBoard sees an event
    wait_s: ClassVar[float] = 10.0

    @classmethod
    def of_run(cls, run_dir: Path, quiet: bool) -> Self:
        return cls(run_dir)

    def __init__(self, directory: str | Path) -> None:
        self._stream = new_event_file(Path(directory))
        self._writer: EventWriter | None = None
        super().__init__()

    def _send(self, events: Sequence[Event]) -> None:
        self._writer = self._writer or EventWriter(self._stream)
        for event in events:
            self._writer.write(event)

    def _poll(self, *, is_last: bool = False) -> None:
        assert self._writer is not None
        self._writer.draw(all_of_them=is_last)
        self._stream.flush()

    def _finish(self) -> None:
        self._poll(is_last=True)

    def close(self) -> None:
        try:
            super().close()
        finally:
            self._stream.close()


def new_event_file(directory: Path) -> BinaryIO:
    """Open a new event file whose name sorts after all others in `directory`, because TensorBoard reads files in the
    order of their names. A time stamp alone is not enough: a run may be resumed within a millisecond, or on a host
    whose clock is behind."""
    prefix = "events.out.tfevents."
    taken = [path.name.removeprefix(prefix).split(".")[0] for path in directory.glob(f"{prefix}*")]
    stamp = max([time.time_ns() // 10**6, *(int(one) + 1 for one in taken if one.isdecimal())])
    return (directory / f"{prefix}{stamp:013d}.{socket.gethostname()}.{os.getpid()}").open("xb")


class EventWriter:
    """Writer of events to a stream. Each event becomes one or more TensorBoard records."""

    def __init__(self, stream: BinaryIO) -> None:
        # Deferred: the import of the protocol buffers happens in the thread that writes.
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._records = RecordWriter(stream)
        self._Event = event_pb2.Event
        self._Summary = summary_pb2.Summary
        self._SessionLog = event_pb2.SessionLog
        self._predicted: dict[str, float] = {}
        self._started: RunStarted | None = None
        self._steps = deque[StepDone](maxlen=1000)  # the latest
        self._waiting: dict[tuple[str, str], ClassesPredicted] = {}
        self._drawn_s: dict[tuple[str, str], float] = {}
        self._can_draw = True
        self._put(self._Event(wall_time=time.time(), file_version="brain.Event:2"))

    def write(self, event: Event) -> None:
        match event:
            case RunStarted():
                self._start(event)
            case StepDone():
                self._steps.append(event)
                self._scalars(step_scalars(event) | self._predicted, event.step, event.time_unix_s)
            case EvaluationDone():
                self._scalars(event.values, event.step, event.time_unix_s)
            case ClassesPredicted():
                self._waiting[event.set, event.name] = event
            case TextsWritten():
                for number, (prompt, text) in enumerate(zip(event.prompts, event.texts, strict=True), 1):
                    self._text(f"samples/{number}", _to_markdown(prompt, text), event.step, event.time_unix_s)
            case EpochDone():
                self._scalars(epoch_scalars(event), event.step, event.time_unix_s)
            case Notice():
                self._text(NOTICES, event.message, 0, event.time_unix_s)
            case MemoryMeasured():
                self._scalars(memory_scalars(event), event.step, event.time_unix_s)
            case RunEnded():
                self._end(event)

    def _start(self, event: RunStarted) -> None:
        self._started = event
        if event.first_step:
            restart = self._SessionLog(status=self._SessionLog.START)
            self._put(self._Event(wall_time=event.time_unix_s, step=event.first_step + 1, session_log=restart))
        plan = "\n".join(f"    {line}" for line in event.plan_text.splitlines())  # markdown: keep the columns
        self._text("plan", plan, event.first_step, event.time_unix_s)
        if event.graph:
            self._put(self._Event(wall_time=event.time_unix_s, graph_def=graph_definition(event.graph)))
        self._predicted = {f"utilisation/predicted_{name}": value for name, value in event.predicted.items()}
        if event.predicted:
            self.put_summary(comparison(event.predicted), event.first_step, event.time_unix_s)
        self.put_summary(session_start(event), 0, event.time_unix_s)

    def _end(self, event: RunEnded) -> None:
        for name, value in best_values(event).items():
            self._scalars({tag_of(name): value}, event.value_steps.get(name, event.step), event.time_unix_s)
        if self._started is not None and self._started.predicted and self._steps:
            speeds = {"predicted": self._started.predicted, "measured": summarize(self._steps)}
            text = "\n\n".join(f"{word}: {format_speed(values)}" for word, values in speeds.items())
            self._text("speed", text, event.step, event.time_unix_s)
        self.put_summary(session_end(event), 0, event.time_unix_s)

    def draw(self, *, all_of_them: bool) -> None:
        """Write images of the latest predictions of each set. Because evaluations may be as frequent as steps, a set is
        drawn at most once in `DRAW_S` seconds. `all_of_them`: draw all sets without this limit."""
        now = time.monotonic()
        for key, event in list(self._waiting.items()) if self._can_draw else ():
            if all_of_them or now - self._drawn_s.get(key, -DRAW_S) >= DRAW_S:
                del self._waiting[key]
                self._drawn_s[key] = now
                self._draw(event)

    def _draw(self, event: ClassesPredicted) -> None:
        of = f"/{event.name}" if event.name else ""
        title = f"{event.set}{of}, step {event.step}"
        try:
            table = png(confusion_matrix(title, event.classes, event.confusion))
            sheet = samples_sheet(event.answers)
        except ImportError:
            self._text(NOTICES, f"drawings need Pillow: {install('images')}", 0, event.time_unix_s)
            self._can_draw = False
            return
        self._image(f"{event.set}/confusion_matrix{of}", table, event)
        if sheet is not None:
            self._image(f"{event.set}/samples{of}", png(sheet), event)
        elif event.answers:
            self._text(f"{event.set}/samples{of}", samples_table(event.answers), event.step, event.time_unix_s)

    def _image(self, tag: str, content: bytes, event: ClassesPredicted) -> None:
        width, height = struct.unpack(">II", content[16:24])  # of a PNG
        shown = self._Summary.Image(height=height, width=width, colorspace=3, encoded_image_string=content)
        entry = self._Summary.Value(tag=tag, image=shown)
        self.put_summary(self._Summary(value=[entry]), event.step, event.time_unix_s)

    def _scalars(self, values: Mapping[str, float], step: int, time_unix_s: float) -> None:
        entries = [self._Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
        if entries:
            self.put_summary(self._Summary(value=entries), step, time_unix_s)

    def _text(self, tag: str, text: str, step: int, time_unix_s: float) -> None:
        self.put_summary(bytes_summary(f"{tag}/text_summary", text.encode(), plugin="text"), step, time_unix_s)

    def put_summary(self, summary: Summary, step: int, time_unix_s: float) -> None:
        self._put(self._Event(wall_time=time_unix_s, step=step, summary=summary))

    def _put(self, entry: object) -> None:
        self._records.write(entry.SerializeToString())  # type: ignore[attr-defined]


def _to_markdown(prompt: str, text: str) -> str:
    """Return prompt and text as Markdown code blocks, in which their characters are not interpreted as markup."""
    return "\n\n".join(
        f"{title}\n\n" + "\n".join(f"    {line}" for line in (each or " ").splitlines())
        for title, each in (("prompt", prompt), ("written", text))
    )


def memory_scalars(event: MemoryMeasured) -> dict[str, float]:
    """Return a dict from tag to value with the largest peak memory of all ranks. If there are few ranks, it also has
    the peak of each."""
    kinds = {"predicted": event.predicted, "measured": event.measured}
    found = {f"utilisation/{kind}_peak_gib": max(ranks) / 2**30 for kind, ranks in kinds.items()}
    if 1 < len(event.measured) <= MOST_RANKS:
        for kind, ranks in kinds.items():
            found |= {f"utilisation/{kind}_peak_gib/rank_{rank}": size / 2**30 for rank, size in enumerate(ranks)}
    return found


def graph_definition(nodes: Iterable[GraphNode]) -> bytes:
    """Return the model as a serialised GraphDef, for TensorBoard's Graphs tab."""
    from tensorboard.compat.proto.attr_value_pb2 import AttrValue
    from tensorboard.compat.proto.graph_pb2 import GraphDef
    from tensorboard.compat.proto.node_def_pb2 import NodeDef
    from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto

    found = GraphDef()
    for node in nodes:
        shape = TensorShapeProto(dim=[TensorShapeProto.Dim(size=size) for size in node.shape])
        entry = NodeDef(name=node.path, op=node.operation, input=node.inputs)
        entry.attr["_output_shapes"].CopyFrom(AttrValue(list=AttrValue.ListValue(shape=[shape])))
        found.node.append(entry)
    return bytes(found.SerializeToString())


def bytes_summary(tag: str, content: bytes, *, plugin: str) -> Summary:
    """Return a Summary for the TensorBoard plugin named `plugin`, with `content` as a string tensor under `tag`."""
    from tensorboard.compat.proto import tensor_pb2, tensor_shape_pb2, types_pb2
    from tensorboard.compat.proto.summary_pb2 import Summary

    metadata = Summary.Value().metadata
    metadata.plugin_data.plugin_name = plugin
    shape = tensor_shape_pb2.TensorShapeProto(dim=[tensor_shape_pb2.TensorShapeProto.Dim(size=1)])
    tensor = tensor_pb2.TensorProto(dtype=types_pb2.DT_STRING, string_val=[content], tensor_shape=shape)
    return Summary(value=[Summary.Value(tag=tag, metadata=metadata, tensor=tensor)])


def comparison(names: Iterable[str]) -> Summary:
    """Return the layout of TensorBoard's tab "custom scalars". The tab has a chart for each quantity in `names`, such
    as the step time, with two curves: the predicted and the measured value."""
    from tensorboard.plugins.custom_scalar import layout_pb2

    charts = [
        layout_pb2.Chart(
            title=name,
            multiline=layout_pb2.MultilineChartContent(tag=[f"^{MEASURED[name]}$", f"^utilisation/predicted_{name}$"]),
        )
        for name in names
    ]
    layout = layout_pb2.Layout(category=[layout_pb2.Category(title="predicted and measured", chart=charts)])
    return bytes_summary("custom_scalars__config__", layout.SerializeToString(), plugin="custom_scalars")


def epoch_scalars(event: EpochDone) -> dict[str, float]:
    """Return a dict from tag to value with the training means of an epoch. Evaluations are left out, because they have
    curves of their own."""
    own = "training/"
    return {
        f"training_epoch/{name.removeprefix(own)}": value
        for name, value in event.values.items()
        if name.startswith(own)
    }


def scalars(event: Event) -> tuple[int, float, dict[str, float]]:
    """Return step, time and a dict from tag to value of an event. The dict is {} for events without numbers."""
    match event:
        case StepDone():
            return event.step, event.time_unix_s, step_scalars(event)
        case EvaluationDone():
            return event.step, event.time_unix_s, dict(event.values)
        case EpochDone():
            return event.step, event.time_unix_s, epoch_scalars(event)
        case MemoryMeasured():
            return event.step, event.time_unix_s, memory_scalars(event)
        case RunEnded():
            best = {tag_of(name): value for name, value in best_values(event).items()}
            return event.step, event.time_unix_s, best
    return 0, 0.0, {}


def step_scalars(event: StepDone) -> dict[str, float]:
    """Return a dict from tag to value for a logging step."""
    values = {"training/loss": event.loss}
    values |= {f"training/loss/{name}": value for name, value in event.terms.items()}
    values |= {f"training/{name}": value for name, value in event.metrics.items()}
    values |= {"training/lr" if name == "lr" else f"training/lr/{name}": value for name, value in event.lr.items()}
    if event.grad_norm is not None:
        values["training/grad_norm"] = event.grad_norm
    values["utilisation/samples_per_s"] = event.samples_per_s
    if event.step_s is not None:
        values["utilisation/step_ms"] = event.step_s * 1e3
    if event.tokens_per_s is not None:
        values["utilisation/tokens_per_s"] = event.tokens_per_s
    if event.mfu is not None:
        values["utilisation/mfu"] = event.mfu
    values["utilisation/memory_gib"] = event.memory_bytes / 2**30
    values["utilisation/data_wait_ms"] = event.data_wait_s * 1e3
    return values


def session_start(event: RunStarted) -> Summary:
    """Return the hyper-parameters of a run, for TensorBoard's hparams plugin."""
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData, SessionStartInfo

    trial = re.sub(r"^(\d+-\d+)-(.+)$", r"\2 \1", Path(event.run_dir).name)  # name before time: TensorBoard cuts it off
    info = SessionStartInfo(group_name=trial, start_time_secs=event.time_unix_s)
    for name, value in event.hyperparameters.items():
        kind = "bool" if isinstance(value, bool) else "number" if isinstance(value, int | float) else "string"
        setattr(info.hparams[COLUMNS.get(name, name)], f"{kind}_value", value)
    data = HParamsPluginData(session_start_info=info, version=0)
    return Summary(value=[_hparams_value("_hparams_/session_start_info", data.SerializeToString())])


def session_end(event: RunEnded) -> Summary:
    """Return the status of a run, for TensorBoard's hparams plugin."""
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.plugins.hparams import api_pb2
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData, SessionEndInfo

    status = api_pb2.STATUS_SUCCESS if event.status in _FINISHED else api_pb2.STATUS_UNKNOWN
    end = SessionEndInfo(status=status, end_time_secs=event.time_unix_s)
    ended = HParamsPluginData(session_end_info=end, version=0)
    return Summary(value=[_hparams_value("_hparams_/session_end_info", ended.SerializeToString())])


def hparams_columns(tried: Mapping[str, Sequence[object]], metrics: Iterable[str]) -> Summary:
    """Return the definition of the columns in TensorBoard's table of a sweep. There is a column for each setting in
    `tried` and for each of `metrics`. `tried`: a dict from the setting to the values that were tried. `metrics`: names
    of results."""
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.plugins.hparams import api_pb2
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    infos = []
    for name, values in tried.items():
        info = api_pb2.HParamInfo(name=COLUMNS.get(name, name), differs=len(set(map(str, values))) > 1)
        if all(isinstance(value, bool) for value in values):
            info.type = api_pb2.DATA_TYPE_BOOL
        elif all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
            info.type = api_pb2.DATA_TYPE_FLOAT64
            info.domain_interval.min_value = min(map(float, map(str, values)))
            info.domain_interval.max_value = max(map(float, map(str, values)))
        else:
            info.type = api_pb2.DATA_TYPE_STRING
            info.domain_discrete.extend(sorted(set(map(str, values))))
        infos.append(info)
    metric_infos = [api_pb2.MetricInfo(name=api_pb2.MetricName(tag=tag_of(name))) for name in metrics]
    experiment = api_pb2.Experiment(hparam_infos=infos, metric_infos=metric_infos)
    data = HParamsPluginData(experiment=experiment, version=0)
    return Summary(value=[_hparams_value("_hparams_/experiment", data.SerializeToString())])


def best_values(event: RunEnded) -> dict[str, float]:
    """Return the best values of a finished run. Return {} for a stopped run, because it may be resumed and improve."""
    if event.status not in _FINISHED:
        return {}
    return {name: value for name, value in event.values.items() if name.startswith("best/")}


def tag_of(name: str) -> str:
    """Return the tag of a result: `validation/best_accuracy` for `best/validation/accuracy`, so that TensorBoard shows
    it with its set. Other names are returned unchanged."""
    if not name.startswith("best/"):
        return name
    _, group, rest = name.split("/", 2)
    return f"{group}/best_{rest}"


def _hparams_value(tag: str, content: bytes) -> Summary.Value:
    from tensorboard.compat.proto.summary_pb2 import Summary

    value = Summary.Value(tag=tag)
    value.metadata.plugin_data.plugin_name = "hparams"
    value.metadata.plugin_data.content = content
    return value
