"""Numbers of the samples that no network is started for: said where they reach its weights as they are, else not."""

from pathlib import Path

import numpy as np
import pytest

from declarative_train import planner, recipe

RNG = np.random.default_rng(0)
ROWS = 120
TAIL = """
training: {steps: 2, global_batch_size: 8, optimizer: {type: adam, lr: 1e-3}}
parallelism: single
layout: {gpus: 1, device: cpu}
"""
COLUMNS = "data: {source: {type: csv, path: table.csv}, fields: {x: {columns: [%s]%s}, y: {column: %s}}}\n"
LINEAR = "  out: {type: linear, out_features: 1, input: %s}\n  score: out[:, 0]\n"


@pytest.fixture(autouse=True)
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    columns = {
        "id": np.arange(ROWS) * 3 + 7,
        "t": np.arange(ROWS),
        "a": RNG.normal(size=ROWS),
        "b": RNG.normal(size=ROWS),
        "metres": RNG.uniform(4e4, 2e5, ROWS),
        "grey": RNG.integers(0, 256, ROWS),
        "dark": RNG.integers(0, 256, ROWS),
        "count": RNG.poisson(3, ROWS),
        "price": RNG.uniform(1e5, 9e5, ROWS),
    }
    rows = [",".join(columns), *(",".join(f"{each[row]:.9g}" for each in columns.values()) for row in range(ROWS))]
    Path("table.csv").write_text("\n".join(rows) + "\n")


def codes(columns: str, graph: str, *, more: str = "", target: str = "b", loss: str = "mse", wanted: str = "y") -> str:
    text = f"name: inputs\n{COLUMNS % (columns, more, target)}model:\n graph:\n{graph}"
    text += f"objective: {{loss: {{type: {loss}, input: score, target: {wanted}}}}}{TAIL}"
    return _codes(text)


def _codes(text: str) -> str:
    Path("recipe.yaml").write_text(text)
    loaded = recipe.load("recipe.yaml")
    assert loaded.recipe is not None, loaded.diagnostics
    _, found = planner.compile(loaded.recipe)
    assert not [each for each in found if each.is_error], found
    return " ".join(each.code for each in found)


@pytest.mark.parametrize(
    ("columns", "graph", "more", "found"),
    [
        ("grey, dark", LINEAR % "x", "", "R131"),
        ("grey, dark", "  twice: concat(x, flip(x, [1]))\n" + LINEAR % "twice", "", "R131"),
        (
            "grey, dark",
            "  body: {type: mlp, out_features: 1, hidden: [4], input: x}\n  score: body[:, 0]\n",
            "",
            "R131",
        ),
        ("grey, dark", LINEAR % "x", ", scale: 0.00392", ""),
        ("grey, dark", LINEAR % "x", ", normalize: minmax", ""),
        ("grey, dark", "  norm: {type: batch_norm, over: 8 samples, input: x}\n" + LINEAR % "norm", "", ""),
        ("grey, dark", "  small: x / 255\n" + LINEAR % "small", "", ""),
        ("a, metres", LINEAR % "x", "", "R132"),
        ("a, metres", LINEAR % "x", ", normalize: standard", ""),
        ("a, count", LINEAR % "x", "", ""),
        ("id, a", LINEAR % "x", ", normalize: standard", "R134"),
        ("t, a", LINEAR % "x", ", normalize: minmax", "R134"),
        ("t", LINEAR % "x", ", normalize: standard", ""),
        ("a, count", LINEAR % "x", ", normalize: standard", ""),
    ],
)
def test_columns_that_reach_weights_as_they_are(columns: str, graph: str, more: str, found: str) -> None:
    assert codes(columns, graph, more=more) == found


@pytest.mark.parametrize(
    ("graph", "loss", "wanted", "found"),
    [
        (LINEAR % "x", "mse", "y", "R133"),
        (LINEAR % "x", "huber", "y", "R133"),
        (LINEAR % "x" + "  logs: log(y)\n", "mse", "logs", ""),
        (LINEAR.replace("out[:, 0]", "out[:, 0] * 1e5 + 3e5") % "x", "mse", "y", ""),
        (LINEAR % "x", "poisson_nll", "y", ""),
    ],
)
def test_large_targets_of_a_distance(graph: str, loss: str, wanted: str, found: str) -> None:
    assert codes("a", graph, target="price", loss=loss, wanted=wanted) == found


@pytest.mark.parametrize(
    ("column", "read", "found"),
    [("image", "x", "G020"), ("image", "permute(x, 0, 3, 1, 2)", ""), ("tall", "x", "")],
)
def test_images_with_channels_last(column: str, read: str, found: str) -> None:
    shape = (8, 8, 3) if column == "image" else (3, 8, 8)
    made = {"image": RNG.normal(size=(ROWS, *shape)), "y": RNG.normal(size=ROWS)}
    np.savez("made.npz", **{name: each.astype(np.float32) for name, each in made.items()})
    between = "" if read == "x" else f"  moved: {read}\n"
    conv = f"  conv: {{type: conv2d, out_channels: 2, kernel_size: 3, input: {'moved' if between else 'x'}}}\n"
    rest = "  pooled: {type: global_avg_pool}\n" + LINEAR % "pooled"
    data = "data: {source: {type: npy, path: made.npz}, fields: {x: {column: image}, y: {column: y}}}\n"
    text = f"name: inputs\n{data}model:\n graph:\n{between}{conv}{rest}"
    assert _codes(f"{text}objective: {{loss: {{type: mse, input: score, target: y}}}}{TAIL}") == found
