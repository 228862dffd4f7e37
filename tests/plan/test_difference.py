"""What a changed recipe is told to have changed: the recipe's own keys, old value and new one, and no consequences."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from declarative_train.plan.difference import changes
from tests.engine.made_recipes import DEEP, compiled, merged, write_data


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    write_data(tmp_path)
    return tmp_path


CASES: list[tuple[dict[str, Any], list[str]]] = [
    ({"logging": {"every": "3 steps"}, "parallelism": "ddp", "layout": {"gpus": 2}}, []),
    ({"seed": 3}, ["`seed` was 0 and is 3"]),
    ({"training": {"optimizer": {"type": "adamw", "lr": 0.02}}}, ["`training.optimizer.lr` was 0.01 and is 0.02"]),
    ({"training": {"optimizer": {"type": "sgd", "lr": 0.02}}}, ["`training.optimizer.type` was adamw and is sgd"]),
    ({"training": {"epochs": 5}}, ["`training.epochs` was 3 and is 5"]),
    ({"training": {"global_batch_size": 48}}, ["`training.global_batch_size` was 24 and is 48"]),
    (
        {"training": {"precision": "bf16", "clip_grad_norm": None}},
        ["`training.clip_grad_norm` was 1 and is not set", "`training.precision` was fp32 and is bf16"],
    ),
    (
        {"training": {"lr_schedule": {"type": "cosine", "warmup": "5 steps"}}},
        ["`training.lr_schedule.warmup` was 3 and is 5"],
    ),
    ({"data": {"shuffle": False}}, ["`data.shuffle` was true and is false"]),
    ({"data": {"split": {"validation": 0.3}}}, ["`data.split.validation.fraction` was 0.2 and is 0.3"]),
    (
        {"data": {"fields": {"x": {"column": "x", "scale": 2.0}}}},
        ["`data.fields.x.scale` was not set and is 2"],
    ),
    (
        {"model": {"blocks": {"block": {"graph": {"out": "x + sin(up)"}}}}},
        ["`model.graph.layers.0.out` (and 5 more like it) was x + tanh(up) and is x + sin(up)"],
    ),
    (
        {"model": {"graph": {"layers": {"type": "block", "repeat": 5}}}},
        ["`model.graph.logits.inputs.x` was layers.5 and is layers.4", "`model.graph.layers.5` is gone"],
    ),
    (
        {
            "model": {"graph": {"drop": {"type": "dropout", "p": 0.3}}},
            "objective": {"loss": {"type": "cross_entropy", "input": "drop", "target": "y"}, "metrics": None},
        },
        [
            "`objective.loss.input` was logits and is drop",
            "`model.graph.drop` is new",
            "`objective.metrics.accuracy` is gone",
        ],
    ),
    (
        {"model": {"parameters": {"hidden.weight": {"frozen": True}}}},
        ["`model.parameters.hidden.weight.frozen` was false and is true"],
    ),
    (
        {"model": {"graph": {"logits": {"type": "linear", "out_features": 10, "bias": False}}}},
        ["`model.graph.logits.bias` was true and is false"],
    ),
]


@pytest.mark.parametrize(("edits", "told"), CASES, ids=lambda item: str(item)[:50])
def test_a_change_has_its_key(directory: Path, edits: dict[str, Any], told: list[str]) -> None:
    before, now = compiled(directory, DEEP), compiled(directory, merged(DEEP, edits))
    assert [change.sentence for change in changes(before, now)] == told
    assert bool(told) == (before.fingerprint != now.fingerprint)


def test_other_data_in_the_same_files(directory: Path) -> None:
    before = compiled(directory, DEEP)
    with (directory / "data.npz").open("ab") as stream:
        stream.write(b" ")
    now = compiled(directory, DEEP)
    assert [change.sentence for change in changes(before, now)] == ["the contents of the data files changed"]
