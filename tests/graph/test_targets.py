"""Columns that a loss is told from among those that the model reads, and metrics in the unit of their target."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from declarative_train import planner
from declarative_train.planner.text.describe import describe
from declarative_train.recipe import load
from declarative_train.run.event import EvaluationDone
from declarative_train.run.launch import run
from declarative_train.run.rank_job import default_sinks
from tests.engine.runs import newest

BASE = """
name: leaks
data:
  source: {type: csv, path: rows.csv}
  fields: %s
model:
  graph:
    net: {type: %s, input: x}
objective:
  loss: {type: %s, input: net, target: %s}
training: {steps: 1, global_batch_size: 2, optimizer: {type: sgd, lr: 0.1}}
"""
LINEAR = "linear, out_features: "
WINDOW = "x: {column: a, rows: '%s'}, y: {column: a, rows: '%s'}}\n  window: {length: 4, stride: 1"


def codes(folder: Path, fields: str, layer: str, loss: str = "mse", target: str = "y") -> list[str]:
    (folder / "rows.csv").write_text("a,b,c,label\n" + "".join(f"{i}.5,{i * i}.0,1.25,{i % 2}\n" for i in range(40)))
    (folder / "recipe.yaml").write_text(BASE % (f"{{{fields}}}", layer, loss, target))
    loaded = load(str(folder / "recipe.yaml"))
    assert loaded.recipe is not None, loaded.diagnostics
    _, found = planner.compile(loaded.recipe)
    return [item.code for item in (*loaded.diagnostics, *found) if item.is_error]


LABEL = "y: {type: category, column: label}"


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        (f"x: {{columns: '*'}}, {LABEL}", ["O009"]),
        (f"x: {{columns: [a, label]}}, {LABEL}", ["O009"]),
        (f"x: {{columns: '*', exclude: label}}, {LABEL}", []),
        (f"x: {{columns: '*', exclude: [la*, b]}}, {LABEL}", []),
        (f"x: {{columns: '*', exclude: [no]}}, {LABEL}", ["D005"]),
        (f"x: {{columns: [a], exclude: [a]}}, {LABEL}", ["D006"]),
    ],
)
def test_the_label_among_the_features(tmp_path: Path, fields: str, wanted: list[str]) -> None:
    """Accuracy was 1.0000 in validation, and the linter found nothing wrong."""
    assert codes(tmp_path, fields, LINEAR + "2", "cross_entropy") == wanted


@pytest.mark.parametrize(
    ("fields", "layer", "target", "wanted"),
    [
        ("x: {columns: [a, b, c]}", LINEAR + "3", "x", []),  # an autoencoder
        ("x: {columns: [a, b, c]}, y: {columns: [a, b, c], normalize: standard}", LINEAR + "3", "y", []),  # cleans
        ("x: {columns: [a, b, c]}, y: {columns: [b]}", LINEAR + "1", "y", ["O009"]),
        ("x: {columns: [a]}, y: {columns: [a]}", LINEAR + "1", "y", ["O009"]),  # y = x
        (WINDOW % (":2", "2:"), LINEAR + "2", "y", []),  # a forecast
        (WINDOW % (":-1", "1:"), LINEAR + "3", "y", []),  # the next row of each
        (WINDOW % (":3", "2:"), LINEAR + "2", "y", ["O009"]),  # overlap
        (WINDOW % (":2", ":2"), LINEAR + "2", "y", ["O009"]),
    ],
)
def test_what_is_made_again_or_shifted_is_meant(
    tmp_path: Path, fields: str, layer: str, target: str, wanted: list[str]
) -> None:
    assert codes(tmp_path, fields, layer, target=target) == wanted


ROWS = np.random.default_rng(0)
X = ROWS.normal(size=(60, 4)).astype(np.float32)
PRICES = np.stack([1e5 + 2e4 * X[:, 0], 5.0 + 0.1 * X[:, 1] + 0.05 * ROWS.normal(size=60)], 1).astype(np.float32)
METRICS = ["rmse", "mae", "mse", "mape", "r2"]


def regression(field: str) -> str:
    return f"""
name: made
data:
  source: {{type: npy, path: data.npz}}
  fields: {{x: {{column: x}}, y: {{column: y{field}}}}}
  split: {{validation: {{type: last, fraction: 0.2}}}}
model:
  graph: {{hidden: {{type: linear, out_features: 3, input: x}}, net: {{type: linear, out_features: 2}}}}
  parameters: {{"*": {{init: {{type: zeros}}}}}}
