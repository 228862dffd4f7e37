"""Layers of plugins on real ranks: the model that their code constructs is the same one in every mode."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from declarative_train.app.main import main
from declarative_train.components.layers.modules.batch_norm import BatchNormModule
from declarative_train.components.layers.sample_groups import MixesSamples
from declarative_train.engine.step.model_preparation import fill, whole_model
from declarative_train.graph.build import build
from declarative_train.plan.plan import Plan
from tests.engine.made_recipes import compiled, merged, on_pipeline, write_data
from tests.engine.parity import Recording, largest_difference, record
from tests.engine.runs import go, last_tensors
from tests.engine.test_parity import LIMIT, SMALL

LAYERS = '''
import random
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch import nn


class Twin(nn.Module):
    """A student, a teacher that starts as its copy, a tied pair, and what is drawn next to the parameters."""

    def __init__(self, in_features: int):
        super().__init__()
        self.student = nn.Linear(in_features, 12)
        self.teacher = nn.Linear(in_features, 12)
        self.teacher.load_state_dict(self.student.state_dict())
        self.teacher.requires_grad_(False)
        self.down = nn.Linear(12, 20, bias=False)
        self.up = nn.Linear(12, 20, bias=False)
        self.up.weight = self.down.weight
        self.register_buffer("features", torch.randn(20, 6))
        self.register_buffer("picked", torch.randperm(6)[:4], persistent=False)
        self.scale = 1 + random.random() + np.random.rand()

    def forward(self, x):
        h = torch.tanh(self.student(x)) - 0.5 * torch.tanh(self.teacher(x) * self.scale)
        y = torch.tanh(self.down(h)) + self.up(h) ** 2
        return (y @ self.features)[:, self.picked]


class Pretrained(nn.Module):
    """As `from_pretrained`: it reads numbers from a file while it is made, and will not be made on meta."""

    def __init__(self, in_features: int, folder: str):
        super().__init__()
        if torch.empty(0).device.type == "meta":
            raise RuntimeError("You are using from_pretrained with a meta device context manager")
        self.inner = nn.Linear(in_features, 8)
        self.rates = [rate.item() for rate in torch.linspace(0.5, 1.0, 3)]
        self.inner.load_state_dict(torch.load(Path(folder) / "inner.pt", weights_only=True))
        with open(Path(folder) / "made.txt", "a") as log:
            log.write("made\\n")

    def forward(self, x):
        return self.inner(x) * self.rates[2]


class Normed(nn.Module):
    def __init__(self, in_features: int):
        super().__init__()
        self.norm = nn.BatchNorm1d(in_features)

    def forward(self, x):
        return self.norm(x)
'''
LONG = pytest.mark.long
WAYS: dict[str, dict[str, Any]] = {
    "dp": {"parallelism": "dp", "layout": {"gpus": 2}},
    "ddp": {"parallelism": "ddp", "layout": {"gpus": 2}},
    "fsdp": {"parallelism": "fsdp", "layout": {"gpus": 2}},
    "pipeline": on_pipeline(3, "1f1b", 3),
    "pipeline x fsdp": on_pipeline(2, "1f1b", 4, data={"shard": 2}),
}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plugins")
    write_data(path, 37)
    (path / "layers.py").write_text(LAYERS)
    generator = torch.Generator().manual_seed(5)
    weights = {"weight": torch.randn(8, 4, generator=generator), "bias": torch.randn(8, generator=generator)}
    torch.save(weights, path / "inner.pt")
    return path


def recipe(directory: Path, **more: Any) -> dict[str, Any]:
    graph = {
        "first": {"type": "twin", "input": "x"},
        "inner": {"type": "pretrained", "folder": str(directory)},
        "logits": {"type": "linear", "out_features": 10},
    }
    changes = {"plugins": ["layers.py"], "model": {"graph": graph}, **more}
    return merged(merged(SMALL, {"model": None}), changes)


def model_of(plan: Plan) -> nn.Module:
    held = whole_model(plan)
    fill(held, plan, torch.device("cpu"))
    return held.model


@pytest.fixture(scope="module")
def reference(directory: Path) -> Recording:
    return record(directory, recipe(directory))


@pytest.mark.parametrize(
    "way",  # fsdp alone and in a pipeline, ddp alone: a step of each kind
    [pytest.param(way, marks=() if way in ("ddp", "pipeline x fsdp") else LONG) for way in WAYS],
)
def test_every_mode_trains_the_same_model(way: str, directory: Path, reference: Recording) -> None:
    found = record(directory, merged(recipe(directory), WAYS[way]))
    assert largest_difference(reference, found) <= LIMIT
    assert found.losses == pytest.approx(reference.losses, rel=1e-12)
    for name, item in reference.parameters.items():
        np.testing.assert_allclose(found.parameters[name], item, rtol=1e-9, atol=1e-12)


SPLIT = '''


class Halves(nn.Module):
    """Two outputs, which other stages read."""

    def __init__(self, in_features: int):
        super().__init__()
        self.a, self.b = nn.Linear(in_features, 6), nn.Linear(in_features, 6)

    def forward(self, x, gate=None) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.tanh(self.a(x)) if gate is None else self.a(x) * torch.sigmoid(gate), self.b(x)
'''


@pytest.fixture(scope="module")
def halves(directory: Path) -> dict[str, Any]:
    (directory / "halves.py").write_text(LAYERS + SPLIT)
    graph = {
        "before": {"type": "linear", "out_features": 6, "input": "x"},
        "halves": {"type": "halves", "inputs": {"x": "before", "gate": "before"}},
        "behind": {"type": "linear", "out_features": 6, "input": "halves"},
        "again": {"type": "halves", "input": "behind"},
        "joined": "again.output_1 + halves.output_1 + again",
        "logits": {"type": "linear", "out_features": 10},
    }
    return merged(merged(SMALL, {"model": None}), {"plugins": ["halves.py"], "model": {"graph": graph}})


@pytest.fixture(scope="module")
def alone(directory: Path, halves: dict[str, Any]) -> Recording:
    return record(directory, halves)


@pytest.mark.parametrize(
    ("schedule", "cuts"),
    [
        pytest.param("1f1b", ["halves"], id="before", marks=LONG),
        pytest.param("gpipe", ["behind"], id="behind", marks=LONG),
        pytest.param("1f1b", ["halves", "behind"], id="both"),
        pytest.param("gpipe", ["behind", "logits"], id="two apart", marks=LONG),
    ],
)
def test_a_pipeline_may_be_cut_around_a_plugin(
    schedule: str, cuts: list[str], directory: Path, halves: dict[str, Any], alone: Recording
) -> None:
    way = on_pipeline(len(cuts) + 1, schedule, len(cuts) + 1)
    way["parallelism"]["pipeline"]["cut_before"] = cuts
    found = record(directory, merged(halves, way))
    assert largest_difference(alone, found) <= LIMIT
    assert found.losses == pytest.approx(alone.losses, rel=1e-12)


def test_what_a_pipeline_cannot_do_with_a_plugin_has_words(
    directory: Path, halves: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """Its layer called again in another stage; and one that mixes samples, of which a stage sees a microbatch."""
    way = on_pipeline(2, "1f1b", 2)
    way["parallelism"]["pipeline"]["cut_before"] = ["again"]
    again = {"again": {"type": "reuse", "node": "halves", "inputs": {"x": "behind", "gate": "behind"}}}
    graph = {**halves["model"]["graph"], **again}
    mixing = (
        (directory / "halves.py")
        .read_text()
        .replace("class Halves(nn.Module):", "class Halves(nn.Module):\n    mixes_samples = True")
    )
    (directory / "mixing.py").write_text(mixing)
    cases: list[tuple[dict[str, Any], int, str]] = [
        ({"model": {"graph": graph}}, 1, "error[P106]: `again` in stage 1 calls `halves` of stage 0 again"),
        ({"plugins": ["mixing.py"]}, 0, "warning[R135]: in `halves` the result of a sample depends on the other"),
    ]
    for changes, code, words in cases:
        whole = merged(merged(halves | changes, {"layout": {"device": "cpu"}}), way)
        (directory / "refused.yaml").write_text(json.dumps(whole))
        assert main(["lint", str(directory / "refused.yaml"), "--plugins"]) == code
        assert words in capsys.readouterr().out


def test_the_code_is_constructed_once_and_its_relations_hold(directory: Path) -> None:
    plan = compiled(directory, recipe(directory, training={"precision": "fp32"}))
    log = directory / "made.txt"
    log.write_text("")
    model = model_of(plan)
    assert log.read_text().count("made") == 1
    twin: Any = model.get_submodule("first")
    assert torch.equal(twin.student.weight, twin.teacher.weight)
    assert twin.up.weight is twin.down.weight
    assert torch.equal(model.get_parameter("inner.inner.weight"), torch.load(directory / "inner.pt")["weight"])


@pytest.mark.long
def test_what_the_code_freezes_stays_as_it_started(directory: Path) -> None:
    """Under weight decay, in a mode that holds it whole and in one that shards it."""
    decay = {"precision": "fp32", "optimizer": {"type": "adamw", "lr": 0.1, "weight_decay": 0.5}}
    started: Any = model_of(compiled(directory, recipe(directory, training=decay))).get_submodule("first")
    for way in (WAYS["ddp"], WAYS["fsdp"]):
        found = record(directory, merged(recipe(directory, training=decay), way)).parameters
        np.testing.assert_array_equal(found["first.teacher.weight"], started.teacher.weight.numpy())
        assert np.abs(found["first.student.weight"] - started.student.weight.detach().numpy()).max() > 0.1


def test_what_was_built_for_its_shapes_keeps_no_values(directory: Path) -> None:
    plan = compiled(directory, recipe(directory))
    for seed, kept in ((None, False), (0, True)):
        twin = build(plan.graph, plan.plugins, seed=seed, device="meta").get_submodule("first")
        assert any("start_values" in name for name in vars(twin)) is kept


def test_what_is_drawn_depends_on_the_seed_and_the_path_alone(directory: Path) -> None:
    def drawn(seed: int, path: str) -> dict[str, Any]:
        whole = merged(merged(SMALL, {"model": None}), {"plugins": ["layers.py"], "seed": seed})
        graph = {path: {"type": "twin", "input": "x"}, "logits": {"type": "linear", "out_features": 10}}
        plan = compiled(directory, whole | {"model": {"graph": graph}})
        torch.rand(3), np.random.rand(3), random.random()  # of what else the process draws it does not depend
        states = np.random.get_state()[2], random.getstate()
        twin: Any = model_of(plan).get_submodule(path)
        assert (np.random.get_state()[2], random.getstate()) == states  # which goes on as if nothing had been drawn
        return {**twin.state_dict(), "picked": twin.picked, "scale": torch.tensor(twin.scale)}

    first, again = drawn(1, "a"), drawn(1, "a")
    assert all(torch.equal(first[name], again[name]) for name in first)
    for other in (drawn(2, "a"), drawn(1, "b")):
        assert not any(torch.equal(first[name], other[name]) for name in ("features", "student.weight", "scale"))


def test_a_parameter_in_front_of_the_plugin_may_be_tied_to_one_of_its_own(directory: Path) -> None:
    graph = {
        "few": "x[:, :4]",
        "before": {"type": "linear", "out_features": 8},
        "mid": "few + before[:, :4]",
        "first": {"type": "pretrained", "folder": str(directory)},
        "logits": {"type": "linear", "out_features": 10},
    }
    model = {"graph": graph, "parameters": {"before.weight": {"tie": "first.inner.weight"}}}
    plan = compiled(directory, recipe(directory, training={"precision": "fp32"}) | {"model": model})
    assert {item.name: item.tie for item in plan.parameters if item.tie} == {"first.inner.weight": "before.weight"}
    built: Any = model_of(plan)
    assert built.before.weight is built.first.inner.weight
    assert torch.equal(built.before.weight, torch.load(directory / "inner.pt")["weight"])


def test_batch_normalisation_of_torch_becomes_ours(directory: Path) -> None:
    """Gradients and running statistics as those of the node `batch_norm`, whatever the mode."""
    node = {"hidden": {"type": "linear", "out_features": 12, "input": "x"}, "norm": {"type": "batch_norm"}}
    rest = {"act": {"type": "relu"}, "logits": {"type": "linear", "out_features": 10}}
    ours = merged(SMALL, {"model": None, "training": {"gradient_accumulation_steps": 2}, "checkpoint": {"keep": 1}})
    ours["model"] = {"graph": {**node, **rest}}
    theirs = merged(ours, {"plugins": ["layers.py"]})
    theirs["model"] = {"graph": {**node, "norm": {"type": "normed"}, **rest}}
    built: Any = build(compiled(directory, theirs).graph, (str(directory / "layers.py"),))
    assert isinstance(built.norm.norm, BatchNormModule)
    assert isinstance(built.norm.norm, torch.nn.BatchNorm1d)
    assert isinstance(built.norm.norm, MixesSamples)
    for way in ({}, WAYS["ddp"]):
        done, wanted = go(directory, theirs, way), go(directory, ours, way)
        assert (done.code, wanted.code) == (0, 0)
        found = {name.replace("norm.norm.", "norm."): item for name, item in last_tensors(done.run_dir).items()}
        for name, item in last_tensors(wanted.run_dir).items():
            torch.testing.assert_close(found[name], item, rtol=1e-9, atol=1e-12, msg=name)
