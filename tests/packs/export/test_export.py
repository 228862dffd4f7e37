"""Exported models: loaded by the libraries that people use, on real rows, they give what the run's model gives."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from declarative_train.__main__ import main
from declarative_train.data.shared_sets import prepare_sets
from declarative_train.inference.trained import Trained, UsageError, open_trained
from declarative_train.packs.export import formats
from declarative_train.packs.export.export import Exported, export
from declarative_train.packs.export.export_errors import ExportFailure
from declarative_train.packs.export.names import NAMES, PUBLISHED
from declarative_train.packs.export.program import make_program
from tests.inference.made_runs import WINE, WINE_COLUMNS, wine_rows, write_csv
from tests.inference.made_runs import trained as train
from tests.packs.export.exported_runs import RECIPES, write_data

ROWS = 9
FORMATS = ("onnx", "torch-export")


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Trained]:
    """One of each kind, made when asked for."""
    folder = tmp_path_factory.mktemp("exported")
    write_data(folder)

    class Made(dict[str, Trained]):
        def __missing__(self, name: str) -> Trained:
            self[name] = open_trained(train(folder, RECIPES[name], plugins=True), plugins=True)
            return self[name]

    return Made()


def as_they_stand(trained: Trained) -> Trained:
    """With fields that do nothing to the numbers of their columns, but for missing ones."""

    def bare(component: dict[str, object]) -> dict[str, object]:
        if component["type"] != "tensor":
            return component
        kept = {key: value for key, value in component.items() if key not in ("scale", "normalize", "missing")}
        return kept | ({"missing": 0.0} if component.get("missing") != "error" else {})

    data = trained.plan.data
    fields = tuple(replace(field, component=bare(field.component), statistics=_kept(field)) for field in data.fields)
    return replace(trained, plan=replace(trained.plan, data=replace(data, fields=fields)))


def _kept(field: object) -> dict[str, object]:
    return {key: value for key, value in field.statistics.items() if key == "vocabulary"}  # type: ignore[attr-defined]


def real_rows(trained: Trained, names: tuple[str, ...], *, raw: bool) -> dict[str, np.ndarray]:
    found = prepare_sets((as_they_stand(trained) if raw else trained).plan.data)["training"]
    return found.gather(np.arange(ROWS), names)


def reference(trained: Trained, outputs: tuple[str, ...]) -> dict[str, torch.Tensor]:
    """Prepared fields through the run's own model, in the precision of the weights."""
    network = trained.network(outputs)
    values = real_rows(trained, network.inputs, raw=False)
    with torch.no_grad():
        found = network.module(*(torch.from_numpy(values[name]) for name in network.inputs))
    return dict(zip(network.outputs, found, strict=True))


def loaded(to: str, made: Exported, rows: dict[str, np.ndarray]) -> dict[str, torch.Tensor]:
    about = json.loads((made.folder / "preprocessing.json").read_text())
    given = {each["name"]: rows[each["name"]].astype(each["dtype"]) for each in about["inputs"]}
    names = [each["name"] for each in about["outputs"]]
    if to == "onnx":
        session = onnxruntime.InferenceSession(made.folder / "model.onnx", providers=["CPUExecutionProvider"])
        return {name: torch.from_numpy(array) for name, array in zip(names, session.run(names, given), strict=True)}
    module = torch.export.load(made.folder / "model.pt2").module()
    with torch.no_grad():
        return dict(zip(names, module(*map(torch.from_numpy, given.values())), strict=True))


@pytest.mark.parametrize(
    ("name", "outputs", "to"),
    [
        ("wine", (), "onnx"),
        ("wine", (), "torch-export"),
        pytest.param("conv", ("logits", "pooled"), "onnx", marks=pytest.mark.long),
        ("conv", ("logits", "pooled"), "torch-export"),
        ("gpt", (), "onnx"),
        pytest.param("gpt", (), "torch-export", marks=pytest.mark.long),
        ("lstm", (), "onnx"),
        pytest.param("lstm", (), "torch-export", marks=pytest.mark.long),
        ("vae", ("mu", "log_var"), "torch-export"),
        ("plugged", (), "torch-export"),
        pytest.param("vae", ("mu", "log_var"), "onnx", marks=pytest.mark.long),
        pytest.param("plugged", (), "onnx", marks=pytest.mark.long),
    ],
)
def test_real_rows_give_the_same(
    runs: dict[str, Trained], tmp_path: Path, name: str, outputs: tuple[str, ...], to: str
) -> None:
    trained = runs[name]
    made = export(trained, to, tmp_path / "out", outputs=outputs)
    expected = reference(trained, made.outputs)
    found = loaded(to, made, real_rows(trained, made.inputs, raw=True))
    for output, tensor in expected.items():
        wanted = tensor if name != "lstm" else in_unit(trained, tensor)
        apart = (found[output].double() - wanted.double()).abs().max() / max(1.0, wanted.abs().max())
        assert apart < 1e-5, output


