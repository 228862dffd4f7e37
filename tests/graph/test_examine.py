"""What a plugin's code does next to what it declares: one layer for each habit, and the layers that have none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from declarative_train.components.plugins import read_plugin
from declarative_train.core.tensor_spec import TensorSpec
from declarative_train.graph.inspect_plugin import Habits
from declarative_train.graph.probe import probe_layer

Probe = Callable[..., Habits]
ROW, TABLE, LARGE = TensorSpec((6,)), TensorSpec((6, 6)), TensorSpec((3, 700, 700))  # the last is tried on meta
NONE = Habits(draws=False, mixes=(), batch_norms=(), changed=(), unregistered=())


@pytest.fixture
def habits(tmp_path: Path) -> Probe:
    def probe(forward: str, made: str = "pass", spec: TensorSpec = ROW, says: str = "") -> Habits:
        path = tmp_path / "one.py"
        path.write_text(
            f"import random\nimport torch\nfrom torch import nn\n\n\nclass One(nn.Module):\n{says}"
            f"    def __init__(self):\n        super().__init__()\n        {made}\n\n"
            f"    def forward(self, x):\n        {forward}\n"
        )
        from declarative_train.components.plugin_file import import_plugin

        import_plugin.cache_clear()
        layer = read_plugin(str(path), path.read_text(), may_import=True)[0]["one"].layer
        found = probe_layer(layer(), {"x": spec}, {"x": spec}).habits  # type: ignore[call-arg]
        assert found is not None
        return found

    return probe


@pytest.mark.parametrize(
    ("forward", "made"),
    [
        ("return torch.relu(self.a(x))", "self.a = nn.Linear(6, 3)"),
        ("return self.a(x.unsqueeze(1)).flatten(1)", "self.a = nn.Conv1d(1, 2, 3)"),
        ("return self.a(x)", "self.a = nn.LayerNorm(6)"),
        ("return self.a(x)[0]", "self.a = nn.LSTM(6, 4, batch_first=True)"),
        ("return self.a(x)", "self.a = nn.Dropout(0.0)"),
        ("return self.a(x)", "self.a = nn.Sequential(nn.Linear(6, 4), nn.ReLU(inplace=True))"),
        ("y = x.clone(); y += 1; return y", "pass"),
        ("return x.softmax(-1) / x.shape[-1]", "self.register_buffer('a', torch.rand(3))"),
        ("return torch.full_like(x, float('nan'))", "pass"),
    ],
)
def test_layers_without_habits(forward: str, made: str, habits: Probe) -> None:
    assert habits(forward, made, TABLE if "LSTM" in made else ROW) == NONE


@pytest.mark.parametrize(
    ("forward", "made", "draws"),
    [
        ("return self.a(x)", "self.a = nn.Dropout(0.1)", True),
        ("return x + torch.randn_like(x)", "pass", True),
        ("return x * random.random() if self.training else x", "pass", True),
        ("return x * 2 if self.training else x + torch.rand_like(x)", "pass", False),  # in evaluation alone
        ("return x @ self.a", "self.a = nn.Parameter(torch.randn(6, 3))", False),  # when it is made
    ],
)
def test_draws(forward: str, made: str, draws: bool, habits: Probe) -> None:
    assert habits(forward, made).draws is draws


BOTH = ("training", "evaluation")


@pytest.mark.parametrize(
    ("forward", "made", "mixes"),
    [
        ("return x - x.mean(0)", "pass", BOTH),
        ("return x.softmax(0)", "pass", BOTH),
        ("return x / x.shape[0]", "pass", BOTH),
        ("return x + torch.arange(len(x)).unsqueeze(1)", "pass", BOTH),
        ("return x.roll(1, 0) if self.training else x", "pass", ("training",)),
        ("return 0.7 * x + 0.3 * x[torch.randperm(len(x))] if self.training else x", "pass", ("training",)),
        ("return self.a(x)", "self.a = nn.Sequential(nn.Dropout(0.5), nn.BatchNorm1d(6))", ("training",)),
        ("return self.a(x)", "self.a = nn.BatchNorm1d(6, track_running_stats=False)", BOTH),
        ("return self.a(x)[0]", "self.a = nn.LSTM(6, 4)", BOTH),  # whose batch is dimension 1
    ],
)
def test_mixes_samples(forward: str, made: str, mixes: tuple[str, ...], habits: Probe) -> None:
    assert habits(forward, made, TABLE if "LSTM" in made else ROW).mixes == mixes


def test_a_layer_says_that_it_mixes_samples(habits: Probe) -> None:
    """Where no batch of made samples shows it: it is tried on meta, or only some values do it."""
    says = "    mixes_samples = True\n"
    for forward, spec in (("return x - x.mean(0)", LARGE), ("return x - (x > 3).float().mean(0)", ROW)):
        assert habits(forward, spec=spec).mixes == ()
        assert habits(forward, spec=spec, says=says).mixes == ("training",)
    assert habits("return x - x.mean(0)", says=says).mixes == BOTH
    assert habits("return x - x.mean(0)", says="    mixes_samples = False\n").mixes == BOTH  # found out


def test_what_it_says_is_true_or_false() -> None:
    text = "from torch import nn\nclass One(nn.Module):\n    mixes_samples = 3\n    def forward(self, x): return x\n"
    layers, (problem,) = read_plugin("/nowhere/p.py", text, may_import=False)
    assert not layers
    assert (problem.line, problem.message) == (3, "`mixes_samples` is true or false")


@pytest.mark.parametrize(
    ("forward", "made", "changed"),
    [
        ("x += 1; return x", "pass", (0,)),
        ("return self.a(x)", "self.a = nn.ReLU(inplace=True)", (0,)),
        ("x.view(-1)[0] = 3; return x", "pass", (0,)),
        ("return x.mul_(2) if self.training else x", "pass", (0,)),
    ],
)
def test_changes_its_input(forward: str, made: str, changed: tuple[int, ...], habits: Probe) -> None:
    assert habits(forward, made).changed == changed
    assert habits(forward, made, LARGE).changed == changed


def test_tensors_that_are_not_registered(habits: Probe) -> None:
    made = "self.a = nn.Linear(6, 6); self.a.scale = torch.ones(6); self.b = torch.zeros(3)"
    made += "; self.register_buffer('c', torch.ones(2))"
    assert habits("return self.a(x) * self.a.scale", made).unregistered == ("b", "a.scale")


def test_norms_are_named_and_what_cannot_be_tried_is_unknown(habits: Probe) -> None:
    found = habits(
        "return self.a(x)", "self.a = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4))", TensorSpec((3, 700, 700))
    )
    assert (found.draws, found.mixes, found.batch_norms) == (None, (), ("a.1",))
    raises = "assert not self.training; return x"
    assert habits(raises) == Habits(draws=None, mixes=(), batch_norms=(), changed=(), unregistered=())


def test_a_large_model_that_cannot_be_made_on_meta_is_made(habits: Probe) -> None:
    made = "self.a = nn.Linear(6, 300000); self.rates = [rate.item() for rate in torch.linspace(0, 1, 3)]"
    assert habits("return self.a(x)", made) == NONE
