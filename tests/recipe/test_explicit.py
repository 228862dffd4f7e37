"""`dtrain show --explicit`: a recipe that leaves nothing to a default is compiled to the same plan."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from declarative_train import planner
from declarative_train import recipe as recipe_room
from declarative_train.app.main import main
from declarative_train.plan.codec import to_data
from declarative_train.plan.plan import Plan
from declarative_train.planner.text.describe import describe
from declarative_train.source.node import Mapping, to_value
from declarative_train.source.reader import read_text
from declarative_train.source.writing import flow, lines
from tests.alone import mark_packs, text_of_recipe

ROOT = Path(__file__).parents[2]
RECIPES = sorted([*(ROOT / "recipes").glob("*.yaml"), *(ROOT / "recipes" / "gallery").glob("*.yaml")])
SWITCHES = sorted((ROOT / "recipes" / "switches").glob("*.yaml"))
RIGHT = [path for path in sorted((ROOT / "tests" / "cases" / "ok").glob("*.yaml")) if path.stem != "fragment"]
SHIPPED = {path.stem: (path, ()) for path in [*RECIPES, *RIGHT]} | {
    f"compare_modes_{switch.stem}": (ROOT / "recipes" / "compare_modes.yaml", ("--with", str(switch)))
    for switch in SWITCHES
}
LONG = pytest.mark.long
LARGE = (
    "gpt_7b_auto_32xh100",
    "dpo_chat",
    "sft_llama",
    "gpt_stdlib",
    "digits_images",
    "digits_timm",
    "distil_llama",
    "orpo_chat",
    "reward_chat",
    "embed_chat",
)
OF_FILES: dict[str, Any] = {
    "files": (),
    "overrides": (),
    "recipe": {},
    "settings": {},
    "identity": "",
}  # where a plan comes from

START = """
data:
  source: {type: synthetic, kind: classification, rows: 64}
  fields: {x: {column: x}, y: {column: y}}
  split: {validation: 0.1}
