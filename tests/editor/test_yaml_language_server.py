"""schemas/recipe.schema.json in the YAML server that editors use: what it offers, shows and flags.

The server comes from npm, in the versions of package-lock.json next to this file.
"""

from __future__ import annotations

import itertools
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from declarative_train.components.layers import LAYERS
from declarative_train.components.optimizers import OPTIMIZERS
from tests.editor.lsp_client import LspClient
from tests.editor.texts import marked

pytestmark = pytest.mark.long

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
RECIPES = sorted((ROOT / "recipes").rglob("*.yaml"))
HEAD = "# yaml-language-server: $schema=../schemas/recipe.schema.json\n"
SETTINGS = {"yaml": {"validate": True, "hover": True, "completion": True, "schemaStore": {"enable": False}}}


@pytest.fixture(scope="module")
def server_script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Installed as package-lock.json says, in a folder of this session."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is not on this machine: the YAML language server cannot be installed")
    folder = tmp_path_factory.mktemp("yaml_language_server")
    for name in ("package.json", "package-lock.json"):
        shutil.copy(HERE / name, folder / name)
    command = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return folder / "node_modules" / "yaml-language-server" / "bin" / "yaml-language-server"


@pytest.fixture(scope="module")
def client(server_script: Path) -> Iterator[LspClient]:
    with LspClient(["node", str(server_script), "--stdio"], ROOT, settings=SETTINGS) as client:
        yield client


@pytest.fixture
def new_file() -> Path:
    return unsaved(ROOT / "recipes")


def unsaved(folder: Path) -> Path:
    """A recipe that is open in the editor but on no disk; each has a name of its own, since the server keeps texts."""
    return folder / f"_unsaved_{next(_NUMBERS)}.yaml"


_NUMBERS = itertools.count()


def offered(client: LspClient, path: Path, text: str) -> dict[str, Any]:
    plain, line, character = marked(HEAD + text)
    uri = client.open(path, plain)
    found = client.completions(uri, line, character)
    client.close(uri)
    return found


def shown(client: LspClient, path: Path, text: str) -> str:
    plain, line, character = marked(HEAD + text)
    uri = client.open(path, plain)
    found = client.hover(uri, line, character)
    client.close(uri)
    return found


def flagged(client: LspClient, path: Path, text: str) -> list[tuple[int, int, str]]:
    uri = client.open(path, text)
    found = client.wait_for_diagnostics(uri)
    client.close(uri)
    return [(d["range"]["start"]["line"], d["range"]["start"]["character"], d["message"]) for d in found]


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_is_found_in_a_shipped_recipe(client: LspClient, path: Path) -> None:
    assert path.read_text("utf-8").startswith("# yaml-language-server: $schema=")
    assert flagged(client, path, path.read_text("utf-8")) == []


def test_sections_are_offered(client: LspClient, new_file: Path) -> None:
    found = offered(client, new_file, "|")
    assert {"data", "model", "objective", "training", "parallelism", "layout"} <= found.keys()
    assert found["training"]["documentation"] == "Training: how long, with which batch sizes and which optimizer."


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("training:\n  |\n", {"epochs", "global_batch_size", "optimizer", "precision"}),
        ("training:\n  optimizer:\n    type: adamw\n    |\n", {"lr", "betas", "eps", "weight_decay", "amsgrad"}),
        ("training:\n  optimizer: {type: adamw, l|}\n", {"lr", "betas", "weight_decay"}),
        (
            "model:\n  graph:\n    a:\n      type: linear\n      |\n",
            {"out_features", "bias", "input", "inputs", "repeat", "when"},
        ),
        ("model:\n  graph:\n    a: {type: linear, o|}\n", {"out_features", "bias", "input", "repeat"}),
        ("model:\n  graph:\n    a: {type: gpt, h|}\n", {"heads", "layers", "width", "input"}),
        ("model:\n  blocks:\n    b:\n      |\n", {"params", "inputs", "graph", "output"}),
        ("model:\n  parameters:\n    norm*:\n      |\n", {"frozen", "lr_scale", "weight_decay", "init", "tie"}),
        ("objective:\n  loss: {type: cross_entropy, l|}\n", {"input", "target", "label_smoothing", "weight"}),
        ("data:\n  fields:\n    x: {c|}\n", {"column", "columns", "dtype", "normalize"}),
        ("parallelism:\n  pipeline:\n    stages: 2\n    |\n", {"schedule", "microbatches", "cut_before"}),
    ],
)
def test_keys_are_offered(client: LspClient, new_file: Path, text: str, keys: set[str]) -> None:
    found = offered(client, new_file, text)
    assert keys <= found.keys()
    others = {"lr", "out_features", "stages", "label_smoothing", "columns"} - keys
    assert not others & found.keys() or "gpt" in text
    silent = {key for key in keys if not found[key].get("documentation")}
    assert silent <= {"layers", "width"}  # params of the shipped block, whose file says nothing more of them


