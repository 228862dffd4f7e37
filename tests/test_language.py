"""The settled questions of the recipe language, each by its number: what a user may rely on.

Every test lays a few lines over a small recipe, or gives a whole graph, and looks at what lint says and what is
planned. The numbers behind some of them (losses, gradients, checkpoints) are proven where they are made.
"""

from __future__ import annotations

import json
import os
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from declarative_train import planner
from declarative_train import recipe as recipe_room
from declarative_train.app.main import main
from declarative_train.core.diagnostics.diagnostic import Diagnostic, Severity
from declarative_train.data.rank_batches import EvaluationBatches, TrainingBatches
from declarative_train.data.tensor_sets import open_sets
from declarative_train.engine.engine import Engine
from declarative_train.engine.step.objective import Objective
from declarative_train.graph.build import build
from declarative_train.graph.initialise import initialise
from declarative_train.plan.plan import Plan
from declarative_train.planner.text.describe import describe
from declarative_train.run import rank
from declarative_train.run.launch import run as run_plan
from tests.started import run as run_recipe

HEAD = """\
name: asked
data:
  source: {type: synthetic, kind: classification, rows: 1000, features: 20, classes: 10}
  fields:
    x: {column: x}
    y: {column: y}
  split: {validation: {type: last, fraction: 0.1}}
"""
MODEL = """\
model:
  graph:
    hidden: {type: linear, out_features: 32, input: x}
    act:    {type: relu}
    logits: {type: linear, out_features: 10}
"""
TAIL = """\
objective:
  loss: {type: cross_entropy, input: logits, target: y}
  metrics: [accuracy]
training: {epochs: 5, global_batch_size: 96, optimizer: {type: adam, lr: 0.01}}
"""
SMALL = HEAD + MODEL + TAIL


@dataclass(frozen=True)
class Answer:
    plan: Plan | None
    diagnostics: list[Diagnostic]

    @property
    def codes(self) -> list[str]:
        return [each.code for each in self.diagnostics]

    @property
    def only(self) -> Diagnostic:
        assert len(self.diagnostics) == 1, self.diagnostics
        return self.diagnostics[0]

    @property
    def clean(self) -> Plan:
        assert self.diagnostics == []
        assert self.plan is not None
        return self.plan

    def inputs(self, node: str) -> dict[str, str]:
        return dict(self.clean.graph.node(node).inputs)