objective: {loss: {type: cross_entropy, input: logits, target: y}}
training: {steps: 4, global_batch_size: 8, optimizer: {type: adam, lr: 1e-3}}
"""
SMALL = START + "model: {graph: {logits: {type: linear, out_features: 10, input: x}}}\n"


def compiled(path: str, *with_: str) -> Plan:
    """Compiling is the rest of what lint looks at."""
    loaded = recipe_room.load(path, with_=[each for each in with_ if each != "--with"])
    assert loaded.recipe is not None, loaded.diagnostics
    plan, found = planner.compile(loaded.recipe)
    assert plan is not None, found
    return plan


def explicit(capsys: pytest.CaptureFixture[str], path: Path, *words: str) -> str:
    capsys.readouterr()
    assert main(["show", "--explicit", str(path), *words]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ("", None),
        ("training: {early_stop: {metric: validation/loss, mode: min, patience: 2 steps}}", "1 epoch"),
        ("checkpoint: {best: {metric: validation/loss, mode: min}}", "1 epoch"),
        ("checkpoint: {best: {metric: validation/loss, mode: min}}\nevaluation: {every: 2 steps}", "2 steps"),
        ("checkpoint: {best: {metric: validation/loss, mode: min}}\ntraining: {steps: null, epochs: 0.5}", None),
    ],
)
def test_an_evaluation_that_another_key_asks_for_is_written(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, changes: str, wanted: str | None
) -> None:
    (tmp_path / "base.yaml").write_text("name: small\n" + SMALL)
    (tmp_path / "recipe.yaml").write_text(f"extends: base.yaml\n{changes}\n")
    text = explicit(capsys, tmp_path / "recipe.yaml")
    (tmp_path / "explicit.yaml").write_text(text)
    loaded = recipe_room.load(str(tmp_path / "explicit.yaml"))
    assert loaded.recipe is not None, loaded.diagnostics
    every = loaded.recipe.evaluation.every
    assert (None if every is None else str(every)) == wanted
    plans = [compiled(str(tmp_path / name)) for name in ("recipe.yaml", "explicit.yaml")]
    assert plans[0].evaluation == plans[1].evaluation


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[*([LONG] if name in LARGE else []), *param.marks])
        for name, param in zip(SHIPPED, mark_packs(SHIPPED, lambda name: text_of_recipe(SHIPPED[name][0])), strict=True)
    ],
)
def test_all_defaults_written_out_are_the_same_plan(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path, words = SHIPPED[name]
    monkeypatch.chdir(path.parent)
    written = tmp_path / "elsewhere.yaml"
    written.write_text(explicit(capsys, path, *words))
    meant, made = compiled(str(path), *words), compiled(str(written))
    assert made.fingerprint == meant.fingerprint
    assert replace(made, **OF_FILES) == replace(meant, **OF_FILES)
    monkeypatch.chdir(tmp_path)
    assert main(["lint", "--static", "elsewhere.yaml"]) == 0, capsys.readouterr().out
    assert explicit(capsys, written).partition("\n")[2] == written.read_text().partition("\n")[2]  # nothing is left


def test_defaults_of_sections_nodes_optimizers_and_blocks_stand_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(
        START + "model:\n  blocks:\n    own:\n"
        "      params: {width: 8, rate: {type: float, default: 0.5}}\n      inputs: [x]\n"
        "      graph:\n        a: {type: linear, out_features: '{{ params.width }}'}\n"
        "        b: {type: dropout, p: '{{ params.rate }}'}\n"
        "      output: b\n"
        "  graph:\n    one: {type: own, input: x}\n    two: {type: mlp, hidden: [4]}\n"
        "    logits: {type: linear, out_features: 10}\n"
        "  parameters: {logits: {init: {type: normal, std: 0.1}}}\n"
    )
    text = explicit(capsys, path)
    for wanted in (
        "one: {type: own, input: x, width: 8, rate: 0.5}",
        "two: {type: mlp, hidden: [4], activation: relu, dropout: 0.0, bias: true}",
        'a: {type: linear, out_features: "{{ params.width }}", bias: true}',
        "init: {type: normal, std: 0.1, mean: 0.0}",
        "optimizer: {type: adam, lr: 0.001, betas: [0.9, 0.999], eps: 1e-08, weight_decay: 0.0, amsgrad: false}",
        "gradient_accumulation_steps: 1",
        "lr_schedule: {type: constant}",
        "language: 1",
        "gpus: 1",
    ):
        assert wanted in text, text


def test_what_comes_from_the_environment_stays_a_template(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("A_SECRET", "hunter2")
    path = tmp_path / "r.yaml"
    path.write_text(
        "vars: {secret: '{{ env.A_SECRET }}', more: '{{ vars.secret }}!', width: '{{ 2 * 5 }}'}\n"
        "meta: {note: 'it is {{ vars.more }}'}\nlogging: {dir: 'runs/{{ env.A_SECRET }}'}\n"
        + SMALL.replace("out_features: 10", "out_features: '{{ vars.width }}'")
    )
    text = explicit(capsys, path)
    assert "hunter2" not in text
    assert "{{ vars.more }}" in text
    assert "out_features: 10" in text
    (tmp_path / "again.yaml").write_text(text)
    assert compiled(str(tmp_path / "again.yaml")).logging.dir == "runs/hunter2"


def test_a_template_of_a_repeat_stays_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(
        START + "model:\n  graph:\n"
        "    layers: {type: linear, repeat: 3, out_features: '{{ 8 * 2 ** index }}', input: x}\n"
        "    logits: {type: linear, out_features: 10}\n"
        "  parameters: {layers.*: {lr_scale: '{{ 0.5 ** index }}'}}\n"
    )
    text = explicit(capsys, path)
    assert 'out_features: "{{ 8 * 2 ** index }}", input: x, bias: true' in text
    (tmp_path / "again.yaml").write_text(text)
    assert compiled(str(tmp_path / "again.yaml")).fingerprint == compiled(str(path)).fingerprint


def test_what_a_recipe_with_mistakes_holds_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(SMALL.replace("lr: 1e-3", "lr: much") + "layout: {gpus: 1}\nextra: 3\n")
    assert main(["show", str(path)]) == 1
    said = capsys.readouterr()
    assert "S003" in said.err
    shown = {line.split()[0]: line.split()[1] for line in said.out.splitlines() if line}
    assert shown["training.optimizer.lr"] == '"much"'
    assert shown["layout.device"] == '"auto"'  # a section that is right has its defaults
    assert shown["data.fields.x.missing"] == '"error"'
    assert shown["extra"] == "3"
    assert main(["show", "--explicit", str(path)]) == 1
    assert not capsys.readouterr().out


def test_of_a_text_that_is_no_yaml_nothing_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "r.yaml").write_text("name: [\n")
    assert main(["show", str(tmp_path / "r.yaml")]) == 1
    said = capsys.readouterr()
    assert said.err
    assert not said.out


@pytest.mark.parametrize(
    "value",
    ["", "a", "no", "Null", "1e-3", ".5", "0x10", "3 epochs", "5%", "a: b", "- a", "*a", "a #b", '"', "\\", "a\nb", "ä",
     "{{ x }}", " a", "~", "=", "a,b", "[x]", 1e-8, 3, 30.0, float("inf"), -float("inf"), True, None, [], {},
     [1, [2, "x y"]], {"a.*": {"b c": [None]}, "": 0, "{0..7}": "x"}],
)  # fmt: skip
def test_what_is_written_is_read_as_the_same(value: object) -> None:
    for text in (f"key: {flow(value)}\n", "".join(f"{line}\n" for line in lines({"key": value}))):
        root, found = read_text("x.yaml", text)
        assert not [each for each in found if each.is_error], (text, found)
        assert isinstance(root, Mapping)
        assert _listed(to_value(root)) == {"key": value}, text


def _listed(value: object) -> object:
    if isinstance(value, dict):
        return {key: _listed(item) for key, item in value.items()}
    return [_listed(item) for item in value] if isinstance(value, tuple) else value


def test_the_number_of_the_language_is_in_the_plan_and_in_show(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(SMALL)
    plan = compiled(str(path))
    assert to_data(plan)["language"] == 1
    assert describe(plan).splitlines()[0].startswith("r: single, on one device, seed 0, language 1, plan ")
    assert main(["show", str(path)]) == 0
    assert re.search(r"^language +1 +# default$", capsys.readouterr().out, re.MULTILINE)
    path.write_text("language: 1\nrequires: dtrain>=0.1\n" + SMALL)
    assert compiled(str(path)).fingerprint == plan.fingerprint
    assert main(["show", str(path)]) == 0
    assert re.search(r"^language +1 +# .*r\.yaml:1$", capsys.readouterr().out, re.MULTILINE)


@pytest.mark.packs
def test_losses_on_answers_are_written_out_as_expressions(capsys: pytest.CaptureFixture[str]) -> None:
    """A comment at the end has a line for each expression of such a block, with its params; a model is left out."""
    assert main(["show", "--explicit", str(ROOT / "recipes" / "gallery" / "dpo_chat.yaml"), "--set",
                 "model.graph.dpo.label_smoothing=0.1"]) == 0  # fmt: skip
    comment = capsys.readouterr().out.partition("\n#\n")[2]
    titles = [line for line in comment.splitlines() if not line.startswith("#  ") and line != "#"]
    assert [title.partition("(")[0] for title in titles] == ["# sequence_log_likelihood", "# dpo"]
    assert "dpo(chosen, rejected, chosen_reference, rejected_reference) with beta: 0.1, label_smoothing: 0.1" in comment
    assert "#   apart: 0.1 * ((chosen - chosen_reference) - (rejected - rejected_reference))\n" in comment
    assert "#   each: -0.9 * log_sigmoid(apart) - 0.1 * log_sigmoid(-apart)\n" in comment
