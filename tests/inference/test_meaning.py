"""What an output means is derived from the loss that reads it and from the field of its target."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from declarative_train import planner
from declarative_train import recipe as recipe_room
from declarative_train.inference.answers import PredictedOutputs, choose_outputs, columns
from declarative_train.inference.trained import Trained, UsageError
from declarative_train.plan.output_semantics import meanings
from tests.inference.made_runs import write_csv

COLUMNS = ("a", "b", "c", "kind", "sold", "half", "count", "true_or_not")
RECIPE = """
name: meant
data:
  source: {type: csv, path: meant.csv}
  fields:
    x: {columns: [a, b], normalize: standard}
    FIELD
  split: {validation: 0.2}
model:
  graph:
    hidden: {type: linear, out_features: 4, input: x}
    NODES
objective:
  losses: {told: LOSS}
training: {epochs: 1, global_batch_size: 10, optimizer: {type: sgd, lr: 0.1}}
layout: {device: cpu}
logging: {dir: runs}
"""


def model_of(folder: Path, field: str, nodes: str, loss: str) -> Trained:
    """As it would be opened, without weights: what the outputs mean does not depend on them."""
    rows = [
        [
            at / 10,
            math.sin(at),
            3 * at + 5,
            ("no", "yes")[at % 2],
            at % 2,
            at // 20,
            (at * 7) % 5,
            str(at % 3 == 0).lower(),
        ]
        for at in range(40)
    ]
    write_csv(folder / "meant.csv", COLUMNS, rows)
    text = RECIPE.replace("FIELD", field).replace("NODES", nodes).replace("LOSS", loss)
    (folder / "meant.yaml").write_text(text)
    loaded = recipe_room.load(str(folder / "meant.yaml"))
    assert loaded.recipe is not None, [each.message for each in loaded.diagnostics]
    plan, diagnostics = planner.compile(loaded.recipe)
    assert plan is not None, [each.message for each in diagnostics]
    return Trained(str(folder), plan, 1, False, {})


def answered(model: Trained, output: torch.Tensor) -> dict[str, list[object]]:
    what = choose_outputs(model, [])
    found = columns(what, {what.meanings[0].output: output})
    return {name: np.asarray(values).tolist() for name, values in found.items()}


def test_two_named_classes_of_one_logit(tmp_path: Path) -> None:
    model = model_of(
        tmp_path,
        "y: {type: category, column: kind}",
        "logit: {type: linear, out_features: 1, input: hidden}\n    wanted: float(unsqueeze(y, dim=1))",
        "{type: bce_with_logits, input: logit, target: wanted}",
    )
    (one,) = meanings(model.plan)
    assert (one.kind, one.field, one.classes) == ("yes_no", "y", ("no", "yes"))
    found = answered(model, torch.tensor([[-2.0], [3.0]]))
    assert found["class"] == ["no", "yes"]
    assert found["p_yes"] == pytest.approx(torch.tensor([-2.0, 3.0]).sigmoid().tolist())


def test_truth_values_are_called_so(tmp_path: Path) -> None:
    model = model_of(
        tmp_path,
        "y: {type: category, column: true_or_not}",
        "logits: {type: linear, out_features: 2, input: hidden}",
        "{type: cross_entropy, input: logits, target: y}",
    )
    assert list(answered(model, torch.zeros(1, 2))) == ["class", "p_false", "p_true"]


def test_several_yes_and_no_have_the_names_of_their_columns(tmp_path: Path) -> None:
    model = model_of(
        tmp_path,
        "y: {columns: [sold, half], dtype: float32}",
        "logit: {type: linear, out_features: 2, input: hidden}",
        "{type: bce_with_logits, input: logit, target: y}",
    )
    found = answered(model, torch.tensor([[-1.0, 2.0], [1.0, -3.0]]))
    assert (found["sold"], found["half"]) == ([0, 1], [1, 0])
    assert list(found) == ["sold", "half", "p_sold", "p_half"]


@pytest.mark.parametrize("nodes", ["", "wanted: squeeze(y, dim=1)\n    flat: squeeze(guess, dim=1)"])
def test_numbers_go_back_to_the_unit_of_their_column(tmp_path: Path, nodes: str) -> None:
    ends = ("flat", "wanted") if nodes else ("guess", "y")
    model = model_of(
        tmp_path,
        "y: {columns: [c], scale: 0.01, normalize: standard}",
        f"guess: {{type: linear, out_features: 1, input: hidden}}\n    {nodes}",
        f"{{type: mse, input: {ends[0]}, target: {ends[1]}}}",
    )
    field = model.fields["y"].statistics
    values = np.asarray([5.0, 122.0])
    scaled = (values * 0.01 - field["subtract"][0]) / field["divide"][0]  # type: ignore[index]
    output = torch.tensor(scaled)
    assert answered(model, output if nodes else output[:, None])["c"] == pytest.approx(values.tolist())


def test_a_rate_is_what_the_logarithm_is_of(tmp_path: Path) -> None:
    model = model_of(
        tmp_path,
        "y: {columns: [count]}",
        "rate: {type: linear, out_features: 1, input: hidden}",
        "{type: poisson_nll, input: rate, target: y}",
    )
    assert answered(model, torch.tensor([[0.0], [math.log(3)]]))["count"] == pytest.approx([1, 3])


def test_a_target_that_is_computed_keeps_its_own_unit(tmp_path: Path) -> None:
    """The logarithm of a price is no price: nothing is undone, and the column has the loss's name."""
    model = model_of(
        tmp_path,
        "y: {columns: [c], scale: 0.01}",
        "wanted: log(y)\n    guess: {type: linear, out_features: 1, input: hidden}",
        "{type: mse, input: guess, target: wanted}",
    )
    (one,) = meanings(model.plan)
    assert (one.field, one.unit) == (None, None)
    assert answered(model, torch.tensor([[0.5]])) == {"told": [[0.5]]}


