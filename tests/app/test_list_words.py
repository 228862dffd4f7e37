"""`dtrain list`: the keys that it shows are those that a recipe takes, and of any other word it says where it is."""

from __future__ import annotations

import json
import re

import pytest

from declarative_train.app.index import find, tables
from declarative_train.app.main import main
from declarative_train.app.views.components import component_page
from declarative_train.components.component import Component
from declarative_train.recipe.hints import aliases
from declarative_train.recipe.validate import validate
from declarative_train.source.node import Mapping
from declarative_train.source.reader import read_text

PAGES = [(kind, name, model) for kind, table in tables().items() for name, model in table.items()]


def keys_shown(page: str) -> set[str]:
    return set(re.findall(r"^  (\w+): ", page, re.M)) | {"type"}


@pytest.mark.parametrize(("kind", "name", "model"), PAGES, ids=[f"{kind}-{name}" for kind, name, _ in PAGES])
def test_the_keys_that_are_shown_are_those_that_are_taken(kind: str, name: str, model: type[Component]) -> None:
    shown = keys_shown(component_page(kind, model))
    asked = shown | set(model.model_fields) | {field.alias or name for name, field in model.model_fields.items()}
    text = "".join(f"{key}: {name if key == 'type' else 'null'}\n" for key in sorted(asked))
    root, _ = read_text("r.yaml", text)
    assert isinstance(root, Mapping)
    _, found = validate(model, root)
    refused = {match[1] for each in found if (match := re.search(r"has no key `(\w+)`", each.message))}
    assert asked - refused == shown


def test_json_has_the_keys_of_a_type_with_their_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "adamw", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    keys = {each["key"]: each for each in found["keys"]}
    assert keys.keys() == keys_shown(component_page("optimizers", tables()["optimizers"]["adamw"])) - {"type"}
    assert keys["betas"]["default"] == [0.9, 0.999]
    assert keys["lr"]["type"] == "number"
    assert "default" not in keys["lr"]


WORDS = {  # what is looked for -> a part of the answer
    "freeze": "frozen", "EMA": "training.ema", "resume": "--resume", "pretrained": "weights",
    "batch_size": "global_batch_size",
    "tensorboard": "dtrain tensorboard", "autocast": "precision", "warmup": "training.lr_schedule",
    "frozen": "parameters", "label_smoothing": "cross_entropy",
    "clip_grad_norm": "training.clip_grad_norm", "graph": "model.graph",
    "warmup_ratio": "warmup", "pin_memory": "remove it", "report_to": "sinks", "bf16": "precision",
    "gradient_checkpointing": "activation_checkpointing", "trainer": "parallelism", "callbacks": "early_stop",
    "nn.BatchNorm2d": "batch_norm", "CrossEntropyLoss": "cross_entropy", "liner": "did you mean `linear`?",
    "kernel_size": "avg_pool1d.kernel_size", "clamp": "function    clamp",
    "plateau": "not built", "heads": "heads",
}  # fmt: skip
UNKNOWN = ("RoPE", "sampler", "GRUCell", "mAP", "LARS", "Sequential", "a_word_of_nothing")


def answer(word: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["list", word]) == 2
    return capsys.readouterr().err


@pytest.mark.parametrize(("word", "said"), WORDS.items())
def test_a_word_is_answered_with_its_place(word: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert said in answer(word, capsys)


@pytest.mark.parametrize("word", [*WORDS, *UNKNOWN])
def test_no_wrong_word_is_offered(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    offered = re.search(r"did you mean `(\w+)`", answer(word, capsys))
    assert offered is None or (word, offered[1]) == ("liner", "linear")


def test_every_word_of_the_linter_is_answered() -> None:
    words = [*aliases.KEYS, *aliases.OTHERWISE, *aliases.NOTES]
    assert [word for word in words if find(word).is_empty] == []
