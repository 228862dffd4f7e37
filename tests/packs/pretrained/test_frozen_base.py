"""Checkpoints of adapters name their frozen base: they are small, complete with it, and say what is wrong without."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import declarative_train as dt
from declarative_train.__main__ import main
from declarative_train.engine.failures import CheckpointFailure
from declarative_train.engine.step import frozen_base
from declarative_train.inference.trained import open_trained
from declarative_train.packs.export.export import export
from tests.engine.made_recipes import DEEP, WAYS, merged, write_data, write_recipe
from tests.engine.runs import assert_same_tensors, checkpoints, go

TUNED: dict[str, Any] = merged(
    DEEP,
    {
        "model": {
            "weights": "base.safetensors",
            "parameters": {
                "up": {"adapter": {"type": "lora", "rank": 3}},
                "lora_B": {"init": {"type": "normal", "std": 0.3}},
                "logits": {"frozen": False},
            },
        },
        "training": {"precision": "fp64"},
    },
)
WHOLE = merged(TUNED, {"checkpoint": {"base": "whole"}})
STOP, STEPS = 10, 21


def write_base(folder: Path, dtype: torch.dtype = torch.float32) -> Path:
    write_data(folder)
    model = dt.load(str(write_recipe(folder, DEEP, "plain.yaml"))).plan().module()
    file = folder / "base.safetensors"
    save_file({name: item.to(dtype).clone() for name, item in model.state_dict().items()}, file)
    return file


def gone_on(folder: Path, before: str, after: str) -> tuple[Any, Any]:
    write_base(folder)
    straight = go(folder, WHOLE, WAYS[after])
    first = go(folder, TUNED, WAYS[before], max_steps=STOP)
    moved = folder / "first"
    shutil.move(first.run_dir, moved)
    again = go(folder, TUNED, WAYS[after], resume=str(moved))
    assert (straight.code, again.code) == (0, 0)
    return checkpoints(moved)[STEPS], checkpoints(straight.run_dir)[STEPS]  # it went on in the folder that it has now


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("single", "single"),
        *(
            pytest.param(*ways, marks=pytest.mark.long)
            for ways in [("ddp 2", "fsdp 2"), ("fsdp 2", "pipeline 2"), ("pipeline 2", "ddp 2")]
        ),
    ],
)
def test_a_run_goes_on_from_what_was_trained_and_the_base(tmp_path: Path, before: str, after: str) -> None:
    found, wanted = gone_on(tmp_path, before, after)
    trained = {name for name in wanted.tensors if "lora_" in name or "logits" in name or name.startswith("optimizer/")}
    assert set(found.tensors) == trained < set(wanted.tensors)
    alike = {"rtol": 0, "atol": 0} if before == after == "single" else {"rtol": 1e-10, "atol": 1e-10}
    assert_same_tensors(found.tensors, {name: wanted.tensors[name] for name in trained}, **alike)


def test_it_is_used_exported_and_started_from_with_its_base(tmp_path: Path) -> None:
    """In the dtype of the run, whatever that of the files."""
    write_base(tmp_path, torch.bfloat16)
    recipe = merged(TUNED, {"training": {"precision": "fp32"}})
    small, whole = (go(tmp_path, each) for each in (recipe, merged(recipe, {"checkpoint": {"base": "whole"}})))
    ours, wanted = (open_trained(each.run_dir) for each in (small, whole))
    assert_same_tensors(ours.module().state_dict(), wanted.module().state_dict())
    folders = [export(each, "safetensors", tmp_path / name).folder for each, name in ((ours, "a"), (wanted, "b"))]
    assert_same_tensors(*(load_file(each / "model.safetensors") for each in folders))
    manifest = json.loads((Path(ours.path) / "manifest.json").read_text())
    assert set(manifest["base"][0]["files"]) == {"base.safetensors"}
    assert "model/embed.weight" not in manifest["shapes"]
    further = merged(recipe, {"model": {"weights": str(small.run_dir)}})
    started = dt.load(str(write_recipe(tmp_path, further, "further.yaml"))).plan().module()
    assert_same_tensors(started.state_dict(), wanted.module().state_dict())


def test_a_folder_that_was_moved_with_its_base_is_used_and_gone_on_with(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new" / "place"
    old.mkdir()
    write_base(old)
    done = go(old, TUNED, max_steps=STOP)
    before = open_trained(done.run_dir).module().state_dict()
    new.parent.mkdir()
    shutil.move(old, new)
    run_dir = new / done.run_dir.relative_to(old)
    assert_same_tensors(open_trained(run_dir).module().state_dict(), before)
    old.mkdir()  # one that lies where the first was, and is another
    save_file({"other": torch.zeros(2)}, old / "base.safetensors")
    assert_same_tensors(open_trained(run_dir).module().state_dict(), before)
    file = new / "base.safetensors"
    file.rename(tmp_path / "elsewhere.safetensors")
    with pytest.raises(CheckpointFailure, match=r"has changed: base\.safetensors at .*old/base"):
        open_trained(run_dir).module()
    (tmp_path / "elsewhere.safetensors").rename(file)
    assert go(new, TUNED, resume=str(run_dir)).code == 0
    newest = sorted((run_dir / "checkpoints").glob("step_*/manifest.json"))[-1]
    (record,) = json.loads(newest.read_text())["base"]
    assert record["weights"]["path"] == str(file)


@pytest.mark.parametrize("is_moved", [True, False])
def test_a_base_that_is_elsewhere_or_another_is_told(
    tmp_path: Path, is_moved: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_base(tmp_path)
    done = go(tmp_path, TUNED, max_steps=STOP)
    tensors = load_file(file)
    file.rename(tmp_path / "elsewhere.safetensors")
    words = "their base is not at .*base.safetensors; help: restore it there, or make a link"
    if not is_moved:
        first = next(iter(tensors))
        save_file({**tensors, first: tensors[first] + 1e-3}, file)
        words = "the base of the adapters has changed: base.safetensors at .*; help: restore that file"
    with pytest.raises(CheckpointFailure, match=words):
        open_trained(done.run_dir).module()
    capsys.readouterr()
    assert main(["export", str(done.run_dir), "--to", "safetensors", "-o", str(tmp_path / "out")]) == 3
    said = capsys.readouterr().err.replace("\nhelp", "; help")
    assert re.search(words, said)
    assert "Traceback" not in said
    if not is_moved:  # what is not there at all is told by lint
        for way in ("single", "ddp 2"):
            assert go(tmp_path, TUNED, WAYS[way], resume=str(done.run_dir)).code == 3
            assert re.search(words, capsys.readouterr().err.replace("\nhelp", "; help"))
    file.unlink(missing_ok=True)
    file.symlink_to(tmp_path / "elsewhere.safetensors")
    assert open_trained(done.run_dir).module() is not None
    assert go(tmp_path, TUNED, resume=str(done.run_dir)).code == 0


def test_a_run_that_held_its_base_goes_on_holding_it(tmp_path: Path) -> None:
    """Its file may be another by now, and nobody knows."""
    file = write_base(tmp_path)
    straight = go(tmp_path, WHOLE)
    first = go(tmp_path, WHOLE, max_steps=STOP)
    save_file({name: item + 1 for name, item in load_file(file).items()}, file)
    assert go(tmp_path, TUNED, resume=str(first.run_dir)).code == 0
    assert_same_tensors(checkpoints(first.run_dir)[STEPS].tensors, checkpoints(straight.run_dir)[STEPS].tensors)


def test_of_a_large_file_a_piece_of_each_tensor_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frozen_base, "WHOLE_BYTES", 1000)
    file = write_base(tmp_path)
    done = go(tmp_path, TUNED, max_steps=STOP)
    assert open_trained(done.run_dir).module() is not None
    tensors = load_file(file)
    for name in ("hidden.bias", "layers.5.up.weight"):
        save_file({**tensors, name: tensors[name] * 2 + 1}, file)
        with pytest.raises(CheckpointFailure, match="has changed"):
            open_trained(done.run_dir).module()
    save_file(tensors, file)
    assert open_trained(done.run_dir).module() is not None
    file.write_bytes(b"\xff" * file.stat().st_size)
    with pytest.raises(CheckpointFailure, match="their base is not"):
        open_trained(done.run_dir).module()