class Ask:
    """Recipes in a folder of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, over: str = "", *set_: str, base: str = SMALL, plugins: bool = False) -> Answer:
        """`over` laid over the base."""
        (self.folder / "base.yaml").write_text(base)
        (self.folder / "over.yaml").write_text("extends: base.yaml\n" + textwrap.dedent(over))
        return self.file("over.yaml", set_, plugins)

    def graph(self, graph: str, *, blocks: str = "", tail: str = TAIL, head: str = HEAD, more: str = "") -> Answer:
        """A whole recipe with this model."""
        text = head + "model:\n"
        if blocks:
            text += "  blocks:\n" + textwrap.indent(textwrap.dedent(blocks).strip("\n"), "    ") + "\n"
        text += "  graph:\n" + textwrap.indent(textwrap.dedent(graph).strip("\n"), "    ") + "\n"
        (self.folder / "whole.yaml").write_text(text + textwrap.dedent(tail) + textwrap.dedent(more))
        return self.file("whole.yaml")

    def file(self, name: str, set_: Sequence[str] = (), plugins: bool = False) -> Answer:
        loaded = recipe_room.load(str(self.folder / name), set_=set_, plugins=plugins)
        plan, diagnostics = None, list(loaded.diagnostics)
        if loaded.recipe is not None:
            plan, more = planner.compile(loaded.recipe)
            diagnostics += [each for each in more if each.code != "G026"]  # the models here are chains of linear layers
        return Answer(plan, diagnostics)


@pytest.fixture
def ask(tmp_path: Path) -> Ask:
    return Ask(tmp_path)


# Wiring


def test_q01_input_is_inputs_with_one_entry(ask: Ask) -> None:
    one = ask("model: {graph: {logits: {input: act}}}").clean
    many = ask("model: {graph: {logits: {inputs: [act]}}}").clean
    assert one.graph == many.graph
    both = ask("model: {graph: {logits: {input: act, inputs: [act]}}}")
    assert both.codes == ["W004"]


def test_q01_a_list_binds_ports_in_order(ask: Ask) -> None:
    blocks = """
    pair:
      inputs: [first, second]
      graph: {out: first - 2 * second}
      output: out
    """
    graph = """
    a: {type: linear, out_features: 10, input: x}
    b: {type: linear, out_features: 10, input: x}
    logits: {type: pair, inputs: [b, a]}
    """
    assert ask.graph(graph, blocks=blocks).inputs("logits") == {"first": "b:output", "second": "a:output"}


def test_q02_the_node_above_is_the_entry_above_in_the_merged_text(ask: Ask) -> None:
    assert ask("model: {graph: {act: null, hidden: tanh(x)}}").codes == ["W009"]
    answer = ask.graph("""
    hidden: {type: linear, out_features: 16, input: x}
    twice:  2 * hidden
    logits: {type: linear, out_features: 10}
    """)
    assert answer.inputs("logits") == {"x": "twice:output"}


def test_q02_it_fills_only_the_first_port(ask: Ask) -> None:
    blocks = "pair: {inputs: [first, second], graph: {out: first + second}, output: out}"
    answer = ask.graph("a: {type: linear, out_features: 10, input: x}\nlogits: {type: pair}", blocks=blocks)
    assert answer.codes == ["W005"]
    assert "second" in answer.only.message


def test_q02_first_nodes(ask: Ask) -> None:
    assert ask.graph("logits: {type: linear, out_features: 10}").codes[0] == "W005"
    blocks = "wide: {inputs: [a], graph: {inner: {type: linear, out_features: 10}}, output: inner}"
    scope = ask.graph("logits: {type: wide, input: x}", blocks=blocks).clean.graph.node("logits").graph
    assert scope is not None
    assert scope.node("inner").inputs == {"x": "a"}


def test_q03_references_point_down_and_a_moved_wire_is_told(ask: Ask) -> None:
    answer = ask.graph("""
    logits: {type: linear, out_features: 10, input: later}
    later:  {type: linear, out_features: 4, input: x}
    """)
    assert answer.inputs("logits") == {"x": "later:output"}
    moved = ask("model: {graph: {act: null}}").only
    assert (moved.code, moved.severity) == ("W009", Severity.WARNING)
    assert "`act`" in moved.message
    assert "`hidden`" in moved.message


def test_q04_fields_and_nodes_share_one_namespace(ask: Ask) -> None:
    assert "W010" in ask("model: {graph: {y: tanh(x)}}").codes


@pytest.mark.parametrize(("inside", "code"), [("x + y", "W001"), ("x + outer", "W001"), ("'{{ vars.n }} * x'", "T002")])
def test_q04_a_block_sees_its_inputs_and_params_only(ask: Ask, inside: str, code: str) -> None:
    blocks = f"own: {{inputs: [x], graph: {{out: {inside}}}, output: out}}"
    graph = "outer: {type: linear, out_features: 10, input: x}\nlogits: {type: own, input: outer}"
    assert ask.graph(graph, blocks=blocks, more="vars: {n: 3}\n").codes[0] == code


@pytest.mark.parametrize("name", ["Hidden", "_h", "h-1", "2h", "a.b"])
def test_q05_names_have_one_form(ask: Ask, name: str) -> None:
    assert "B003" in ask(f"model: {{graph: {{'{name}': tanh(x)}}}}").codes


def test_q05_every_name_is_legal_in_an_expression(ask: Ask) -> None:
    head = HEAD.replace("x: {column: x}", "lambda: {column: x}")
    answer = ask.graph("if_2: 2 * lambda\nlogits: {type: linear, out_features: 10}", head=head).clean
    assert [node.name for node in answer.batch_graph.nodes] == ["if_2"]


@pytest.mark.parametrize("word", ["type", "input", "inputs", "repeat", "when"])
def test_q06_reserved_words_are_refused_where_they_are_declared(ask: Ask, word: str) -> None:
    blocks = f"wide:\n  params: {{{word}: 3}}\n  inputs: [a]\n  graph: {{o: 2 * a}}\n  output: o"
    answer = ask.graph("logits: {type: wide, input: x}", blocks=blocks)
    assert answer.codes[0] == "B002"
    assert answer.diagnostics[0].span.line == 11


def test_q06_a_shipped_type_is_not_shadowed(ask: Ask) -> None:
    answer = ask("model: {blocks: {relu: {inputs: [a], graph: {o: 2 * a}, output: o}}}")
    assert "B001" in answer.codes


def test_q07_what_nobody_uses(ask: Ask) -> None:
    dead = ask("model: {graph: {lost: {type: relu, input: hidden}}}").only
    assert (dead.code, dead.is_error) == ("W007", True)
    assert dead.help
    field = ask("data: {fields: {z: {column: y}}}").only
    assert (field.code, field.severity) == ("W008", Severity.WARNING)
    blocks = """
    both: {inputs: [a], graph: {twice: 2 * a, third: a / 3}, outputs: {twice: twice, third: third}}
    never: {inputs: [a], graph: {o: 2 * a}, output: o}
    """
    graph = "two: {type: both, input: x}\nlogits: {type: linear, out_features: 10}"
    assert ask.graph(graph, blocks=blocks).clean


def test_q08_copies_have_numbers_and_units_are_opened(ask: Ask) -> None:
    graph = """
    layers: {type: linear, out_features: 16, repeat: 1, input: x}
    logits: {type: linear, out_features: 10}
    """
    answer = ask.graph(graph)
    assert [node.name for node in answer.clean.graph.nodes] == ["layers.0", "logits"]
    assert answer.inputs("logits") == {"x": "layers.0:output"}
    blocks = """
    trunk:
      inputs: [a]
      graph: {first: {type: linear, out_features: 20}, layers: {type: linear, out_features: 20, repeat: 4}}
      output: layers
    """
    plan = ask.graph("trunk: {type: trunk, input: x}\nlogits: {type: linear, out_features: 10}", blocks=blocks).clean
    assert {f"trunk.layers.{i}" for i in range(4)} <= set(plan.layout.units)
    assert "trunk.layers.3.weight" in {each.name for each in plan.parameters}
    assert dict(build(plan.graph).named_modules())["trunk.layers.3"]  # the modules stay nested


PIPELINE = "parallelism: {pipeline: {stages: 2, microbatches: 4}}\nlayout: {gpus: 2}\n"


def test_q09_what_comes_from_fields_alone_does_not_travel(ask: Ask) -> None:
    graph = """
    keep:   2 * x
    first:  {type: linear, out_features: 20, input: x}
    second: {type: linear, out_features: 20}
    third:  second + keep
    logits: {type: linear, out_features: 10}
    """
    plan = ask.graph(graph, more=PIPELINE.replace("4}", "4, cut_before: [second]}")).clean
    assert plan.layout.pipeline is not None
    assert [node.name for node in plan.batch_graph.nodes] == ["keep"]
    assert plan.layout.pipeline.wires == (("first",),)


# Shapes


def test_q10_the_batch_is_dimension_0_and_refused(ask: Ask) -> None:
    plan = ask().clean
    assert next(field for field in plan.data.fields if field.name == "x").tensor.shape == (20,)
    assert ask("model: {graph: {act: 'sum(hidden, dim=0)'}}").codes[0] == "E005"
    assert ask("model: {graph: {act: 'hidden[0]'}}").codes[0] == "E005"


def test_q11_a_column_has_no_dimension_and_losses_do_not_broadcast(ask: Ask) -> None:
    head = HEAD.replace("kind: classification", "kind: regression").replace(", classes: 10", "")
    tail = TAIL.replace("cross_entropy", "mse").replace("accuracy", "rmse")
    graph = "logits: {type: linear, out_features: 1, input: x}"
    problem = ask.graph(graph, head=head, tail=tail).only
    assert (problem.code, problem.is_error) == ("O101", True)
    words = problem.message + (problem.help or "")
    assert "[:, 0]" in words  # of the input
    assert "columns" in words  # or of the target
    assert ask.graph(graph, head=head.replace("{column: y}", "{columns: [y]}"), tail=tail).clean
    assert ask.graph(graph + "\nflat: logits[:, 0]", head=head, tail=tail.replace("logits", "flat")).clean


def test_q12_classes_are_the_last_dimension_unless_said(ask: Ask) -> None:
    assert ask().clean.objective.terms[0].component["class_dim"] == -1
    head = HEAD.replace("kind: classification", "kind: images").replace(", features: 20", ", size: 8")
    head = head.replace("x: {column: x}", "x: {column: image}").replace("y: {column: y}", "y: {column: label}")
    graph = "logits: {type: conv2d, out_channels: 10, kernel_size: 8, input: x}"  # (B, 10, 1, 1)
    flat = graph + "\nscores: logits[:, :, :, 0]\ntarget: y[:, None]"
    assert "O101" in ask.graph(graph, head=head).codes
    tail = TAIL.replace("input: logits, target: y", "input: scores, target: target")
    assert "O101" in ask.graph(flat, head=head, tail=tail).codes
    assert ask.graph(flat, head=head, tail=tail.replace("target: target", "target: target, class_dim: 1")).clean


def test_q13_patterns_keep_the_files_order(ask: Ask) -> None:
    names = ["p2", "p10", "p1", "y"]
    rows = [[2 + i % 7, 10 + i % 7, 1 + i % 7, i % 10] for i in range(100)]
    (ask.folder / "t.csv").write_text("\n".join([",".join(names), *(",".join(map(str, row)) for row in rows)]))
    plan = ask(
        "data: {source: {type: csv, path: t.csv}, fields: {x: {columns: 'p*'}, y: {dtype: int64}}}",
        "training.global_batch_size=30",
    ).clean
    found = open_sets(plan.data)["training"].gather(np.array([0, 5]))["x"]
    assert found.tolist() == [[2, 10, 1], [7, 15, 6]]


def test_q13_recurrent_states_are_batch_layers_hidden(ask: Ask) -> None:
    plan = ask.graph("""
    rows:   reshape(x, B, 5, 4)
    lstm:   {type: lstm, hidden_size: 7, num_layers: 3}
    last:   lstm.hidden[:, -1]
    logits: {type: linear, out_features: 10}
    """).clean
    assert plan.graph.spec("lstm:hidden").shape == (3, 7)
    assert plan.graph.spec("last:output").shape == (7,)


# Loss and metrics


def test_q14_what_sets_a_denominator_comes_from_fields(ask: Ask) -> None:
    tail = TAIL.replace("target: y}", "target: y, mask: keep}")
    graph = textwrap.dedent(MODEL).split("graph:\n")[1]
    assert ask.graph(textwrap.dedent(graph) + "keep: x[:, 0] > 0", tail=tail).clean
    refused = ask.graph(textwrap.dedent(graph) + "keep: hidden[:, 0] > 0", tail=tail)
    assert "O102" in refused.codes


SEVERAL = """
objective:
  loss: null
  losses:
    kind: {type: cross_entropy, input: logits, target: y, ignore_index: 3, mask: keep, weight: 2.0}
    size: {type: mean, input: size, weight: 0.25}
  metrics: {accuracy: {of: kind}}
