"""`dtrain trace`: the way of the data before a run, its story after it; every number from the plan and the events."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from declarative_train import planner
from declarative_train import recipe as recipe_room
from declarative_train.__main__ import main
from declarative_train.app.views.data_flow import flow
from declarative_train.app.views.epoch_table import chart, epochs_table, remark
from declarative_train.run.event import EpochDone, StepDone
from declarative_train.run.sinks.jsonl import JsonlSink
from tests.alone import mark_packs, text_of_recipe
from tests.app.test_commands import DDP, DP, PIPELINE, ROOT, Captured, told


@pytest.fixture(autouse=True)
def _as_wide_as_it_gets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)


def row(text: str, name: str) -> str:
    """The line of a stage of the data flow (they are numbered), or of a node."""
    form = re.compile(rf"(\d+ +)?{name}  ")
    return " ".join(next(line for line in text.splitlines() if form.match(line)).split())


def test_ddp_slices_the_batch_and_averages_gradients(capsys: Captured) -> None:
    text = told(capsys, "trace", DDP)
    assert "x (100 x 20); y (100)" in row(text, "slices")
    assert "2 slices of 50 rows" in row(text, "slices")
    assert "2 x [x (50 x 20); y (50)]" in row(text, "slices")
    assert "logits (50 x 10)" in row(text, "model")
    assert "a copy of 3,978 parameters on each" in row(text, "model")
    assert "cross_entropy against y: this part of the mean over the batch of 100" in row(text, "loss")
    assert "all-reduce: averaged among 2 ranks" in row(text, "averaging")
    assert "sgd, lr 0.04 step 1 of 500 done rank 0, rank 1" in row(text, "update")
    assert "layer by layer, 50 rows at a time" in text
    assert "50 x 20 50 x 128" in row(text, "hidden")


def test_dp_copies_the_model_and_gathers_the_outputs(capsys: Captured) -> None:
    text = told(capsys, "trace", DP)
    assert "a copy of" in row(text, "model")
    assert "2 x [score (50 x 1)]" in row(text, "gather")
    assert "score (100 x 1)" in row(text, "gather")
    assert "against y: the mean over the batch of 100 loss device 0" in row(text, "loss")
    assert row(text, "update").endswith("device 0")


def test_a_pipeline_shows_each_stage_with_what_it_holds(capsys: Captured) -> None:
    text = told(capsys, "trace", PIPELINE)
    held = [
        int(row(text, f"stage {stage}").partition(" parameters")[0].split()[-1].replace(",", "")) for stage in range(4)
    ]
    assert all(abs(count / 25e6 - 1) < 0.05 for count in held), held
    assert "rank 3" in row(text, "logits")
    assert "16 x 3,520, to stage 2 rank 1" in row(text, "stage 1")
    assert "from the last to the first" in row(text, "gradients")
    assert "; each rank its own" in row(text, "update")
    assert "layer (linear, relu)" in row(text, "layers.0")


def test_a_pipeline_of_shards_tells_the_numbers_of_each_stage(capsys: Captured) -> None:
    """The numbers of the whole model stood for all ranks."""
    mode = "parallelism={pipeline: {stages: 2, microbatches: 2}, data: {shard: 2}}"
    text = told(capsys, "trace", DDP, "--set", mode, "--set", "layout.gpus=4")
    held = [row(text, f"stage {stage}").partition(" parameters")[0].split()[-1] for stage in range(2)]
    for name in ("gradients", "averaging", "update"):
        assert f"{held[0]} / {held[1]} numbers in the stages" in row(text, name)


def test_each_group_of_parameters_has_its_update(capsys: Captured) -> None:
    """The one optimizer of `training` stood for all."""
    set_ = "model.parameters={hidden: {optimizer: {type: adagrad, lr: 3}}, bias: {lr_scale: 2, weight_decay: 0.3}}"
    updates = [line for line in told(capsys, "trace", DDP, "--set", set_).splitlines() if " update " in line]
    assert any("hidden.weight" in line and "adagrad eps 1e-10, lr 3 " in line for line in updates)
    assert any("hidden.bias" in line and "adagrad eps 1e-10, lr 6, weight decay 0.3" in line for line in updates)
    assert any("logits.weight" in line and "adagrad" not in line for line in updates)


def test_a_pipeline_takes_accumulation_as_more_microbatches(capsys: Captured) -> None:
    """As its schedule does: there are no chunks one after the other."""
    text = told(capsys, "trace", PIPELINE, "--set", "training.gradient_accumulation_steps=2")
    assert "8 microbatches (2 accumulation x 4) through the stages" in row(text, "microbatches")
    assert "8 x [x (8 x 100); y (8)] the pipeline" in row(text, "microbatches")
    assert "accumulation  " not in text


def test_fsdp_shards_and_accumulation_shows(capsys: Captured) -> None:
    more = ["--set", "parallelism=fsdp", "--set", "training.gradient_accumulation_steps=2"]
    text = told(capsys, "trace", DDP, *more)
    assert "3,978 parameters, 1/2 on each; a block is gathered while it is used" in row(text, "model")
    assert "reduce-scatter among 2 ranks: each keeps its shard of the mean 1/2 on each" in row(text, "averaging")
    assert "2 chunks one after the other" in row(text, "accumulation")


def test_hybrid_sharding_shards_over_a_replica(capsys: Captured) -> None:
    hybrid = ["--set", "parallelism={data: {replicate: 2, shard: all}}", "--set", "layout.gpus=4"]
    assert "1/2 on each" in row(told(capsys, "trace", DDP, *hybrid), "model")
    assert "1/4 on each" in row(told(capsys, "trace", DDP, "--set", "parallelism=fsdp", hybrid[2], hybrid[3]), "model")


@pytest.mark.packs
def test_a_tied_parameter_is_counted_where_it_is_held(capsys: Captured) -> None:
    assert "tied" in row(told(capsys, "trace", str(ROOT / "recipes" / "gpt_nano_fsdp2.yaml")), "gpt.logits")


def test_a_wrong_recipe_is_told_and_not_traced(capsys: Captured) -> None:
    assert "error[" in told(capsys, "trace", DDP, "--set", "layout.gpus=3", code=1)


@pytest.mark.timeout(120)
def test_the_story_of_a_run(tmp_path: Path, capsys: Captured) -> None:
    assert main(["run", DP, "--quiet", "--set", f"logging.dir={tmp_path}"]) == 0
    capsys.readouterr()  # the result of the run
    text = told(capsys, "trace", str(tmp_path))
    assert text.startswith("the newest run:")
    lines = text.splitlines()
    first = next(index for index, line in enumerate(lines) if line.split()[:2] == ["epoch", "step"])
    assert [int(line.split()[0]) for line in lines[first + 2 : first + 7]] == [1, 2, 3, 4, 5]
    assert "loss down" in lines[first + 3]
    assert "*" in text.partition("training loss,")[2]
    assert text.endswith("finished after 50 steps\n")


@pytest.mark.timeout(120)
def test_the_story_of_a_resumed_run_is_one_story(tmp_path: Path, capsys: Captured) -> None:
    """What a first session did beyond the checkpoint that the second went on from is not told twice."""
    every = ["--set", "checkpoint={every: 1 epoch, keep: 9}"]
    run = ["run", DP, "--quiet", "--set", f"logging.dir={tmp_path}", *every]
    assert main([*run, "--max-steps", "30"]) == 0
    (last,) = tmp_path.rglob("step_00000030")
    (last / "manifest.json").unlink()  # torn: the third epoch is trained again
    assert main([*run, "--resume"]) == 0
    assert "is incomplete" in capsys.readouterr().err
    lines = told(capsys, "trace", str(tmp_path)).splitlines()
    first = next(index for index, line in enumerate(lines) if line.split()[:2] == ["epoch", "step"])
    assert [line.split()[0] for line in lines[first + 2 : first + 7]] == ["1", "2", "3", "4", "5"]
    assert not lines[first + 7]
    assert lines[-1] == "finished after 50 steps"


def test_a_folder_that_is_no_run_is_wrong_use(tmp_path: Path, capsys: Captured) -> None:
    assert "is not a run" in told(capsys, "trace", str(tmp_path), code=2)


def epoch(number: int, **values: float) -> EpochDone:
    return EpochDone(number, 10 * number, {f"{name}/loss": value for name, value in values.items()}, 1.0, 0.0)


def test_half_a_line_of_a_killed_run_is_passed_over(tmp_path: Path, capsys: Captured) -> None:
    sink = JsonlSink(tmp_path / "events.jsonl")
    sink.write(StepDone(10, 1, 1.5, {}, {}, {"lr": 0.1}, None, 1.0, None, 0.0, 0, None, 0.0))
    sink.write(epoch(1, training=math.nan))
    sink.close()
    with (tmp_path / "events.jsonl").open("a") as stream:
        stream.write('{"event": "StepD')
    text = told(capsys, "trace", str(tmp_path))
    assert "1.5000" in text
    assert "nan" in text


def test_the_epochs_fit_the_terminal_with_briefer_remarks() -> None:
    epochs = [epoch(1, training=2.0, validation=1.8), epoch(2, training=1.0, validation=0.9)]
    epochs.append(epoch(3, training=1.1, validation=1.0))
    whole, narrow = epochs_table(epochs, 100), epochs_table(epochs, 60)
    assert "validation loss no better than in epoch 2" in whole
    assert max(map(len, narrow.splitlines())) <= 60
    assert [line.split("  ")[-1] for line in narrow.splitlines()[3:6]] == [
        "the first",
        "-50%, best so far",
        "+10%, best: 2",
    ]
    assert "the epoch of the lowest validation loss" in " ".join(narrow.split())


def test_remarks_are_computed_from_the_numbers() -> None:
    epochs = [
        epoch(1, training=2.0, validation=1.8),
        epoch(2, training=1.0, validation=0.9),
        epoch(3, training=0.9, validation=1.1),
        epoch(4, training=0.899, validation=1.2),
        epoch(5, training=1.8),
        epoch(6, training=math.nan),
    ]
    said = [remark(epochs[: at + 1]) for at in range(len(epochs))]
    assert said == [
        "the first",
        "loss down 50%, best validation loss so far",
        "loss down 10%, validation loss no better than in epoch 2",
        "loss as before, validation loss no better than in epoch 2",
        "loss up 100%",
        "loss is nan",
    ]
    assert all(words in epochs_table(epochs) for words in said)
    assert "0.0000012" not in epochs_table([epoch(1, training=1.2e-6)])
    assert "1.200e-06" in epochs_table([epoch(1, training=1.2e-6)])


def test_the_chart_falls_with_the_loss() -> None:
    lines = chart(list(range(10, 110, 10)), [10.0 - index for index in range(10)]).splitlines()
    assert lines[0].lstrip().startswith("10.0000")
    assert [line.index("*") for line in lines[:10]] == sorted(line.index("*") for line in lines[:10])
    assert "step 10" in lines[-1]
    assert chart([], []) == "no loss was logged"


LARGE = ("digits_timm", "gpt_7b_auto_32xh100")  # the one imports timm, the other is compared on many layouts


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(*each.values, marks=[*each.marks, *([pytest.mark.long] if each.values[0].stem in LARGE else [])])
        for each in mark_packs(sorted((ROOT / "recipes").glob("*.yaml")), text_of_recipe)
    ],
    ids=lambda path: path.stem,
)
def test_every_shipped_recipe_shows_its_way_and_it_fits_the_terminal(path: Path) -> None:
    """Nothing is lost, and no line of the flow is longer; a layer's may be, where its words alone fill it."""
    recipe = recipe_room.load(str(path)).recipe
    assert recipe is not None
    plan, _ = planner.compile(recipe)
    assert plan is not None
    whole = flow(plan, None)
    assert [line.split()[0] for line in whole.splitlines() if line[:1].isdigit()][:2] == ["1", "2"]
    assert "step 1 of" in row(whole, "update")
    for width in (60, 80, 120):
        text = flow(plan, width)
        shown, _, layers = text.partition("layer by layer")
        assert max(map(len, shown.splitlines())) <= width
        if width >= 80:
            assert max(map(len, layers.splitlines())) <= width
        assert sorted(re.findall(r"[\d,]{4,}", whole)) == sorted(re.findall(r"[\d,]{4,}", text))


def test_the_way_is_as_wide_as_the_terminal(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    wide = told(capsys, "trace", DDP).partition("layer by layer")[0]
    monkeypatch.setenv("COLUMNS", "60")
    narrow = told(capsys, "trace", DDP).partition("layer by layer")[0]
    assert max(map(len, narrow.splitlines())) <= 60 < max(map(len, wide.splitlines()))
