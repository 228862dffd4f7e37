"""Optimizers, schedules, losses and metrics of plugins: read without running them, each mistake at its place."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from declarative_train.components.component import MetricInputs
from declarative_train.components.losses.plugin import PluginLoss
from declarative_train.components.lr_schedules import LR_SCHEDULES
from declarative_train.components.lr_schedules.plugin import PluginLrSchedule
from declarative_train.components.metrics.plugin import PluginMetric
from declarative_train.components.optimizers import OPTIMIZERS
from declarative_train.components.optimizers.plugin import PluginOptimizer
from declarative_train.components.plugin_components import Found, read_plugin_components
from declarative_train.core.tensor_spec import TensorSpec

SCORES, CLASS = TensorSpec((3,)), TensorSpec((), "int64", 3)
HEAD = "import torch\nfrom torch.optim import SGD, Optimizer\nfrom declarative_train.plugins import *\n"
HEAD = HEAD.replace("*", "Loss, LrSchedule, Metric")
MINE = HEAD + (Path(__file__).parents[1] / "engine" / "plugged.py").read_text().partition("# --\n")[2]


def found_in(text: str, path: str = "/nowhere/p.py", *, may_import: bool = False) -> Found:
    found, problems = read_plugin_components(path, text, may_import=may_import)
    assert not problems, problems
    return found


def test_bases_and_signatures_say_what_a_class_is() -> None:
    found = found_in("raise RuntimeError('it ran')\n" + MINE)
    assert {kind: sorted(each) for kind, each in found.items() if each} == {
        "optimizer": ["sign_momentum"],
        "lr schedule": ["halving"],
        "loss": ["centred", "margin", "size"],
        "metric": ["spread", "sure"],
    }
    loss = found["loss"]["margin"].component
    assert issubclass(loss, PluginLoss)
    assert loss.needs_target
    assert loss.model_validate({"type": "margin", "margin": 0.5}).settings() == {"margin": 0.5}
    size, spread = found["loss"]["size"].component, found["metric"]["spread"].component
    assert issubclass(size, PluginLoss)
    assert issubclass(spread, PluginMetric)
    assert not size.needs_target
    assert (spread.is_mean, spread.higher_is_better) == (False, False)


@pytest.mark.parametrize(
    ("text", "line", "column", "words", "help"),
    [
        ("class A(Loss):\n    pass\n", 4, 7, "the loss `A` has no `forward`", "def forward(self, input, target)"),
        ("class A(Loss):\n    def forward(self): ...\n", 5, 5, "takes 0 arguments after `self`", "input, target"),
        ("class A(Metric):\n    x = 1\n", 4, 7, "the metric `A` has no `forward` or `whole`", "def forward"),
        ("class A(LrSchedule):\n    def factor(self, step): ...\n", 5, 5, "`factor` of the lr schedule", "num_steps"),
        ("class A(SGD):\n    def step(self): ...\n", 4, 7, "has no `__init__` of its own", "params, lr"),
        ("class A(Optimizer):\n    def __init__(self, params, rate=1.0): ...\n    def step(self): ...\n", 4, 7,
         "takes no `lr`", "`lr: float`"),
        ("class A(Loss):\n    def __init__(self, w={1, 2}): ...\n    def forward(self, input): ...\n", 5, 26,
         "the default of `w` is a set", "a number, a text"),
        ("class A(Loss):\n    def __init__(self, w=b'x'): ...\n    def forward(self, input): ...\n", 5, 26,
         "the default of `w` is a bytes", "a number, a text"),
        ("class A(Loss):\n    mixes_samples = 3\n    def forward(self, input): ...\n", 5, 5,
         "`mixes_samples` is true or false", ""),
        ("class A(Loss):\n    def __init__(self, type): ...\n    def forward(self, input): ...\n", 5, 24,
         "argument", ""),
        ("class A(Loss):\n    def forward(self, input): ...\nclass ALoss(A): ...\n", 6, 7,
         "two classes of this file", ""),
    ],
)  # fmt: skip
def test_a_mistake_is_told_at_its_place(text: str, line: int, column: int, words: str, help: str) -> None:
    _, problems = read_plugin_components("/nowhere/p.py", HEAD + text, may_import=False)
    assert [(each.line, each.column) for each in problems] == [(line, column)], problems
    assert words in problems[0].message
    assert help in (problems[0].help or "")


def test_a_class_with_another_base_is_none_of_them() -> None:
    assert not any(found_in("class Loss: ...\nclass A(Loss):\n    def forward(self, input): ...\n").values())


@pytest.fixture
def mine(tmp_path: Path) -> Found:
    (tmp_path / "p.py").write_text(MINE)
    return found_in(MINE, str(tmp_path / "p.py"), may_import=True)


def test_what_a_plan_holds_is_read_again(mine: Found) -> None:
    optimizer = mine["optimizer"]["sign_momentum"].component.model_validate({"type": "sign_momentum", "lr": 0.5})
    again = OPTIMIZERS.read(optimizer.as_data())
    assert isinstance(again, PluginOptimizer)
    assert again.settings() == {"lr": 0.5, "beta": 0.9}
    assert again.check({"w": (3, 2)}) is None
    assert again.num_state_elements((100, 7)) == 700
    schedule = mine["lr schedule"]["halving"].component.model_validate({"type": "halving"})
    read = LR_SCHEDULES.read(schedule.as_data())
    assert [read.factor(step, 10, 2) for step in (0, 1, 2, 4, 9)] == [1 / 3, 2 / 3, 1, 0.5, 0.125]


def test_a_loss_gives_its_values_and_dtrain_adds_them_up(mine: Found) -> None:
    loss = mine["loss"]["margin"].component.model_validate({"type": "margin"})
    assert isinstance(loss, PluginLoss)
    assert loss.check(SCORES, CLASS, None) is None
    module = loss.build(SCORES, CLASS, None)
    scores, classes = torch.tensor([[2.0, 0.0, 0.0], [0.0, 0.0, 3.0]]), torch.tensor([0, 1])
    assert module.items_per_row == 1.0
    assert module.sum(scores, classes, None, None).item() == pytest.approx(0.0 + 5.0)
    assert module.sum(scores, classes, None, torch.tensor([1.0, 0.0])).item() == pytest.approx(0.0)
    masked = loss.build(SCORES, CLASS, TensorSpec((), "bool"))
    keep = torch.tensor([False, True])
    scores[0] = torch.nan
    assert masked.sum(scores, classes, keep, None).item() == pytest.approx(5.0)
    assert masked.count(classes, keep, None, 2).item() == 1


def test_a_loss_that_mixes_samples_is_found_out_and_one_that_fails_says_why(mine: Found) -> None:
    margin, centred = (mine["loss"][name].component.model_validate({"type": name}) for name in ("margin", "centred"))
    assert isinstance(margin, PluginLoss)
    assert isinstance(centred, PluginLoss)
    assert not margin.mixing(SCORES, CLASS)
    assert centred.mixing(SCORES, CLASS)
    said = margin.check(TensorSpec((3,)), TensorSpec((3,)), None)
    assert said is not None
    assert "`margin` fails on generated samples: RuntimeError" in said.message
    of_mask = margin.check(SCORES, CLASS, TensorSpec((3,), "bool"))
    assert of_mask is not None
    assert of_mask.port == "mask"
    none = margin.check(SCORES, None, None)
    assert none is not None
    assert none.port == "target"


def test_what_is_no_loss_no_metric_and_no_factor_is_refused(tmp_path: Path) -> None:
    text = HEAD + (
        "class Mean(Loss):\n    def forward(self, input): return input.mean()\n"
        "class Wide(Loss):\n    def forward(self, input): return input.new_ones(len(input), 7)\n"
        "class Many(Metric):\n    def whole(self, input): return input\n"
        "class Below(LrSchedule):\n    def factor(self, step, num_steps): return -1.0\n"
        "class Odd(Optimizer):\n    def __init__(self, params, lr: float): super().__init__(params, {'lr': lr})\n"
        "    def step(self, closure=None): raise KeyError('w')\n"
    )
    (tmp_path / "p.py").write_text(text)
    found = found_in(text, str(tmp_path / "p.py"), may_import=True)
    made = {name: each.component.model_validate({"type": name} | ({"lr": 1.0} if name == "odd" else {}))
            for kind in found.values() for name, each in kind.items()}  # fmt: skip
    loss, wide, metric, schedule, odd = (made[name] for name in ("mean", "wide", "many", "below", "odd"))
    assert isinstance(loss, PluginLoss)
    assert isinstance(wide, PluginLoss)
    assert isinstance(metric, PluginMetric)
    assert isinstance(schedule, PluginLrSchedule)
    assert isinstance(odd, PluginOptimizer)
    assert "gives a tensor ()" in str(loss.check(SCORES, None, None))
    assert "one value per sample, or one per element" in str(wide.check(SCORES, None, None))
    assert "expected one number" in str(metric.check(MetricInputs(SCORES)))
    assert "fails on generated samples: KeyError" in str(odd.check({"w": (2, 2)}))
    with pytest.raises(ValueError, match=r"`factor\(0, 10\)` of `below` is -1.0"):
        schedule.factor(0, 10, 0)