model: {graph: {size: "mean(logits ** 2, dim=-1)", keep: "x[:, 0] > 0"}}
"""


def test_q15_a_metric_of_several_losses_says_of_which(ask: Ask) -> None:
    (metric,) = ask(SEVERAL).clean.objective.metrics
    assert (metric.ignore_index, metric.mask) == (3, "keep")
    assert "O001" in ask(SEVERAL.replace("{accuracy: {of: kind}}", "[accuracy]")).codes


def run(folder: Path, over: str, *set_: str) -> list[dict[str, Any]]:
    """The events of a real run of the small recipe under `over`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "base.yaml").write_text(SMALL)
    (folder / "over.yaml").write_text("extends: base.yaml\n" + textwrap.dedent(over))
    words = [word for each in set_ for word in ("--set", each)]
    return run_recipe(folder / "over.yaml", folder / "runs", *words)


SEVERAL_RUN = (
    SEVERAL
    + """
training:
  epochs: 1
  global_batch_size: 300
  precision: bf16
  lr_schedule: {type: linear, warmup: 1 step}
evaluation: {every: 1 epoch}
checkpoint: {every: 1 epoch}
"""
)


HALF_AND_F1 = (
    "model.parameters={hidden: {lr_scale: 0.5}}",
    "objective.metrics={accuracy: {of: kind}, f1: {of: kind}}",
)


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """One run that several questions look at."""
    folder = tmp_path_factory.mktemp("several")
    return folder, run(folder, SEVERAL_RUN, *HALF_AND_F1)


