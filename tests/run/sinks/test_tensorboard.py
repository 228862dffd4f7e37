"""What a run writes is what TensorBoard's own reader finds."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

from declarative_train.run.event import (
    EpochDone,
    EvaluationDone,
    GraphNode,
    Notice,
    Progress,
    RunEnded,
    RunStarted,
    StepDone,
)
from declarative_train.run.sinks.tensorboard import (
    EventWriter,
    TensorBoardSink,
    hparams_columns,
    new_event_file,
    scalars,
    session_start,
)

STARTED = RunStarted("digits", "runs/digits/1", "ddp", "cpu", 2, 100, 10, 0, 1234, "brief", "plan\n  two ranks", {
    "lr": 0.001, "optimizer": "adam", "compile": False, "batch": 100,
}, 1000.0)  # fmt: skip


def step(number: int, loss: float) -> StepDone:
    return StepDone(
        step=number,
        epoch=1,
        loss=loss,
        terms={"kind": loss / 2, "price": loss / 4},
        metrics={"accuracy": 0.5},
        lr={"lr": 1e-3, "encoder": 1e-4},
        grad_norm=2.5,
        samples_per_s=1000.0,
        tokens_per_s=None,
        data_wait_s=0.002,
        memory_bytes=2**30,
        mfu=None,
        time_unix_s=1000.0 + number,
    )


def read(directory: Path) -> EventAccumulator:
    accumulator = EventAccumulator(str(directory), size_guidance={"scalars": 0, "tensors": 0})
    accumulator.Reload()
    return accumulator


@pytest.mark.parametrize(("status", "drawn"), [("stopped", False), ("early_stop", True), ("finished", True)])
def test_the_best_is_drawn_when_a_run_finishes(status: str, drawn: bool, tmp_path: Path) -> None:
    """One that was stopped goes on, and the best so far would stay next to the best of all."""
    ended = RunEnded(20, status, {"best/validation/loss": 0.5}, 3.0, 2000.0, {"best/validation/loss": 10})
    sink = TensorBoardSink(tmp_path)
    sink.write(STARTED)
    sink.write(ended)
    sink.close()
    assert ("validation/best_loss" in read(tmp_path).Tags()["scalars"]) is drawn
    assert (scalars(ended)[2] == {"validation/best_loss": 0.5}) is drawn


def test_what_was_predicted_stands_beside_what_was_measured(tmp_path: Path) -> None:
    from tensorboard.plugins.custom_scalar.layout_pb2 import Layout

    sink = TensorBoardSink(tmp_path)
    sink.write(replace(STARTED, predicted={"step_ms": 12.5, "memory_gib": 1.5}))
    for number in (10, 20):
        sink.write(replace(step(number, 2.0), step_s=0.014))
    sink.write(RunEnded(20, "finished", {}, 3.0, 2000.0))
    sink.close()
    found = read(tmp_path)
    (speed,) = found.Tensors("speed/text_summary")
    text = speed.tensor_proto.string_val[0].decode()
    assert text == "predicted: 12.5 ms a step, 1.50 GiB\n\nmeasured: 14 ms a step, 1.00 GiB"
    assert curve(found, "utilisation/predicted_step_ms") == [(10, 12.5), (20, 12.5)]
    assert curve(found, "utilisation/step_ms") == [(10, 14.0), (20, 14.0)]
    assert curve(found, "utilisation/predicted_memory_gib") == [(10, 1.5), (20, 1.5)]
    assert curve(found, "utilisation/memory_gib") == [(10, 1.0), (20, 1.0)]
    charts = Layout.FromString(found.Tensors("custom_scalars__config__")[0].tensor_proto.string_val[0])
    shown = {tuple(chart.multiline.tag) for chart in charts.category[0].chart}
    assert shown == {
        ("^utilisation/step_ms$", "^utilisation/predicted_step_ms$"),
        ("^utilisation/memory_gib$", "^utilisation/predicted_memory_gib$"),
    }


def test_without_a_prediction_nothing_is_said_of_one(tmp_path: Path) -> None:
    sink = TensorBoardSink(tmp_path)
    sink.write(STARTED)
    sink.write(step(10, 2.0))
    sink.close()
    tags = read(tmp_path).Tags()
    assert not [tag for tag in (*tags["scalars"], *tags["tensors"]) if "predicted" in tag or "custom" in tag]


def curve(accumulator: EventAccumulator, tag: str) -> list[tuple[int, float]]:
    return [(entry.step, pytest.approx(entry.value)) for entry in accumulator.Scalars(tag)]


def test_scalars_text_and_hyperparameters(tmp_path: Path) -> None:
    sink = TensorBoardSink(tmp_path)
    sink.write(STARTED)
    for number, loss in ((10, 2.0), (20, 1.0)):
        sink.write(Progress(number, 1))
        sink.write(step(number, loss))
    sink.write(EvaluationDone(20, 1, "validation", {"validation/loss": 1.5, "validation/accuracy": 0.75}, 50, 0.1, 1.0))
    sink.write(EpochDone(1, 20, {"training/loss": 1.5, "validation/loss": 1.5}, 2.0, 1.0))
    sink.write(Notice("no GPU here: 2 ranks on CPU", 1.0))
    values = {"validation/accuracy": 0.75, "best/validation/accuracy": 0.8}
    sink.write(RunEnded(20, "finished", values, 3.0, 2000.0, {"best/validation/accuracy": 10}))
    sink.close()

    found = read(tmp_path)
    assert curve(found, "training/loss") == [(10, 2.0), (20, 1.0)]
    assert curve(found, "training/loss/kind") == [(10, 1.0), (20, 0.5)]
    assert curve(found, "training/accuracy") == [(10, 0.5), (20, 0.5)]
    assert curve(found, "validation/accuracy") == [(20, 0.75)]
    assert curve(found, "training_epoch/loss") == [(20, 1.5)]
    assert not [tag for tag in found.Tags()["scalars"] if tag.startswith("training_epoch/validation")]
    assert curve(found, "training/lr") == [(10, 1e-3), (20, 1e-3)]
    assert curve(found, "training/lr/encoder") == [(10, 1e-4), (20, 1e-4)]
    assert curve(found, "training/grad_norm")[0] == (10, 2.5)
    assert curve(found, "utilisation/samples_per_s")[0] == (10, 1000.0)
    assert curve(found, "utilisation/memory_gib")[0] == (10, 1.0)
    assert curve(found, "utilisation/data_wait_ms")[0] == (10, 2.0)
    assert curve(found, "validation/best_accuracy") == [(10, 0.8)]
    tags = set(found.Tags()["scalars"])
    assert sorted({tag.partition("/")[0] for tag in tags})[0] == "training"  # the loss comes first
    assert not {"utilisation/tokens_per_s", "utilisation/mfu"} & tags
    plan = found.Tensors("plan/text_summary")[0].tensor_proto.string_val[0].decode()
    assert "two ranks" in plan
    assert found.Tensors("remarks/text_summary")[0].tensor_proto.string_val[0] == b"no GPU here: 2 ranks on CPU"

    content = found.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    info = HParamsPluginData.FromString(content).session_start_info
    assert info.hparams[" lr"].number_value == 0.001
    assert info.hparams[" optimizer"].string_value == "adam"
    assert info.hparams["compile"].bool_value is False
    assert "_hparams_/experiment" not in found.Tags()["tensors"]  # TensorBoard finds the columns that differ
    assert [name.strip() for name in sorted(info.hparams)][:2] == [
        "lr",
        "optimizer",
    ]  # before `batch`, as it sorts them


def test_a_trial_begins_with_what_tells_it_apart() -> None:
    """TensorBoard cuts it off."""
    for run, shown in (("20261122-104101-ddp-lr=0.1", "ddp-lr=0.1 20261122-104101"), ("mine", "mine")):
        content = session_start(replace(STARTED, run_dir=f"runs/digits/{run}")).value[0].metadata.plugin_data.content
        assert HParamsPluginData.FromString(content).session_start_info.group_name == shown


def test_a_sweep_names_the_columns_of_its_table(tmp_path: Path) -> None:
    tried = {"lr": [0.1, 0.01], "optimizer": ["adam", "sgd"], "amsgrad": [True, True]}
    with new_event_file(tmp_path) as stream:
        EventWriter(stream).put_summary(hparams_columns(tried, ["validation/accuracy", "best/validation/loss"]), 0, 1.0)
    content = read(tmp_path).SummaryMetadata("_hparams_/experiment").plugin_data.content
    experiment = HParamsPluginData.FromString(content).experiment
    assert {item.name: item.differs for item in experiment.hparam_infos} == {
        " lr": True,
        " optimizer": True,
        "amsgrad": False,
    }
    lr = experiment.hparam_infos[0].domain_interval
    assert (lr.min_value, lr.max_value) == (0.01, 0.1)
    assert [item.name.tag for item in experiment.metric_infos] == ["validation/accuracy", "validation/best_loss"]


def test_a_resumed_run_continues_its_curves(tmp_path: Path) -> None:
    first = TensorBoardSink(tmp_path)
    first.write(STARTED)
    for number in (10, 15, 20, 30):  # a crash: the checkpoint is of step 15
        first.write(step(number, float(number)))
    first.close()
    second = TensorBoardSink(tmp_path)
    second.write(replace(STARTED, first_step=15))
    for number in (20, 30, 40):
        second.write(step(number, float(-number)))
    second.close()
    assert curve(read(tmp_path), "training/loss") == [
        (10, 10.0),
        (15, 15.0),
        (20, -20.0),
        (30, -30.0),
        (40, -40.0),
    ]


def test_every_event_file_sorts_behind_the_ones_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = []
    for now_ns in (5 * 10**18, 5 * 10**18, 10**18):  # twice in one millisecond, then on a host whose clock is behind
        monkeypatch.setattr(time, "time_ns", lambda now_ns=now_ns: now_ns)
        with new_event_file(tmp_path) as stream:
            names.append(stream.name)
    assert names == sorted(set(names))


def test_non_finite_values_are_kept(tmp_path: Path) -> None:
    sink = TensorBoardSink(tmp_path)
    sink.write(step(10, float("nan")))
    sink.close()
    (entry,) = read(tmp_path).Scalars("training/loss")
    assert entry.value != entry.value


def test_creating_the_sink_imports_nothing_heavy_in_the_loops_thread(tmp_path: Path) -> None:
    code = (
        "import sys, time\n"
        "from declarative_train.run.sinks.tensorboard import TensorBoardSink, new_event_file\n"
        f"sink = TensorBoardSink({str(tmp_path)!r})\n"
        "assert not {'google.protobuf', 'tensorboard', 'torch'} & set(sys.modules)\n"
        "sink.close()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_what_was_flushed_can_be_read(tmp_path: Path) -> None:
    sink = TensorBoardSink(tmp_path)
    for number in range(1, 40):
        sink.write(step(number, 1.0))
        if number % 3 == 0:
            sink.flush()
            steps = [event.step for event in read(tmp_path).Scalars("training/loss")]
            assert steps == list(range(1, number + 1))
    sink.close()


def test_a_full_disk_is_told_by_a_flush(tmp_path: Path) -> None:
    sink = TensorBoardSink(tmp_path)
    sink._stream.close()
    sink._stream = open("/dev/full", "wb", buffering=0)  # noqa: SIM115
    sink.write(step(10, 1.0))
    with pytest.raises(OSError, match="space"):
        sink.flush()
    sink.flush()
    sink.close()


def test_a_full_disk_is_an_oserror(tmp_path: Path) -> None:
    sink = TensorBoardSink(tmp_path)
    sink._stream.close()
    sink._stream = open("/dev/full", "wb", buffering=0)  # noqa: SIM115
    sink.write(step(10, 1.0))
    with pytest.raises(OSError, match="space"):
        sink.close()


def test_the_model_is_drawn_under_the_names_of_the_recipe(tmp_path: Path) -> None:
    nodes = (
        GraphNode("fields/x", "field", (), (-1, 4)),
        GraphNode("layers/0/up", "linear", ("fields/x",), (-1, 8)),
        GraphNode("loss/loss", "cross_entropy", ("layers/0/up", "fields/x"), ()),
    )
    sink = TensorBoardSink(tmp_path)
    sink.write(replace(STARTED, graph=nodes))
    sink.close()
    found = {node.name: node for node in read(tmp_path).Graph().node}
    assert list(found) == [node.path for node in nodes]
    assert found["layers/0/up"].op == "linear"
    assert list(found["loss/loss"].input) == ["layers/0/up", "fields/x"]
    assert [dim.size for dim in found["layers/0/up"].attr["_output_shapes"].list.shape[0].dim] == [-1, 8]
