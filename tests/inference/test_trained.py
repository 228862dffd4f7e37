"""A run, or one of its checkpoints, is all that the model needs."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from declarative_train.engine.failures import CheckpointFailure
from declarative_train.inference.trained import UsageError, open_trained
from declarative_train.run.event import EvaluationDone
from declarative_train.run.sinks.jsonl import read_events


def checkpoint_of(run: Path) -> Path:
    return max((run / "checkpoints").iterdir())


def test_a_copied_checkpoint_alone_has_all_that_the_run_has(wine: Path, tmp_path: Path) -> None:
    alone = shutil.copytree(checkpoint_of(wine), tmp_path / "elsewhere")
    found, whole = open_trained(alone), open_trained(checkpoint_of(wine))
    assert found.plan == whole.plan
    assert found.run is None
    assert whole.run == str(wine)
    assert found.recipe.startswith("\nname: wine\n")
    assert found.class_names("kind") == ("barbera", "barolo", "grignolino")
    assert found.class_names("site") == ("hill", "plain", "river")
    assert found.class_names("features") is None
    assert len(found.fields["features"].statistics["subtract"]) == 3  # type: ignore[arg-type]
    for name, tensor in whole.module().state_dict().items():
        assert torch.equal(tensor, found.module().state_dict()[name]), name


def test_of_a_run_the_best_checkpoint_is_taken(wine: Path) -> None:
    found = open_trained(wine)
    evaluations = [event for event in read_events(wine / "events.jsonl") if isinstance(event, EvaluationDone)]
    best = max(evaluations, key=lambda event: event.values["validation/accuracy"])
    assert found.step == best.step
    assert found.values["validation/accuracy"] == best.values["validation/accuracy"]
    assert open_trained(wine.parent).path == found.path


def test_through_a_file_system_of_another_kind(wine: Path) -> None:
    import fsspec

    fs = fsspec.filesystem("memory")
    fs.put(str(checkpoint_of(wine)), "/trained/runs/w/checkpoints/step_00000001", recursive=True)
    found = open_trained("memory://trained/runs/w")
    assert found.class_names("kind") == ("barbera", "barolo", "grignolino")
    assert found.run_dir is None
    names = dict(found.module().named_parameters())
    assert {"place.weight", "hidden.weight", "hidden.bias", "logits.weight", "logits.bias"} == names.keys()


def test_a_network_needs_the_fields_that_its_outputs_read(wine: Path) -> None:
    found = open_trained(wine)
    network = found.network(["act", "place"])
    assert network.inputs == ("features", "site")
    features, site = torch.zeros(2, 3), torch.tensor([0, 2])
    act, place = network.module(features, site)
    assert act.shape == (2, 8)
    assert torch.equal(place, found.module().get_parameter("place.weight")[site])
    assert not any(parameter.requires_grad for parameter in network.module.parameters())
    assert found.network(["place"]).inputs == ("site",)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("nothing", "there is no run {}/nothing; help: known: "),
        ("file", "{}/file is a file, and a run is a folder"),
        ("folder", "{}/folder is not a run: there is no checkpoint in it"),
    ],
)
def test_what_is_no_run_is_said(tmp_path: Path, path: str, message: str) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    with pytest.raises(UsageError) as caught:
        open_trained(tmp_path / path)
    assert str(caught.value).startswith(message.format(tmp_path))


def test_an_output_that_is_not_there_is_said(wine: Path) -> None:
    with pytest.raises(UsageError, match="no node `logit`; help: did you mean `logits`"):
        open_trained(wine).network(["logit"])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("plan.json", "checksum of plan.json"),
        (".metadata", "checksum of .metadata"),
        ("manifest.json", "is incomplete"),
    ],
)
def test_a_damaged_checkpoint_is_refused(wine: Path, tmp_path: Path, name: str, message: str) -> None:
    place = shutil.copytree(checkpoint_of(wine), tmp_path / "step_00000001")
    if name == "manifest.json":
        (place / name).unlink()
    else:
        content = bytearray((place / name).read_bytes())
        content[-2] ^= 1
        (place / name).write_bytes(content)
    with pytest.raises(CheckpointFailure, match=message):
        open_trained(place)