def of(events: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [event for event in events if event["event"] == kind]


def test_q15_the_total_is_the_weighted_sum_of_the_terms(several: tuple[Path, list[dict[str, Any]]]) -> None:
    steps = of(several[1], "StepDone")
    assert len(steps) == 3
    for step in steps:
        assert step["loss"] == pytest.approx(2 * step["terms"]["kind"] + 0.25 * step["terms"]["size"], rel=1e-5)


def test_q16_evaluation_is_of_the_same_terms_and_training_metrics_are_means(
    several: tuple[Path, list[dict[str, Any]]],
) -> None:
    (found,) = of(several[1], "EvaluationDone")
    values = found["values"]
    assert found["num_samples"] == 100
    total = 2 * values["validation/loss/kind"] + 0.25 * values["validation/loss/size"]
    assert values["validation/loss"] == pytest.approx(total, rel=1e-5)
    assert "validation/f1" in values
    assert set(of(several[1], "StepDone")[0]["metrics"]) == {"accuracy"}  # f1 is no mean


def test_q16_evaluation_is_exact_whatever_its_batches(
    several: tuple[Path, list[dict[str, Any]]], tmp_path: Path
) -> None:
    more = "model.parameters={hidden: {lr_scale: 0.5}}", "evaluation.batch_size=7"
    (found,) = of(run(tmp_path, SEVERAL_RUN, *more), "EvaluationDone")
    (wanted,) = of(several[1], "EvaluationDone")
    for name in ("validation/loss", "validation/loss/kind", "validation/accuracy"):
        assert found["values"][name] == pytest.approx(wanted["values"][name], rel=1e-5)


def test_q17_balanced_weights_come_from_the_training_rows(ask: Ask, capsys: pytest.CaptureFixture[str]) -> None:
    labels = [0] * 60 + [1] * 20 + [1] * 20  # the last 20 are the validation set
    (ask.folder / "t.csv").write_text("\n".join(["a,y", *(f"{i % 7 - 3},{label}" for i, label in enumerate(labels))]))
    over = """
    data: {source: {type: csv, path: t.csv}, fields: {x: {columns: [a]}}, split: {validation: {fraction: 0.2}}}
    model: {graph: {logits: {out_features: 2}}}
    objective: {loss: {class_weights: balanced}}
    training: {global_batch_size: 40}
    """
    plan = ask(over.replace("{columns: [a]}", "{columns: [a]}, y: {type: category, column: y, num_classes: 2}")).plan
    assert plan is not None
    weights = plan.objective.terms[0].component["class_weights"]
    assert weights == pytest.approx([80 / (2 * 60), 80 / (2 * 20)])
    assert main(["show", str(ask.folder / "over.yaml")]) == 0
    assert "0.6667" in capsys.readouterr().out


# Templates, params


def test_q18_one_template_has_its_own_type_and_text_is_never_read_again(ask: Ask) -> None:
    assert ask("vars: {n: 8}\nmodel: {graph: {hidden: {out_features: '{{ vars.n * 2 }}'}}}").clean
    assert "S003" in ask("vars: {n: 8}\nmodel: {graph: {hidden: {out_features: '1{{ vars.n }}'}}}").codes
    assert "S003" in ask("training: {optimizer: {lr: \"{{ '1e-4' }}\"}}").codes


def test_q19_rendering_comes_last(ask: Ask) -> None:
    base = SMALL.replace("out_features: 32", "out_features: '{{ vars.width }}'") + "vars: {width: 32, half: 16}\n"
    widths = {"": 32, "vars: {width: 48}": 48, "vars: {width: '{{ vars.half + 1 }}'}": 17}
    for over, width in widths.items():
        assert ask(over, base=base).clean.graph.spec("hidden:output").shape == (width,)
    assert ask("vars: {width: 48}", "vars.width=64", base=base).clean.graph.spec("hidden:output").shape == (64,)
    assert "T004" in ask("vars: {half: '{{ vars.width }}', width: '{{ vars.half }}'}", base=base).codes


@pytest.mark.parametrize("name", ["params.n", "index", "training.epochs", "model", "x"])
def test_q20_names_of_other_places_are_undefined(ask: Ask, name: str) -> None:
    assert ask(f"model: {{graph: {{hidden: {{out_features: '{{{{ {name} }}}}'}}}}}}").codes[0] == "T002"


def test_q20_env_and_index(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASKED_NAME", "named")
    assert ask("name: '{{ env.ASKED_NAME }}'").clean.name == "named"
    assert ask("name: '{{ env.NEVER_SET_ANYWHERE }}'").codes == ["T003"]
    plan = ask("model: {graph: {hidden: {repeat: 3, out_features: '{{ 8 * (index + 1) }}'}}}").clean
    assert [plan.graph.spec(f"hidden.{i}:output").shape for i in range(3)] == [(8,), (16,), (24,)]


def test_q21_keys_are_never_templates_but_a_type_may_be_one(ask: Ask) -> None:
    assert "T007" in ask("vars: {n: a}\nmodel: {graph: {'{{ vars.n }}': tanh(x)}}").codes
    plan = ask("vars: {act: gelu}\nmodel: {graph: {act: {type: '{{ vars.act }}'}}}").clean
    assert plan.graph.node("act").component["type"] == "gelu"
    refused = ask("vars: {act: rleu}\nmodel: {graph: {act: {type: '{{ vars.act }}'}}}")
    assert refused.codes == ["S005"]
    assert "relu" in (refused.only.help or "")


@pytest.mark.parametrize(
    ("params", "given", "code"),
    [
        ("n: 3", "", None),
        ("n: 3", ", n: hello", "S003"),
        ("n: {type: int, min: 1}", "", "S002"),
        ("n: {type: int, min: 1}", ", n: 4", None),
        ("n: {type: int, min: 1}", ", n: 0", "S004"),
    ],
)
def test_q22_the_default_of_a_param_gives_its_type(ask: Ask, params: str, given: str, code: str | None) -> None:
    blocks = f"""
    wide:
      params: {{{params}}}
      inputs: [a]
      graph: {{o: {{type: linear, out_features: "{{{{ params.n }}}}"}}}}
      output: o
    """
    graph = f"w: {{type: wide, input: x{given}}}\nlogits: {{type: linear, out_features: 10}}"
    answer = ask.graph(graph, blocks=blocks)
    assert answer.codes == ([] if code is None else [code])


def test_q23_where_paths_begin(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = ask.folder / "elsewhere"
    (ask.folder / "deep").mkdir()
    elsewhere.mkdir()
    for folder, rows in ((ask.folder / "deep", 50), (elsewhere, 70)):
        (folder / "t.csv").write_text("\n".join(["a,y", *(f"{i % 7 - 3},{i % 10}" for i in range(rows))]))
    base = SMALL.replace(
        "{type: synthetic, kind: classification, rows: 1000, features: 20, classes: 10}", "{type: csv, path: t.csv}"
    )
    (ask.folder / "deep" / "deep.yaml").write_text(
        base.replace("x: {column: x}", "x: {columns: [a]}").replace("{column: y}", "{column: y, dtype: int64}")
    )
    (ask.folder / "over.yaml").write_text("extends: deep/deep.yaml\ntraining: {global_batch_size: 10}\n")
    monkeypatch.chdir(elsewhere)
    plan = ask.file("over.yaml").plan
    assert plan is not None
    assert plan.data.set("training").num_samples == 45
    assert plan.logging.dir == "runs"  # of the working directory
    plan = ask.file("over.yaml", ["data.source.path=t.csv"]).plan
    assert plan is not None
    assert plan.data.set("training").num_samples == 63


# Durations, batch


@pytest.mark.parametrize(
    ("duration", "steps"),
    [("7 steps", 7), ("1 step", 1), ("0.5 epochs", 5), ("5%", 3), ("100 samples", 2), ("0.01 epochs", 1)],
)
def test_q24_durations_are_whole_steps_and_shown(ask: Ask, duration: str, steps: int) -> None:
    plan = ask(f"evaluation: {{every: {duration}}}").clean  # 50 steps in 5 epochs
    assert plan.evaluation is not None
    assert plan.evaluation.every_steps == steps
    assert f"validation every {steps} step" in describe(plan)


def test_q24_a_bare_number_is_an_error_with_the_fix(ask: Ask) -> None:
    problem = ask("evaluation: {every: 100}").only
    assert (problem.code, problem.is_error) == ("R001", True)
    assert "100 steps" in (problem.help or "")


def test_q25_one_batch_number_and_what_follows(ask: Ask) -> None:
    ddp = "parallelism: ddp\nlayout: {gpus: 2}\n"
    batch = ask(ddp + "training: {gradient_accumulation_steps: 4}").clean.batch
    assert (batch.data_parallel_size, batch.accumulation, batch.microbatch_size) == (2, 4, 12)
    assert batch == ask(ddp + "training: {microbatch_size: 12}").clean.batch
    assert batch.steps_per_epoch == 10  # a step is an optimizer step, of 96 samples
    pipeline = ask(PIPELINE + "training: {gradient_accumulation_steps: 2}").clean.batch
    assert (pipeline.accumulation * pipeline.num_microbatches, pipeline.microbatch_size) == (8, 12)
    refused = ask(ddp + "training: {global_batch_size: 97}").only
    assert refused.code == "R003"
    assert "96" in (refused.help or "")


def test_q26_the_last_partial_batch(ask: Ask) -> None:
    keep, drop = ask().clean.batch, ask("data: {last_batch: drop}").clean.batch
    assert (keep.steps_per_epoch, drop.steps_per_epoch) == (10, 9)  # 900 samples in batches of 96
    assert not keep.pad_to_full
    assert ask(PIPELINE).clean.batch.pad_to_full
    assert "padded with rows of weight 0" in describe(ask(PIPELINE).clean)


def test_q27_an_lr_schedule_is_a_factor_on_every_group(several: tuple[Path, list[dict[str, Any]]]) -> None:
    rates = [sorted(step["lr"].values()) for step in of(several[1], "StepDone")]
    for low, high in rates:
        assert low == pytest.approx(high / 2)
    assert rates[0][1] < rates[1][1] <= 0.01  # the warm-up of 1 step lies inside the run
    assert rates[2][1] < rates[1][1]


def test_q28_shuffle_is_of_training_only(ask: Ask) -> None:
    (ask.folder / "t.csv").write_text("\n".join(["place,y", *(f"{i},{i % 10}" for i in range(1000))]))
    source = "data: {source: {type: csv, path: t.csv}, fields: {x: {columns: [place]}, y: {dtype: int64}},"
    source += " split: {validation: {type: random, fraction: 0.1}}"
    plan = ask(source + ", shuffle: true}", "training.global_batch_size=100").plan
    assert plan is not None
    sets = open_sets(plan.data)
    looked_at = EvaluationBatches(plan.data, "validation", sets, batch_size=7).iterate()
    places = torch.cat([batch.tensors["x"][:, 0] for batch in looked_at]).int().tolist()
    assert len(places) == 100
    assert (
        places == sorted(places) != list(range(places[0], places[0] + 100))
    )  # rows from all over, in the file's order
    training = TrainingBatches(plan.data, plan.batch, 0, sets)
    first, second = (epoch_of(training, first_step) for first_step in (1, 10))
    assert sorted(first) == sorted(second) == list(range(900))
    assert first != sorted(first)
    assert first != second
    plain = ask(source + ", shuffle: false}", "training.global_batch_size=100").plan
    assert plan is not None
    in_order = TrainingBatches(plain.data, plain.batch, 0, open_sets(plain.data))
    assert epoch_of(in_order, 1) == epoch_of(in_order, 10) == list(range(900))


def epoch_of(batches: TrainingBatches, first_step: int) -> list[int]:
    """The samples of 9 steps."""
    steps = batches.iterate(first_step, 9)
    return [int(sample) for step in steps for batch in step for sample in batch.sample_ids]


def test_q29_statistics_see_the_training_rows_only(ask: Ask) -> None:
    rows = [[1.0 if i < 80 else 1000.0, i % 10] for i in range(100)]
    rows[0][0] = 3.0
    (ask.folder / "t.csv").write_text("\n".join(["a,y", *(f"{a},{y}" for a, y in rows)]))
    over = (
        "data: {source: {type: csv, path: t.csv}, fields: {x: {columns: [a], normalize: standard}, y: {dtype: int64}},"
    )
    over += " split: {validation: {fraction: 0.1}, test: {type: last, fraction: 0.1}}}"
    plan = ask(over, "training.global_batch_size=40").clean
    training = open_sets(plan.data)["training"].gather(np.arange(80))["x"]
    assert training.mean().item() == pytest.approx(0, abs=1e-4)
    sets = open_sets(plan.data)
    assert sets["validation"].gather(np.arange(10))["y"].tolist() == [i % 10 for i in range(80, 90)]
    assert sets["test"].gather(np.arange(10))["y"].tolist() == [i % 10 for i in range(90, 100)]


# Modes


def started(plan: Plan) -> dict[str, torch.Tensor]:
    module = build(plan.graph)
    initialise(module, plan.graph, plan.parameters, plan.seed)
    return {name: each.detach() for name, each in module.named_parameters()}


def test_q30_parameters_start_from_seed_and_name(ask: Ask) -> None:
    one = started(ask().clean)
    other = started(
        ask("model: {graph: {between: {type: linear, out_features: 32, input: hidden}, act: {input: between}}}").clean
    )
    for name in ("hidden.weight", "hidden.bias", "logits.weight"):
        assert torch.equal(one[name], other[name])
    assert torch.equal(
        one["hidden.weight"], started(ask("parallelism: fsdp\nlayout: {gpus: 2}").clean)["hidden.weight"]
    )
    assert not torch.equal(one["hidden.weight"], started(ask("seed: 1").clean)["hidden.weight"])


def test_q31_random_nodes_are_named(ask: Ask) -> None:
    assert ask().clean.draws == ()
    plan = ask(
        "model: {graph: {act: {type: dropout, p: 0.1}, noisy: logits + randn_like(logits)}}\n"
        "objective: {loss: {input: noisy}}"
    ).clean
    assert set(plan.draws) == {"act", "noisy"}
    assert "reproducible only on this layout" in describe(plan)
    shared = ask("model: {graph: {act: {type: dropout, p: 0.1}}}\nparallelism: ddp\nlayout: {gpus: 2}")
    assert (shared.only.code, shared.only.severity) == ("R108", Severity.UNVERIFIED)
    assert "`act` draws random numbers" in shared.only.message
    assert (shared.only.span.path[-9:], shared.only.span.line, shared.only.span.column) == ("over.yaml", 2, 22)


WAYS = {
    "single": "",
    "dp": "parallelism: dp\nlayout: {gpus: 2}\n",
    "ddp": "parallelism: ddp\nlayout: {gpus: 2}\n",
    "fsdp": "parallelism: fsdp\nlayout: {gpus: 2}\n",
    "pipeline": PIPELINE,
}


def shortly(*quick: str) -> list[Any]:
    return [pytest.param(way, marks=() if way in quick else pytest.mark.long) for way in WAYS]


SHORT = ("training.epochs=1", "training.global_batch_size=300", "data.last_batch=drop")


def watched(
    ask: Ask, monkeypatch: pytest.MonkeyPatch, over: str, look: Callable[[Engine], dict[str, Any]]
) -> list[dict[str, Any]]:
    """What `look` sees on each rank after each step of a real run."""
    seen = ask.folder / "seen"
    seen.mkdir()
    right = rank.Engine

    def watched_engine(plan: Plan, device: torch.device, **how: Any) -> Engine:
        engine = right(plan, device, **how)
        step = engine.step

        def watched_step(number: int, *rest: Any, **more: Any) -> Any:
            result = step(number, *rest, **more)
            (seen / f"{os.getpid()}_{number}.json").write_text(json.dumps(look(engine)))
            return result

        engine.step = watched_step  # type: ignore[method-assign]
        return engine

    monkeypatch.setattr(rank, "Engine", watched_engine)  # forked ranks have it too
    plan = ask(over, *SHORT, f"logging.dir={ask.folder / 'runs'}").plan
    assert plan is not None
    assert run_plan(plan, quiet=True) == 0
    found = [json.loads(path.read_text()) for path in seen.iterdir()]
    assert len(found) == 3 * len(plan.layout.ranks)
    return found


@pytest.mark.parametrize("way", shortly("single", "fsdp"))  # the others: engine/test_precision.py
def test_q32_bf16_computes_in_half_and_keeps_everything_in_fp32(
    way: str, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed: set[str] = set()
    right = Objective.sums

    def sums(self: Objective, values: Mapping[str, torch.Tensor], *rest: Any) -> Any:
        logits = values["logits"]  # a pipeline hands them on in fp32, which changes no digit
        computed.add("half" if torch.equal(logits, logits.bfloat16().to(logits.dtype)) else "wide")
        return right(self, values, *rest)

    def look(engine: Engine) -> dict[str, Any]:
        optimizer = engine.optimizer
        kept = {
            "parameters": [*engine.model.parameters()],
            "gradients": optimizer.gradients(),
            "state": [value for _, _, value in optimizer.state() if isinstance(value, torch.Tensor)],
        }
        found = {name: sorted({str(tensor.dtype) for tensor in tensors}) for name, tensors in kept.items()}
        return {"kept": found, "computed": sorted(computed)}

    monkeypatch.setattr(Objective, "sums", sums)
    found = watched(ask, monkeypatch, "training: {precision: bf16}\n" + WAYS[way], look)
    assert all(each["kept"] == {name: ["torch.float32"] for name in each["kept"]} for each in found)
    assert {dtype for each in found for dtype in each["computed"]} == {"half"}


@pytest.mark.parametrize("way", shortly("dp", "pipeline"))
def test_q33_frozen_is_no_gradient_and_evaluation_behaviour(
    way: str, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look(engine: Engine) -> dict[str, Any]:
        modules = dict(engine.model.named_modules())
        norm = modules.get("norm")
        return {
            "updated": sorted(engine.optimizer.parameters),
            "with gradient": [name for name, item in engine.model.named_parameters() if item.grad is not None],
            "frozen": None if norm is None else (norm.training, norm.running_mean.abs().sum().item()),  # type: ignore[operator, union-attr]
            "training": [modules[name].training for name in ("hidden", "logits") if name in modules],
        }

    norm = "{type: batch_norm, over: 75 samples, input: hidden}"
    model = f"model: {{graph: {{norm: {norm}, act: {{input: norm}}}}, parameters: {{norm: {{frozen: true}}}}}}\n"
    found = watched(ask, monkeypatch, model + WAYS[way], look)
    updated = {name for each in found for name in each["updated"]}
    assert updated == {"hidden.weight", "hidden.bias", "logits.weight", "logits.bias"}
    assert {name for each in found for name in each["with gradient"]} == updated
    assert [False, 0.0] in [each["frozen"] for each in found]  # in evaluation, and its running mean never moved
    assert all(each["frozen"] in (None, [False, 0.0]) for each in found)
    assert all(all(each["training"]) for each in found)


def test_q34_a_tie_across_stages_is_a_copy_in_each(ask: Ask) -> None:
    graph = """
    first:  {type: linear, out_features: 20, input: x}
    second: {type: linear, out_features: 20}
    logits: {type: linear, out_features: 10}
    """
    more = PIPELINE.replace("4}", "4, cut_before: [second]}")
    tie = "second.weight: {tie: first.weight}"
    refused = ask.graph(f"{textwrap.dedent(graph)}", more=more)
    assert refused.clean
    (ask.folder / "tied.yaml").write_text(f"extends: whole.yaml\nmodel: {{parameters: {{{tie}}}}}\n")
    assert ask.file("tied.yaml").clean
    again = "model: {graph: {again: {type: reuse, node: first, input: second}, logits: {input: again}}}\n"
    (ask.folder / "again.yaml").write_text("extends: whole.yaml\n" + again)
    assert ask.file("again.yaml").clean


def test_q35_stages_are_chunks_of_the_model(ask: Ask) -> None:
    trunk = "model: {graph: {hidden: {repeat: 8}}}\nlayout: {gpus: 2}\n"
    looped = trunk + "parallelism: {pipeline: {stages: 4, schedule: interleaved_1f1b, microbatches: 4}}\n"
    plan = ask(looped).clean
    assert [len(rank.stages) for rank in plan.layout.ranks] == [2, 2]
    named = looped.replace("microbatches: 4", "microbatches: 4, cut_before: [hidden.2, hidden.4, hidden.6]")
    pipeline = ask(named).clean.layout.pipeline
    assert pipeline is not None
    assert [stage[0] for stage in pipeline.stages] == ["hidden.0", "hidden.2", "hidden.4", "hidden.6"]
    assert ask(named.replace(", hidden.6", "")).codes == ["P008"]
    both = ask(looped.replace("gpus: 2", "gpus: 4").replace("{pipeline:", "{data: {shard: 2}, pipeline:")).clean
    assert {axis.name: axis.size for axis in both.layout.mesh} == {"pipeline": 2, "shard": 2}  # ranks = GPUs / 2


def test_q36_a_unit_is_a_copy_of_the_outermost_repeat_or_a_node(ask: Ask) -> None:
    assert ask().clean.layout.units == ("hidden", "act", "logits")
    units = ask("model: {graph: {hidden: {repeat: 3}}}").clean.layout.units
    assert [f"hidden.{i}" in units for i in range(3)] == [True] * 3


# Plugins, runs

PLUGIN = """\
import torch
from torch import Tensor, nn

class Gate(nn.Module):
    def __init__(self, in_features: int, width: int = 8):
        super().__init__()
        self.inner = nn.Linear(in_features, width)

    def forward(self, x: Tensor) -> Tensor:
        return torch.sigmoid(self.inner(x))
"""


def test_q37_a_plugin_declares_itself_by_its_signature(ask: Ask) -> None:
    (ask.folder / "gates.py").write_text(PLUGIN)
    use = "plugins: [./gates.py]\nmodel: {graph: {act: {type: gate, width: 12}}}\n"
    unknown = ask(use)
    assert {each.severity for each in unknown.diagnostics} == {Severity.UNVERIFIED}
    assert ask(use, plugins=True).clean.graph.spec("act:output").shape == (12,)
    wrong = ask(use.replace("width", "widht"))
    assert wrong.codes[0] == "S001"
    assert wrong.diagnostics[0].span.line == 3


def test_q38_names_of_runs_and_metrics(ask: Ask) -> None:
    assert ask(base=SMALL.replace("name: asked\n", "")).clean.name == "over"
    stop = "evaluation: {every: 1 epoch}\ntraining: {early_stop: {metric: %s, mode: %s, patience: 2 epochs}}"
    assert ask(stop % ("validation/loss", "min")).clean
    assert ask(stop % ("validation/accuracy", "max")).clean
    problem = ask(stop % ("validation/acuracy", "max")).only
    assert problem.code == "K001"
    assert "validation/accuracy" in (problem.help or "")


def test_q39_a_run_as_weights_means_its_newest_and_needs_verification(
    ask: Ask, several: tuple[Path, list[dict[str, Any]]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(several[0])
    (run_dir,) = (several[0] / "runs" / "asked").iterdir()
    for path in ("runs/asked", f"runs/asked/{run_dir.name}"):
        assert ask("", f"model.weights={path}").clean  # a folder that is here is looked at
    answer = ask("", "model.weights=s3://bucket/runs/asked")
    assert (answer.only.code, answer.only.severity) == ("U003", Severity.UNVERIFIED)
    again = run(tmp_path, SEVERAL_RUN, f"model.weights={run_dir}", "training.optimizer.lr=1e-12", *HALF_AND_F1)
    (wanted,), (found,) = of(several[1], "EvaluationDone"), of(again, "EvaluationDone")
    assert found["values"]["validation/loss"] == pytest.approx(wanted["values"]["validation/loss"], rel=1e-4)


def test_q40_a_fragment_is_not_asked_for_what_is_not_its_own(ask: Ask) -> None:
    (ask.folder / "part.yaml").write_text("fragment: true\nlayout: {nodes: 4, gpus_per_node: 8}\n")
    assert ask.file("part.yaml").codes == []
    (ask.folder / "part.yaml").write_text("layout: {nodes: 4, gpus_per_node: 8}\n")
    assert "S002" in ask.file("part.yaml").codes
    (ask.folder / "part.yaml").write_text("fragment: true\nlayout: {nodez: 4}\n")
    assert ask.file("part.yaml").codes == ["S001"]
    assert main(["run", str(ask.folder / "part.yaml")]) == 1


@pytest.mark.parametrize("command", ["run", "plan", "trace", "show"])
def test_q40_a_fragment_that_is_run_says_that_it_is_one(
    ask: Ask, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing was said, and the command ended with 1."""
    path = ask.folder / "part.yaml"
    path.write_text("fragment: true\nlayout: {nodes: 4, gpus_per_node: 8}\n")
    assert main([command, str(path)]) == 1
    said = capsys.readouterr()
    assert (said.out == "") == (command != "show")  # which tells what it can of what cannot be run
    assert said.err == f"dtrain: {path} is a fragment, a part of a recipe: give a recipe and add `--with {path}`\n"


# What the language names and is not built is not in the schema: it is refused by its own name


@pytest.mark.parametrize(
    ("set_", "code", "words"),
    [
        ("data.index_cache=x", "S001", "`data` has no key `index_cache`"),
        ("training.non_finite=roll_back", "S004", "`non_finite` is `roll_back`"),
        ("model.parameters={logits: {lora: 4}}", "S001", "has no key `lora`"),
    ],
)
def test_what_is_not_built_is_refused(ask: Ask, set_: str, code: str, words: str) -> None:
    answer = ask("", set_)
    assert answer.plan is None
    assert code in answer.codes
    assert any(words in each.message for each in answer.diagnostics)


@cache
def numbers() -> set[int]:
    names = [name for name in globals() if name.startswith("test_q")]
    return {int(name[6:8]) for name in names}


def test_every_question_has_its_test() -> None:
    assert numbers() == set(range(1, 41))