def test_what_is_offered_can_be_inserted(client: LspClient, new_file: Path) -> None:
    found = offered(client, new_file, "training:\n  optimizer: {type: adamw, l|}\n")
    assert found["weight_decay"]["insertText"] == "weight_decay: ${1|0.01,0|}"
    assert "\n" not in found["betas"]["insertText"]
    assert "Default: [0.9, 0.999]" in found["betas"]["documentation"]


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("training:\n  precision: |\n", {"fp32", "bf16", "fp16", "fp64"}),
        ("training:\n  optimizer: {type: |}\n", set(OPTIMIZERS)),
        ("model:\n  graph:\n    a: {type: |}\n", set(LAYERS) | {"gpt", "mlp", "resnet", "reuse"}),
        ("parallelism: |\n", {"single", "dp", "ddp", "fsdp", "pipeline"}),
        ("objective:\n  metrics: [|]\n", {"accuracy", "perplexity", "rmse"}),
    ],
)
def test_values_are_offered(client: LspClient, new_file: Path, text: str, values: set[str]) -> None:
    assert values <= offered(client, new_file, text).keys()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("trai|ning:\n  epochs: 3\n", "Training: how long, with which batch sizes and which optimizer."),
        ("training:\n  global_batch|_size: 3\n", "Samples (windows) in one optimizer step"),
        ("training:\n  optimizer: {type: adamw, weight|_decay: 0.1}\n", "weights decay by lr x this"),
        ("training:\n  optimizer: {type: ad|amw}\n", "Adam with decoupled weight decay"),
        ("model:\n  graph:\n    a: {type: lin|ear, out_features: 3}\n", "An affine map of the last dimension"),
        ("model:\n  graph:\n    a: {type: linear, out_f|eatures: 3}\n", "Size of the last dimension of the output;"),
        ("model:\n  graph:\n    a: {type: linear, re|peat: 3}\n", "The number of copies in a chain"),
        ("objective:\n  loss: {type: cross_entropy, tar|get: y}\n", "The expected values: usually a field."),
        (
            "parallelism: {pipeline: {sch|edule: gpipe}}\n",
            "Order in which a rank computes the forwards and backwards",
        ),
    ],
)
def test_hover_shows_the_words_of_the_field(client: LspClient, new_file: Path, text: str, words: str) -> None:
    assert words in shown(client, new_file, text)


@pytest.mark.parametrize(
    ("text", "places"),
    [
        ("trainin: {epochs: 3}\n", [(1, 0, "Property trainin is not allowed.")]),
        ("training:\n  epochs: 3\n  epoch: 3\n", [(3, 2, "Property epoch is not allowed.")]),
        ("training: {optimizer: {type: adamw, lrs: 2}}\n", [(1, 36, "Property lrs is not allowed.")]),
        (
            "model:\n  graph:\n    a: {type: linear, out_feature: 3}\n",
            [(3, 22, "Property out_feature is not allowed.")],
        ),
        (
            "model: {blocks: {b: {graph: {a: {type: linear, nope: 2}}}}}\n",
            [(1, 47, "Property nope is not allowed.")],
        ),
        ("parallelism: {pipeline: {stage: 3}}\n", [(1, 25, "Property stage is not allowed.")]),
        (
            "parallelism: {stages: 3}\n",  # the server shows the words, which come first
            [(1, 13, 'Value is not accepted. Valid values: "auto", "ddp", "dp", "fsdp", "pipeline", "single".')],
        ),
        ("training: {epochs: '{{ vars.n }}', clip_grad_norm: null}\n", []),
        ("model: {graph: {a: {type: my_block, anything: 3}, b: relu(a)}}\n", []),
    ],
)
def test_unknown_keys_are_flagged(
    client: LspClient, new_file: Path, text: str, places: list[tuple[int, int, str]]
) -> None:
    assert flagged(client, new_file, HEAD + text) == places


def test_a_wrong_value_names_the_ones_there_are(client: LspClient, new_file: Path) -> None:
    [(line, character, message)] = flagged(client, new_file, HEAD + "parallelism: ddq\n")
    assert (line, character) == (1, 13)
    assert '"ddp"' in message


def test_an_unknown_key_in_each_shipped_recipe_is_flagged(client: LspClient) -> None:
    for path in RECIPES:
        lines = path.read_text("utf-8").splitlines()
        row = next(number for number, line in enumerate(lines) if line and not line.startswith("#"))
        text = "\n".join([*lines[:row], "tarining: {}", *lines[row:]]) + "\n"
        assert flagged(client, unsaved(path.parent), text) == [(row, 0, "Property tarining is not allowed.")], path.name