def in_unit(trained: Trained, tensor: torch.Tensor) -> torch.Tensor:
    unit = trained.unit("future")
    assert unit is not None
    return tensor.double() * unit.multiply[0] + unit.add[0]


@pytest.mark.parametrize("to", FORMATS)
def test_missing_numbers_scales_and_units_are_inside(runs: dict[str, Trained], tmp_path: Path, to: str) -> None:
    trained = runs["gaps"]
    made = export(trained, to, tmp_path / "out")
    raw = {"x": np.stack([[np.nan, 100.0], [5.0, 5.0]], axis=1)}
    means = trained.fields["x"].statistics["fill"]
    filled = {"x": np.where(np.isnan(raw["x"]), means[0], raw["x"])}  # type: ignore[index]
    first, second = loaded(to, made, raw), loaded(to, made, filled)
    assert torch.equal(first["price_hat"], second["price_hat"])
    assert 50_000 < first["price_hat"].mean() < 600_000  # the price's own unit, not thousands and not normalised
    expected = reference(trained, ("price_hat",))["price_hat"].double()
    unit = trained.unit("price")
    assert unit is not None
    found = loaded(to, made, raw_gaps(trained))["price_hat"].double()
    assert torch.allclose(found, expected * unit.multiply[0] + unit.add[0], rtol=1e-5)


def raw_gaps(trained: Trained) -> dict[str, np.ndarray]:
    """Of the file, with its gaps."""
    import pandas as pd

    frame = pd.read_csv(str(trained.plan.data.source["path"]))
    numbers = prepare_sets(trained.plan.data)["training"].rows.at(np.arange(ROWS))
    return {"x": frame.loc[numbers, ["f_size", "f_rooms"]].to_numpy(np.float64)}