objective: {{loss: {{type: mse, input: net, target: y}}, metrics: [{", ".join(METRICS)}]}}
training: {{steps: 1, global_batch_size: 12, optimizer: {{type: sgd, lr: 1e-30}}}}
layout: {{device: cpu}}
"""


@pytest.mark.parametrize(
    ("field", "mode"),
    [
        (", normalize: standard", "parallelism: single"),
        (", normalize: minmax, scale: -0.01", "parallelism: ddp\nlayout: {gpus: 2}"),
        (", scale: 1e-5", "parallelism: {pipeline: {stages: 2, microbatches: 2}}\nlayout: {gpus: 2}"),
        ("", "parallelism: single"),
    ],
)
def test_errors_are_told_in_the_unit_of_the_target(tmp_path: Path, field: str, mode: str) -> None:
    """A model that says 0 says the mean (least, 0) of the training rows. rmse was told in normalised units."""
    np.savez(tmp_path / "data.npz", x=X, y=PRICES)
    (tmp_path / "base.yaml").write_text(regression(field))
    (tmp_path / "recipe.yaml").write_text(f"extends: base.yaml\n{mode}\n")
    loaded = load(str(tmp_path / "recipe.yaml"), set_=(f"logging.dir={tmp_path / 'runs'}",))
    assert loaded.recipe is not None, loaded.diagnostics
    plan, found = planner.compile(loaded.recipe)
    assert plan is not None, found
    assert ("in the unit of y" in describe(plan)) == bool(field)
    assert run(plan, sinks=default_sinks(quiet=True)) == 0
    _, events = newest(tmp_path)
    values = next(event.values for event in events if isinstance(event, EvaluationDone))

    training, rest = PRICES[:48].astype(np.float64), PRICES[48:].astype(np.float64)
    said = training.mean(0) if "standard" in field else training.max(0) if "minmax" in field else np.zeros(2)
    error = rest - said
    wanted = {
        "rmse": np.sqrt((error**2).mean()),
        "mae": abs(error).mean(),
        "mse": (error**2).mean(),
        "mape": (abs(error) / abs(rest)).mean(),
        "r2": (1 - (error**2).sum(0) / ((rest - rest.mean(0)) ** 2).sum(0)).mean(),
    }
    for name in METRICS:
        assert values[f"validation/{name}"] == pytest.approx(wanted[name], rel=1e-5), name


@pytest.mark.parametrize(
    ("target", "wanted"),
    [("y[:, :1]", "O011"), ("y * 2", "O011"), ("one[:, 0]", None), ("squeeze(one, -1)", None), ("raw * 2", None)],
)
def test_a_target_that_was_computed_has_a_unit_or_is_refused(tmp_path: Path, target: str, wanted: str | None) -> None:
    shape = "" if target in ("one[:, 0]", "squeeze(one, -1)") else "t"
    width = {"y * 2": 2, "raw * 2": 2}.get(target, 1)
    net = f"net: {{type: linear, out_features: {width}, input: x}}"
    graph = f"t: '{target}', {net}" + ("" if shape else ", flat: 'net[:, 0]'")
    fields = "x: {columns: [c]}, y: {columns: [a, b], normalize: standard}, raw: {columns: [a, b]}"
    fields += ", one: {columns: [a], normalize: standard}"
    text = BASE % (f"{{{fields}}}", "", "mse", "t")
    text = text.replace("    net: {type: , input: x}\n", "").replace("  graph:\n", f"  graph: {{{graph}}}\n")
    text = text.replace("input: net, target", f"input: {'net' if shape else 'flat'}, target")
    text = text.replace("target: t}", "target: t}\n  metrics: [rmse]")
    (tmp_path / "rows.csv").write_text("a,b,c\n" + "".join(f"{i}.5,{i * i}.0,{i}.25\n" for i in range(40)))
    (tmp_path / "recipe.yaml").write_text(text)
    loaded = load(str(tmp_path / "recipe.yaml"))
    assert loaded.recipe is not None, loaded.diagnostics
    _, found = planner.compile(loaded.recipe)
    assert [item.code for item in found if item.is_error] == ([] if wanted is None else [wanted])


@pytest.mark.parametrize(
    ("target", "loss", "metric", "wanted"),
    [
        ("a", "mse", "[accuracy]", ["O010"]),
        ("a", "huber", "[auroc]", ["O010"]),
        ("label", "mse", "[accuracy]", []),  # a regression of 0 and 1
        ("a", "mse", "[rmse]", []),
        ("label", "bce_with_logits", "[rmse]", ["O010"]),
        ("label", "bce_with_logits", "[auroc]", []),
        ("label", "bce_with_logits", "{rmse: {input: net, target: y}}", ["O010"]),
        ("label", "poisson_nll", "[mae]", ["O010"]),
        ("label", "poisson_nll, log_input: false", "[mae]", []),
    ],
)
def test_a_metric_suits_its_loss(tmp_path: Path, target: str, loss: str, metric: str, wanted: list[str]) -> None:
    """Accuracy and auroc of a regression were shown as if they said something."""
    fields = f"x: {{columns: [c]}}, y: {{columns: [{target}]}}"
    assert codes(tmp_path, fields, LINEAR + "1", loss, f"y}}\n  metrics: {metric}\n#") == wanted
