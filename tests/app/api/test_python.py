"""The Python interface: what the commands do, as objects; errors that a notebook can show."""

from __future__ import annotations

import copy
import inspect
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
import yaml

import declarative_train as dt
from declarative_train.app.api import tables
from declarative_train.app.main import main
from tests.inference.made_runs import WINE, WINE_COLUMNS, wine_rows, write_csv

BROKEN = WINE.replace("out_features: 8", "out_feature: 8")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_csv(tmp_path / "wine.csv", WINE_COLUMNS, wine_rows())
    (tmp_path / "wine.yaml").write_text(WINE)
    (tmp_path / "broken.yaml").write_text(BROKEN)
    return tmp_path


@pytest.fixture(scope="module")
def run(wine: Path) -> dt.Run:
    return dt.open_run(wine)


@pytest.mark.packs
def test_all_names_are_there_sorted_and_documented() -> None:
    assert sorted(dt.__all__) == dt.__all__
    for name in dt.__all__:
        found = getattr(dt, name)
        assert name == "__version__" or inspect.getdoc(found), name
    assert {name for name in dir(dt) if not name.startswith("_")} == set(dt.__all__) - {"__version__"}
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = dt.no_such_name


@pytest.mark.parametrize(
    ("typed", "hint"),
    [
        ("dt.read('wine.yaml')", "`dt.load(PATH)`"),
        ("dt.fit('wine.yaml')", "`dt.load(PATH).run()`"),
        ("dt.laod", "did you mean `load`?"),
        ("dt.load('wine.yaml', epochs=3)", "`dt.load(PATH, set={'training.epochs': 3})`"),
        ("dt.load('wine.yaml', batch_size=8)", "`dt.load(PATH, set={'training.global_batch_size': 8})`"),
        ("recipe.fit()", "`recipe.run()` trains"),
        ("recipe.summary()", "`recipe.plan()`"),
        ("recipe.training.epochs", "`dt.load(PATH, set={'training.epochs': 5})`"),
        ("recipe.run(epochs=3)", "`dt.load(PATH, set={'training.epochs': 3})`"),
        ("recipe.run(max_step=3)", "did you mean `max_steps`?"),
        ("recipe.pln()", "did you mean `plan`?"),
        ("run.score(frame)", "`run.evaluate()`"),
        ("run.predict_proba(frame)", "`run.predict(ROWS)`"),
        ("run.history", "`run.metrics`"),
        ("run.save('m.pt')", "`run.export('safetensors')`"),
        ("run.model", "`run.module()`"),
        ("run.predict(frame.to_numpy())", "`pd.DataFrame(ROWS, columns="),
        ("run.predict([[1, 2]])", "each row of a list is a mapping"),
    ],
)
def test_words_of_other_libraries_lead_to_those_here(folder: Path, run: dt.Run, typed: str, hint: str) -> None:
    names = {"dt": dt, "recipe": dt.load("wine.yaml"), "run": run, "frame": pd.read_csv("wine.csv")}
    with pytest.raises((AttributeError, TypeError, dt.DtrainError)) as raised:
        eval(typed, names)
    assert hint in str(raised.value)


def test_what_notebooks_and_copies_look_for_is_absent_without_a_hint(folder: Path) -> None:
    recipe = dt.load("wine.yaml")
    assert not hasattr(recipe, "_ipython_display_")
    assert copy.deepcopy(recipe).path == recipe.path
    assert inspect.signature(dt.load).parameters.keys() == {"path", "set", "with_"}