def test_an_autoencoder_gives_its_input_again(tmp_path: Path) -> None:
    model = model_of(
        tmp_path,
        "y: {columns: [c]}",
        "again: {type: linear, out_features: 2, input: hidden}\n    close: again + 0 * y",
        "{type: mse, input: close, target: x}",
    )
    found = answered(model, torch.zeros(1, 2))
    statistics = model.fields["x"].statistics
    assert [found["a"][0], found["b"][0]] == pytest.approx(statistics["subtract"])


def test_a_loss_without_a_target_says_nothing(tmp_path: Path) -> None:
    model = model_of(
        tmp_path,
        "y: {columns: [c]}",
        "guess: {type: linear, out_features: 1, input: hidden}\n    error: (guess - y) ** 2",
        "{type: mean, input: error}",
    )
    assert meanings(model.plan) == ()
    with pytest.raises(UsageError, match="do not define the meaning of an output"):
        choose_outputs(model, [])
    assert choose_outputs(model, ["guess"]) == PredictedOutputs(("guess",), (), ("guess",))
    assert tuple(model.graph(["guess"]).inputs) == ("x",)


def test_a_plugin_is_run_only_when_it_may(tmp_path: Path) -> None:
    from declarative_train.inference.trained import open_trained
    from tests.inference.made_runs import trained

    (tmp_path / "layers.py").write_text(
        "from torch import nn\n\n\n"
        "class Doubled(nn.Module):\n"
        "    def __init__(self, by: float = 2.0) -> None:\n"
        "        super().__init__()\n"
        "        self.by = by\n\n"
        "    def forward(self, x):\n"
        "        return x * self.by\n"
    )
    write_csv(tmp_path / "meant.csv", COLUMNS, [[at / 10, math.sin(at), at, "no", 0, 1, 1, "true"] for at in range(40)])
    text = RECIPE.replace("name: meant\n", "name: meant\nplugins: [./layers.py]\n")
    text = text.replace("FIELD", "y: {columns: [c], normalize: standard}")
    text = text.replace("NODES", "twice: {type: doubled}\n    guess: {type: linear, out_features: 1}")
    run = trained(tmp_path, text.replace("LOSS", "{type: mse, input: guess, target: y}"), plugins=True)
    with pytest.raises(UsageError, match="has the layer `doubled` of a plugin; help: --plugins runs the code of"):
        open_trained(run)
    network = open_trained(run, plugins=True).network(["twice", "hidden"])
    twice, hidden = network.module(torch.ones(1, 2))
    assert torch.equal(twice, hidden * 2)
    (tmp_path / "layers.py").unlink()
    from declarative_train.components.plugins import plugin_layers

    plugin_layers.cache_clear()
    with pytest.raises(UsageError, match=r"the run's plugin .*layers.py cannot be read: no such file"):
        open_trained(run, plugins=True)
