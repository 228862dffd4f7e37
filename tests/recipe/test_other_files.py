"""A file that is no recipe gets one sentence, whatever it holds, and what to do with it."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path

import numpy as np
import pytest

from declarative_train import planner
from declarative_train import recipe as recipe_room
from declarative_train.plan.codec import to_json
from declarative_train.recipe.load import Loaded

RECIPE = """
data:
  source: {type: synthetic, kind: classification, rows: 20, features: 4, classes: 2}
  fields: {x: {column: x}, label: {column: "y"}}
model: {graph: {logits: {type: linear, out_features: 2, input: x}}}
objective: {loss: {type: cross_entropy, input: logits, target: label}}
training: {steps: 1, global_batch_size: 10, optimizer: {type: sgd, lr: 0.1}}
"""


def loaded(path: Path, content: bytes | str) -> Loaded:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return recipe_room.load(str(path))


def array() -> bytes:
    file = io.BytesIO()
    np.save(file, np.zeros(4))
    return file.getvalue()


NOISE = np.random.default_rng(0).bytes(5000)
FILES: dict[str, tuple[bytes | str, str, str]] = {
    "wine.csv": ("a,b\n1,2\n", "a table", "dtrain init --from"),
    "rows.jsonl": ('{"a": 1}\n{"a": 2}\n', "a table", "dtrain init --from"),
    "events.jsonl": ('{"event": "RunStarted"}\n', "the record of a run", "dtrain trace"),
    "shop.db": (b"SQLite format 3\0" + bytes(100), "an SQLite database", "dtrain init --from"),
    "x.npy": (array(), "a file of arrays", "type: npy"),
    "x.data": (array(), "a file of arrays", "type: npy"),
    "weights.safetensors": (NOISE, "a file of weights", "`model.weights`"),
    "model.py": ("import torch\n", "Python code", "plugins: ["),
    "cat.yaml": (b"\x89PNG\r\n\x1a\n" + NOISE, "a picture", "image_folder"),
    "rows.yaml": (gzip.compress(b"a,b"), "an archive", "a YAML file"),
    "noise.yaml": (NOISE, "binary", "a YAML file"),
    "run.json": (
        '{"name": "a", "num_ranks": 1, "started_unix_s": 1.0, "settings": {}}',
        "the record of",
        "dtrain trace",
    ),
    "schema.json": (json.dumps({"$schema": "https://json-schema.org", "$defs": {}}), "a JSON schema", "editors"),
    "compose.yaml": ("services:\n  web: {image: x}\n", "of another program (`services`)", "`data`, `model`"),
    "ci.yaml": ("name: CI\non: {push: {}}\njobs: {a: 1}\n", "of another program (`on`, `jobs`)", "`data`, `model`"),
    "mkdocs.yaml": (
        "site_name: a\nsite_dir: b\ntheme: {}\nnav: []\nplugins: [search]\nvalidation: {}\nextra_css: []\n",
        "of another program (`site_name`, `site_dir`, `theme`, ...)",
        "`data`, `model`",
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_another_kind(name: str, tmp_path: Path) -> None:
    content, what, hint = FILES[name]
    found = loaded(tmp_path / name, content)
    (said,) = found.diagnostics
    assert (said.code, found.recipe) == ("Y028", None)
    assert said.message == f"the file is {what}, not a recipe" or what == "the record of"
    assert what in said.message
    assert hint in (said.help or "")


def test_a_saved_plan_of_any_version(tmp_path: Path) -> None:
    recipe = recipe_room.load("made.yaml", text=RECIPE).recipe
    assert recipe is not None
    plan, _ = planner.compile(recipe)
    assert plan is not None
    text = to_json(plan)
    for name, content in (("a.json", text), ("b.json", text.replace('"version": 2', '"version": 1', 1))):
        (said,) = loaded(tmp_path / name, content).diagnostics
        assert said.message == "the file is a plan, not a recipe"
        assert f"`dtrain run {tmp_path / name}` runs it; it was made from `made.yaml`" in str(said.help)
    (said,) = recipe_room.load("made.yaml", text=RECIPE, with_=[str(tmp_path / "a.json")]).diagnostics
    assert said.code == "Y028"


@pytest.mark.parametrize(
    "text",
    [
        "modle: {}\ntrainning: {}\n",  # misspelt sections
        "learning_rate: 0.1\nfoo: 1\n",  # words of other tools have an answer
        "name: a\nfoo: 1\n",
        "training: {}\nservices: {}\n",
        "name: a\n",
    ],
)
def test_what_may_be_meant_as_a_recipe_is_read_as_one(text: str, tmp_path: Path) -> None:
    codes = {item.code for item in loaded(tmp_path / "r.yaml", text).diagnostics}
    assert "Y028" not in codes
    assert codes


def test_text_in_another_encoding_is_text(tmp_path: Path) -> None:
    (said,) = loaded(tmp_path / "r.yaml", "meta: {owner: René}\nfragment: true\n".encode("latin-1")).diagnostics
    assert said.code == "Y016"
    found = loaded(tmp_path / "s.yaml", ("# " + "é" * 4096 + "\nfragment: true\n").encode())  # cut inside of a letter
    assert not found.diagnostics