def test_the_import_costs_nothing() -> None:
    code = (
        "import sys, declarative_train as dt\n"
        "ours = [name for name in sys.modules if name.startswith('declarative_train.')]\n"
        "assert not ours and 'pydantic' not in sys.modules, ours\n"
        "dt.load\n"
        "assert not {'torch', 'numpy', 'pyarrow', 'pandas'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_the_version_is_that_of_the_package() -> None:
    from importlib.metadata import version

    assert dt.__version__ == version("declarative_train")


def test_a_source_tree_that_was_never_installed_works(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from importlib import metadata

    installed = metadata.version

    def version(name: str) -> str:
        if name == "declarative_train":
            raise metadata.PackageNotFoundError(name)
        return installed(name)

    monkeypatch.setattr(metadata, "version", version)
    monkeypatch.setitem(vars(dt), "__version__", "")  # what is looked up now is forgotten behind this test
    del vars(dt)["__version__"]
    assert dt.__version__ == "unknown"
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == "dtrain unknown\n"
    assert main(["doctor"]) == 0
    assert "dtrain        unknown" in capsys.readouterr().out
    # no release is known to be too old, and what is no requirement is still said
    for requires, code in {"dtrain>=99.0": 0, "torch": 1}.items():
        (folder / "asks.yaml").write_text(f"requires: {requires}\n{WINE}")
        for command in (["lint", "--format", "sarif"], ["show", "--explicit"]):
            assert main([*command, "asks.yaml"]) == code, (requires, command)
            said = capsys.readouterr()
            assert ("not of the form" in said.out + said.err) == bool(code)
            assert "unknown" in said.out or "show" in command


def test_lint_gives_places(folder: Path) -> None:
    found = dt.load("broken.yaml").lint()
    assert [each.code for each in found.errors] == ["S001"]
    assert found[0].span.path.endswith("broken.yaml")
    assert found[0].span.line == BROKEN.splitlines().index("    hidden: {type: linear, out_feature: 8}") + 1
    assert "did you mean `out_features`?" in repr(found)
    assert "broken.yaml:" in repr(found)
    assert "error[S001]" in found._repr_html_()
    assert dt.load("wine.yaml").lint().errors == ()
    assert len(dt.load("wine.yaml").lint(static=True)) == 0


def test_lint_of_markup_stays_text(folder: Path) -> None:
    (folder / "markup.yaml").write_text(WINE.replace("embedding_dim: 3", "embedding_dim: <b>3</b>"))
    assert "<b>3</b>" not in dt.load("markup.yaml").lint()._repr_html_()


def test_a_recipe_with_errors_has_no_plan(folder: Path) -> None:
    with pytest.raises(dt.DtrainError) as caught:
        dt.load("broken.yaml").plan()
    assert caught.value.exit_code == 1
    assert caught.value.diagnostics[0].code == "S001"
    assert "the recipe has an error" in str(caught.value)
    assert "did you mean `out_features`?" in str(caught.value)
    assert caught.value._render_traceback_() == [f"DtrainError: {caught.value}"]


def test_a_file_that_is_not_there(folder: Path) -> None:
    with pytest.raises(dt.DtrainError, match=r"did you mean `wine\.yaml`") as caught:
        dt.load("wein.yaml")
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(("value", "lr"), [(0.5, 0.5), (np.float32(0.5), 0.5), (1e-05, 1e-05), ("{{ 1 / 4 }}", 0.25)])
def test_values_are_set(folder: Path, value: object, lr: float) -> None:
    plan = dt.load("wine.yaml", set={"training.optimizer.lr": value, "seed": 7}).plan().plan
    assert plan.training.optimizer["lr"] == lr
    assert plan.seed == 7


def test_mappings_and_paths_are_set(folder: Path) -> None:
    values = {"training.optimizer": {"type": "sgd", "lr": 0.1, "momentum": 0.9}, "logging.dir": folder / "elsewhere"}
    plan = dt.load("wine.yaml", set=values).plan().plan
    assert plan.training.optimizer["type"] == "sgd"
    assert plan.logging.dir == str(folder / "elsewhere")


def test_what_no_recipe_can_hold_is_not_set(folder: Path) -> None:
    with pytest.raises(dt.DtrainError, match="`seed` is a object"):
        dt.load("wine.yaml", set={"seed": object()})


def test_fragments_and_texts(folder: Path) -> None:
    (folder / "longer.yaml").write_text("fragment: true\ntraining: {epochs: 3}\n")
    assert dt.load("wine.yaml", with_=["longer.yaml"]).plan().plan.training.num_epochs == 3
    assert dt.load("wine.yaml", with_="longer.yaml").plan().plan.training.num_epochs == 3
    assert dt.loads(WINE).plan().plan.name == "wine"
    assert dt.loads(WINE).text == WINE
    with pytest.raises(dt.DtrainError, match="is a fragment"):
        dt.load("longer.yaml").plan()


def test_a_plan_is_shown_and_saved(folder: Path) -> None:
    plan = dt.load("wine.yaml").plan()
    assert str(plan).startswith("wine: single, on one device")
    assert "<b>model</b>" in plan._repr_html_()
    plan.save("plan.json")
    assert Path("plan.json").read_text() == plan.to_json()
    assert dt.load_plan("plan.json").plan == plan.plan
    assert "hidden.weight" in plan.module().state_dict()
    with pytest.raises(dt.DtrainError, match="not JSON"):
        dt.load_plan("wine.yaml")


def test_a_stale_plan_is_not_run(folder: Path) -> None:
    dt.load("wine.yaml").plan().save("plan.json")
    (folder / "wine.yaml").write_text(WINE + "# changed\n")
    with pytest.raises(dt.DtrainError, match="this plan is stale"):
        dt.load_plan("plan.json").run()


def test_a_recipe_is_run(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run = dt.load("wine.yaml", set={"training.epochs": 4, "evaluation.every": "2 epochs"}).run(quiet=True)
    assert capfd.readouterr() == ("", "")
    assert run.state == "finished"
    assert run.folder.parent == folder / "runs" / "wine"
    assert run.result["validation/accuracy"] == run.epochs["validation/accuracy"].iloc[-1]
    assert list(run.epochs["epoch"]) == [1, 2, 3, 4]
    assert run.epochs["validation/loss"].isna().tolist() == [True, False, True, False]
    assert {"step", "epoch", "training/loss", "training/lr", "validation/accuracy"} <= set(run.metrics.columns)
    assert run.metrics["step"].is_monotonic_increasing
    assert dt.open_run(folder / "runs" / "wine").folder.name == run.folder.name
    assert "finished" in repr(run)
    assert "validation/accuracy" in run._repr_html_()
    further = dt.load("wine.yaml", set={"training.epochs": 6}).run(resume=run.folder, max_steps=3, quiet=True)
    assert further.folder.samefile(run.folder)
    assert further.record.step > 0


def test_ranks_are_started_and_fail_as_one_error(folder: Path) -> None:
    two = {"parallelism": "ddp", "layout": {"device": "cpu", "gpus": 2}, "training.epochs": 2}
    torch.set_num_threads(2)
    try:
        assert dt.load("wine.yaml", set=two).run(quiet=True).state == "finished"
        assert torch.get_num_threads() == 2  # those of the notebook are left alone
    finally:
        torch.set_num_threads(1)
    with pytest.raises(dt.DtrainError) as caught:
        dt.load("wine.yaml", set=two | {"training.optimizer.lr": 1e30}).run(quiet=True)
    assert caught.value.exit_code == 3
    assert "loss" in str(caught.value)


def test_an_interrupt_ends_the_run_and_not_the_process(folder: Path) -> None:
    def interrupt() -> None:
        while not any(len(path.read_text().splitlines()) > 3 for path in folder.rglob("events.jsonl")):
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)

    recipe = dt.load("wine.yaml", set={"training.epochs": 100_000, "logging.every": "1 step"})
    watcher = threading.Thread(target=interrupt, daemon=True)
    watcher.start()
    run = recipe.run(quiet=True)
    watcher.join(5)
    assert run.state == "stopped"
    assert 0 < run.record.step < 100_000
    step = run.record.step
    assert recipe.run(resume=run.folder, max_steps=2, quiet=True).record.step == step + 2


def test_steps_are_positive(folder: Path) -> None:
    with pytest.raises(ValueError, match="at least one step"):
        dt.load("wine.yaml").run(max_steps=0)


def test_no_run_there(folder: Path) -> None:
    with pytest.raises(dt.DtrainError, match="there is no run") as caught:
        dt.open_run("runs/nowhere")
    assert caught.value.exit_code == 2


def test_ranks_share_rows_and_samples(run: dt.Run, tmp_path: Path) -> None:
    frame = pd.DataFrame(wine_rows(count=40, seed=3), columns=list(WINE_COLUMNS))
    pd.testing.assert_frame_equal(run.predict(frame), run.predict(frame, ranks=2, batch_size=7), rtol=1e-5)
    write_csv(tmp_path / "new.csv", WINE_COLUMNS, frame.to_numpy().tolist())
    pd.testing.assert_frame_equal(run.predict(frame), run.predict(tmp_path / "new.csv", ranks=2, batch_size=7))
    for given in ((), (frame,)):
        assert run.evaluate(*given, ranks=2).values == pytest.approx(run.evaluate(*given).values)
    found = run.evaluate(max_samples=3)
    assert found.num_samples == 3
    assert "3 samples" in str(found)
    assert repr(found).startswith("<Evaluation ")
    assert len(repr(found)) < 400
    assert "<pre" in found._repr_html_()
    assert "3 samples here" in found.notices[0]


def test_rows_are_predicted(run: dt.Run, tmp_path: Path) -> None:
    frame = pd.DataFrame(wine_rows(count=12, seed=3), columns=list(WINE_COLUMNS), index=range(100, 112))
    found = run.predict(frame.drop(columns="kind"), keep=["site"])
    assert list(found.index) == list(range(100, 112))
    assert list(found.columns)[:2] == ["site", "class"]
    assert (found["class"] == frame["kind"]).mean() > 0.9
    write_csv(tmp_path / "new.csv", WINE_COLUMNS, frame.to_numpy().tolist())
    assert list(run.predict(tmp_path / "new.csv")["class"]) == list(found["class"])
    assert list(run.predict(frame.to_dict("list"))["class"]) == list(found["class"])
    assert list(run.predict(pa.Table.from_pandas(frame))["class"]) == list(found["class"])
    assert list(run.predict(frame.iloc[3])["class"]) == list(found["class"])[3:4]
    assert len(run.predict(frame, outputs=["hidden"])) == 12
    with pytest.raises(dt.DtrainError, match="f1"):
        run.predict(frame.drop(columns="f1"))
    with pytest.raises(dt.DtrainError, match="these rows are not a table"):
        run.predict(["new.csv"])
    with pytest.raises(dt.DtrainError, match="not a int"):
        run.predict(3)


def test_a_recipe_is_loaded_from_its_sections(tmp_path: Path) -> None:
    sections = yaml.safe_load((Path(__file__).parents[3] / "recipes" / "multi_gpu_ddp.yaml").read_text())
    recipe = dt.load(sections, set={"parallelism": "single", "layout.gpus": 1})
    assert recipe.plan().plan.batch.global_batch_size == 100
    found = dt.load({**sections, "trainig": {}}).lint()
    assert "did you mean `training`" in str(found)
    assert [each.span.line for each in found if "trainig" in each.message] != [1]
    assert dt.load({"data": {"source": {"type": "csv", "path": tmp_path / "a.csv"}}}).text.count("a.csv") == 1
    for wrong, why in ((3, "loaded from a path, not from a int"), ({"x": object()}, "object is not a value")):
        with pytest.raises(dt.DtrainError, match=why):
            dt.load(wrong)  # type: ignore[arg-type]


def test_the_callers_default_dtype_changes_no_plan() -> None:
    """In float64 a node `float(...)` did not fit the float32 of the others."""
    import torch

    recipe = dt.load(Path(__file__).parents[3] / "recipes/gallery/contrastive.yaml")
    before = recipe.plan().to_json()
    torch.set_default_dtype(torch.float64)
    try:
        assert recipe.plan().to_json() == before
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


def test_the_module_has_the_recipes_names(run: dt.Run) -> None:
    module = run.module()
    assert "hidden.weight" in dict(module.named_parameters())
    assert not module.training
    assert run.trained().class_names("kind") == ("barbera", "barolo", "grignolino")


def test_without_pandas_a_table_is_arrow(run: dt.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "find_spec", lambda name: None)
    assert isinstance(run.metrics, pa.Table)
    assert "training/loss" in run.metrics.column_names


@pytest.mark.parametrize("column", ["photo", "path"])
@pytest.mark.packs
def test_a_picture_is_given_whatever_its_column_is_called(column: str, tmp_path: Path) -> None:
    """`predict RUN picture.jpg` asked for the column of the recipe's table."""
    from PIL import Image

    (tmp_path / "files").mkdir()
    for at in range(8):
        Image.new("L", (8, 8), 30 * at).save(tmp_path / "files" / f"{at}.png")
    rows = [f"{at}.png,{'dark' if at < 4 else 'light'}" for at in range(8)]
    (tmp_path / "photos.csv").write_text("\n".join([f"{column},kind", *rows]) + "\n")
    (tmp_path / "r.yaml").write_text(
        f"""name: photos
data:
  source: {{type: csv, path: photos.csv}}
  fields:
    image: {{type: image, column: {column}, folder: files, mode: L, size: 8}}
    kind: {{type: category, column: kind}}
model: {{graph: {{flat: {{type: flatten, input: image}}, net: {{type: linear, out_features: 2}}}}}}
objective: {{loss: {{type: cross_entropy, input: net, target: kind}}}}
training: {{epochs: 1, global_batch_size: 4, optimizer: {{type: sgd, lr: 0.1}}}}
layout: {{device: cpu}}
logging: {{dir: {tmp_path}/runs}}
"""
    )
    run = dt.load(tmp_path / "r.yaml").run()
    of_file, of_table = run.predict(tmp_path / "files" / "6.png"), run.predict(pd.DataFrame({column: ["6.png"]}))
    assert of_file.equals(of_table)
    assert len(run.predict(str(tmp_path / "files"))) == 8
