"""`dtrain trace`: the way of the data before a run, its story after it; every number from the plan and the events."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from declarative_train.__main__ import main
from declarative_train.cli.views.story import chart, epochs_table, remark
from tests.cli.test_commands import DDP, DP, PIPELINE, Captured, told


def row(text: str, name: str) -> str:
    """The line of a stage of the data flow (they are numbered), or of a node."""
    form = re.compile(rf"(\d+ +)?{name}  ")
    return " ".join(next(line for line in text.splitlines() if form.match(line)).split())


def test_ddp_slices_the_batch_and_averages_gradients(capsys: Captured) -> None:
    text = told(capsys, "trace", DDP)
    assert "x (100 x 20); y (100)" in row(text, "slices")
    assert "2 slices of 50 rows" in row(text, "slices")
    assert "2 times x (50 x 20); y (50)" in row(text, "slices")
    assert "logits (50 x 10)" in row(text, "model")
    assert "all-reduce: averaged" in row(text, "gradients")
    assert "50 x 20 50 x 128" in row(text, "hidden")


def test_dp_copies_the_model_and_gathers_the_outputs(capsys: Captured) -> None:
    text = told(capsys, "trace", DP)
    assert "a copy of" in row(text, "model")
    assert "2 times score (50 x 1)" in row(text, "gather")
    assert "score (100 x 1)" in row(text, "gather")


def test_a_pipeline_shows_each_stage_with_what_it_holds(capsys: Captured) -> None:
    text = told(capsys, "trace", PIPELINE)
    held = [
        int(row(text, f"stage {stage}").partition(" parameters")[0].split()[-1].replace(",", "")) for stage in range(4)
    ]
    assert all(abs(count / 25e6 - 1) < 0.05 for count in held), held
    assert "rank 3" in row(text, "logits")
    assert "16 x 3,520" in row(text, "stage 1")


def test_fsdp_shards_and_accumulation_shows(capsys: Captured) -> None:
    more = ["--set", "parallelism=fsdp", "--set", "training.gradient_accumulation_steps=2"]
    text = told(capsys, "trace", DDP, *more)
    assert "reduce-scatter" in row(text, "gradients")
    assert "2 chunks" in row(text, "accumulation")


def test_a_wrong_recipe_is_told_and_not_traced(capsys: Captured) -> None:
    assert "error[" in told(capsys, "trace", DDP, "--set", "layout.gpus=3", code=1)


@pytest.mark.timeout(120)
def test_the_story_of_a_run(tmp_path: Path, capsys: Captured) -> None:
    assert main(["run", DP, "--quiet", "--set", f"logging.dir={tmp_path}"]) == 0
    text = told(capsys, "trace", str(tmp_path))
    assert text.startswith("the newest run:")
    lines = text.splitlines()
    first = next(index for index, line in enumerate(lines) if line.split()[:2] == ["epoch", "step"])
    assert [int(line.split()[0]) for line in lines[first + 2 : first + 7]] == [1, 2, 3, 4, 5]
    assert "loss down" in lines[first + 3]
    assert "*" in text.partition("training loss")[2]


def test_a_folder_that_is_no_run_is_wrong_use(tmp_path: Path, capsys: Captured) -> None:
    assert "is not a run" in told(capsys, "trace", str(tmp_path), code=2)


def test_half_a_line_of_a_killed_run_is_passed_over(tmp_path: Path, capsys: Captured) -> None:
    step = {"event": "StepDone", "step": 10, "loss": 1.5}
    (tmp_path / "events.jsonl").write_text(json.dumps(step) + '\n{"event": "StepD', "utf-8")
    assert "1.5000" in told(capsys, "trace", str(tmp_path))


def test_remarks_are_computed_from_the_numbers() -> None:
    epochs = [
        {"epoch": 1, "step": 10, "training/loss": 2.0, "validation/loss": 1.8},
        {"epoch": 2, "step": 20, "training/loss": 1.0, "validation/loss": 0.9},
        {"epoch": 3, "step": 30, "training/loss": 0.9, "validation/loss": 1.1},
        {"epoch": 4, "step": 40, "training/loss": 0.899, "validation/loss": 1.2},
        {"epoch": 5, "step": 50, "training/loss": 1.8, "validation/loss": 1.2},
    ]
    said = [remark(row, epochs[at - 1] if at else None, epochs[:at]) for at, row in enumerate(epochs)]
    assert said[0] == "the first"
    assert said[1] == "loss down 50%, best validation so far"
    assert said[2] == "loss down 10%, validation is not better: over-fitting begins"
    assert said[3].startswith("loss as before")
    assert said[4] == "loss up 100%"
    assert all(words in epochs_table(epochs) for words in said)


def test_the_chart_falls_with_the_loss() -> None:
    lines = chart(list(range(10, 110, 10)), [10.0 - index for index in range(10)]).splitlines()
    assert lines[0].lstrip().startswith("10.0000")
    assert [line.index("*") for line in lines[:10]] == sorted(line.index("*") for line in lines[:10])
    assert "step 10" in lines[-1]
    assert chart([], []) == "no loss was logged"