@pytest.mark.long
def test_what_onnx_itself_finds_wrong_is_told(
    runs: dict[str, Trained], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check_model(*_: object, **__: object) -> None:
        raise onnx.shape_inference.InferenceError("[ShapeInferenceError] of rank: (3) vs (4)")

    monkeypatch.setattr(onnx.checker, "check_model", check_model)
    with pytest.raises(ExportFailure, match=r"^the model cannot be written as ONNX: .*\(3\) vs \(4\)"):
        export(runs["gaps"], "onnx", tmp_path / "out")


@pytest.mark.parametrize(("to", "names"), [("safetensors", "wine"), ("state-dict", "wine"), ("safetensors", "gpt")])
def test_tensors_have_the_recipes_names(runs: dict[str, Trained], tmp_path: Path, to: str, names: str) -> None:
    made = export(runs[names], to, tmp_path / "out")
    if to == "safetensors":
        from safetensors.torch import load_file

        found = load_file(made.folder / "model.safetensors")
    else:
        found = torch.load(made.folder / "model.pt", weights_only=True)
    expected = runs[names].module().state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
    assert {tensor.dtype for tensor in found.values()} == {torch.float32}  # of gpt, too, which was trained in bf16


@pytest.mark.parametrize(
    ("to", "name"),
    [
        ("torch-export", "wine"),
        pytest.param("safetensors", "wine", marks=pytest.mark.long),
        pytest.param("state-dict", "wine", marks=pytest.mark.long),
        pytest.param("onnx", "wine", marks=pytest.mark.long),
        pytest.param("onnx", "vae", marks=pytest.mark.long),
        pytest.param("torch-export", "lstm", marks=pytest.mark.long),
        pytest.param("torch-export", "gpt", marks=pytest.mark.long),
        pytest.param("onnx", "conv", marks=pytest.mark.long),
    ],
)
def test_the_snippet_runs_as_it_stands(runs: dict[str, Trained], tmp_path: Path, to: str, name: str) -> None:
    made = export(runs[name], to, tmp_path / "out")
    code = (made.folder / "README.md").read_text().split("```python\n")[1].split("```")[0]
    assert code == (made.folder / "load.py").read_text()
    elsewhere = tmp_path / "moved"
    made.folder.rename(elsewhere)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    of_torch = "ignore:The given buffer is not writable:UserWarning"  # 2.11, of its own `torch.export.load`
    command = [sys.executable, "-W", "error", "-W", of_torch, "load.py"]
    result = subprocess.run(command, cwd=elsewhere, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert (made.outputs[0] if to in FORMATS else "hidden.weight") in result.stdout


def test_columns_become_inputs_by_the_snippet(runs: dict[str, Trained], tmp_path: Path) -> None:
    """`rows_of` of load.py, with words by the vocabulary: the classes are those of the model."""
    import pandas as pd

    trained = runs["wine"]
    made = export(trained, "torch-export", tmp_path / "out")
    space: dict[str, object] = {"__file__": str(made.folder / "load.py"), "__name__": "load"}
    exec((made.folder / "load.py").read_text(), space)
    frame = pd.read_csv(str(trained.plan.data.source["path"]))
    rows = space["rows_of"](frame)  # type: ignore[operator]
    assert {name: array.dtype.name for name, array in rows.items()} == {"features": "float64", "site": "int64"}
    answers = space["predict"](rows)  # type: ignore[operator]
    classes = np.array(trained.class_names("kind"))[answers["logits"].argmax(1)]
    assert (classes == frame["kind"]).mean() > 0.9
    with pytest.raises(KeyError, match="moon"):
        space["rows_of"]({**frame, "site": ["moon"] * len(frame)})  # type: ignore[operator]


def test_what_is_drawn_is_said(runs: dict[str, Trained], tmp_path: Path) -> None:
    made = export(runs["vae"], "torch-export", tmp_path / "out", outputs=["decoder", "mu"])
    about = json.loads((made.folder / "preprocessing.json").read_text())
    assert [(each["name"], each["is_random"]) for each in about["outputs"]] == [("decoder", True), ("mu", False)]
    assert "random in each call" in (made.folder / "README.md").read_text()
    rows = real_rows(runs["vae"], ("image",), raw=True)
    first, second = loaded("torch-export", made, rows), loaded("torch-export", made, rows)
    assert torch.equal(first["mu"], second["mu"])
    assert not torch.equal(first["decoder"], second["decoder"])


def test_prepared_fields_go_in(runs: dict[str, Trained], tmp_path: Path) -> None:
    made = export(runs["gaps"], "torch-export", tmp_path / "out", numbers="prepared")
    found = loaded("torch-export", made, real_rows(runs["gaps"], ("x",), raw=False))
    expected = reference(runs["gaps"], made.outputs)
    assert all(torch.allclose(found[name], tensor, atol=1e-6) for name, tensor in expected.items())
    entry = json.loads((made.folder / "preprocessing.json").read_text())["inputs"][0]
    assert entry["dtype"] == "float32"
    assert entry["in_the_model"] == []
    assert len(entry["before_the_model"]) == 3
    space: dict[str, object] = {"__file__": str(made.folder / "load.py"), "__name__": "load"}
    exec((made.folder / "load.py").read_text(), space)
    raw = raw_gaps(runs["gaps"])["x"]
    rows = space["rows_of"]({"f_size": raw[:, 0], "f_rooms": raw[:, 1]})  # type: ignore[operator]
    assert np.allclose(rows["x"], real_rows(runs["gaps"], ("x",), raw=False)["x"], atol=1e-6)


@pytest.mark.parametrize(("dtype", "kind"), [("float16", torch.float16), ("float64", torch.float64)])
def test_another_dtype(runs: dict[str, Trained], tmp_path: Path, dtype: str, kind: torch.dtype) -> None:
    made = export(runs["wine"], "state-dict", tmp_path / "out", dtype=dtype)
    found = torch.load(made.folder / "model.pt", weights_only=True)
    assert {tensor.dtype for tensor in found.values()} == {kind}
    program = export(runs["wine"], "torch-export", tmp_path / "program", dtype=dtype)
    answers = loaded("torch-export", program, real_rows(runs["wine"], program.inputs, raw=True))
    expected = reference(runs["wine"], ("logits",))["logits"]
    assert answers["logits"].dtype == kind
    assert torch.allclose(answers["logits"].double(), expected.double(), atol=3e-2)


def test_an_output_inside_of_a_block(runs: dict[str, Trained], tmp_path: Path) -> None:
    made = export(runs["gpt"], "torch-export", tmp_path / "out", outputs=["gpt.layers.0"])
    found = loaded("torch-export", made, real_rows(runs["gpt"], ("tokens",), raw=True))
    assert found["gpt.layers.0"].shape == (ROWS, 16, 16)


def test_no_row_of_the_data_goes_along(runs: dict[str, Trained], tmp_path: Path) -> None:
    made = export(runs["wine"], "torch-export", tmp_path / "out")
    with np.load(made.folder / "sample.npz") as file:
        sample = file["input/features"]
    rows = real_rows(runs["wine"], ("features",), raw=True)["features"]
    assert not (sample[:, None] == rows[None]).all(-1).any()
    assert made.files == ("README.md", "load.py", "model.pt2", "plan.json", "preprocessing.json", "sample.npz")


def test_the_node_that_cannot_be_exported_is_named(tmp_path: Path) -> None:
    write_data(tmp_path)
    layers = (tmp_path / "layers.py").read_text()
    deciding = layers.replace("return torch.sin(self.rate * x)", "return x if x.sum() > 0 else 2 * x")
    (tmp_path / "layers.py").write_text(deciding)
    trained = open_trained(train(tmp_path, RECIPES["plugged"], "training.epochs=1", plugins=True), plugins=True)
    with pytest.raises(ExportFailure, match=r"node `act` cannot be exported by torch\.export"):
        export(trained, "torch-export", tmp_path / "out")
    assert not [each for each in tmp_path.iterdir() if "out" in each.name]


def test_what_no_export_sees_is_found_out(tmp_path: Path) -> None:
    """A number that Python computes is a constant of the exported program."""
    write_data(tmp_path)
    layers = (tmp_path / "layers.py").read_text()
    hidden = layers.replace("return torch.sin(self.rate * x)", "return x + float(x.detach().numpy().sum())")
    (tmp_path / "layers.py").write_text(hidden)
    trained = open_trained(train(tmp_path, RECIPES["plugged"], "training.epochs=1", plugins=True), plugins=True)
    with pytest.raises(ExportFailure, match=r"node `act`|differs by"):
        export(trained, "torch-export", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_file_that_is_not_the_model_is_not_kept(
    runs: dict[str, Trained], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = formats.FORMATS["torch-export"]

    def moved(*given: object) -> dict[str, torch.Tensor]:
        return {name: tensor + 1e-3 for name, tensor in own.read_back(*given).items()}  # type: ignore[arg-type]

    monkeypatch.setitem(formats.FORMATS, "torch-export", replace(own, read_back=moved))  # type: ignore[arg-type]
    with pytest.raises(ExportFailure, match="differs by"):
        export(runs["wine"], "torch-export", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_missing_package_names_the_extra(runs: dict[str, Trained], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(ExportFailure, match=r"pip install 'declarative_train\[onnx\]'"):
        export(runs["wine"], "onnx")


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"to": "onnxx"}, "did you mean `onnx`"),
        ({"to": "onnx", "dtype": "bfloat16"}, "--dtype float16"),
        ({"to": "torch-export", "outputs": ["logit"]}, "did you mean `logits`"),
    ],
)
def test_what_cannot_be_asked_for(
    runs: dict[str, Trained], tmp_path: Path, how: dict[str, object], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        export(runs["wine"], **{"folder": tmp_path / "out"} | how)  # type: ignore[arg-type]


def test_other_files_are_left_alone(runs: dict[str, Trained], tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match="other files"):
        export(runs["wine"], "state-dict", tmp_path)
    export(runs["wine"], "state-dict", tmp_path / "out")
    export(runs["wine"], "state-dict", tmp_path / "out", outputs=["hidden"])
    assert "logits.weight" not in torch.load(tmp_path / "out" / "model.pt", weights_only=True)
    assert [each.name for each in tmp_path.iterdir() if each.name.startswith(".")] == []


@pytest.mark.parametrize("to", ["onnx", "torch-export"])
def test_an_older_torch_does_not_export_an_lstm(
    runs: dict[str, Trained], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, to: str
) -> None:
    monkeypatch.setattr(metadata, "version", lambda name: "2.11.0")
    with pytest.raises(ExportFailure, match=r"an LSTM in a wrong shape; help: pip install 'torch>=2.13'"):
        export(runs["lstm"], to, tmp_path / "out")


def test_statistics_stand_over_the_rows_of_a_window(runs: dict[str, Trained]) -> None:
    (past,) = make_program(runs["lstm"], ()).inputs
    assert past.shape == (8, 2)
    assert past.dtype == torch.float64
    assert past.preparation.subtract is not None
    assert len(past.preparation.subtract) == 2


def test_every_format_has_its_name() -> None:
    assert tuple(sorted((*PUBLISHED, *formats.FORMATS))) == NAMES


def test_the_command(runs: dict[str, Trained], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "export",
        str(runs["wine"].run),
        "--to",
        "torch-export",
        "--out",
        str(tmp_path / "out"),
        "--output",
        "hidden",
    ]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "model.pt2" in said
    assert "from features, site to hidden" in said
    assert main(["export", str(tmp_path / "nowhere"), "--to", "onnx"]) == 2
    assert "there is no run" in capsys.readouterr().err


@pytest.mark.long
def test_the_documented_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_csv(tmp_path / "wine.csv", WINE_COLUMNS, wine_rows())
    train(tmp_path, WINE)
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[3] / "docs" / "exporting.md").read_text("utf-8")
    lines = re.findall(r"^\$ dtrain (export .*)$", page, re.M)
    assert lines
    for line in lines:
        assert main(shlex.split(line, comments=True)) == 0, capsys.readouterr().err
    assert (tmp_path / "wine_model").exists()
