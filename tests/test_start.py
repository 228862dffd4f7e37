"""What a start does not do: import what the command does not need, look for garbage that is not there, tidy up."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path

import pytest

import declarative_train
from declarative_train.__main__ import main
from declarative_train.components.component import Component
from declarative_train.components.field_docs import field_docs
from declarative_train.components.layers import LAYERS
from declarative_train.planner.footprint.forked_process import in_children
from declarative_train.run.launch import launch
from declarative_train.run.rank_job import RankJob
from tests.engine.made_recipes import DIGITS, compiled, merged, write_data

RECIPE = """\
data:
  source: {type: synthetic, kind: classification, rows: 100, features: 4, classes: 3}
  fields:
    x: {columns: "x*"}
    y: {type: category, column: y, num_classes: 3}
  split: {validation: 0.2}
model:
  graph:
    logits: {type: linear, out_features: 3, input: x}
objective:
  loss: {type: cross_entropy, input: logits, target: y}
training: {epochs: 5, global_batch_size: 20, optimizer: {type: adam, lr: 1e-3}}
"""
NOT_NEEDED = (
    "declarative_train.components.hardware",
    "declarative_train.core.diagnostics.fixes",
    "declarative_train.core.diagnostics.formats",
    "declarative_train.core.diagnostics.formats",
    "declarative_train.core.diagnostics.suppress",
    "declarative_train.plan.plan",
    "declarative_train.recipe.hints.pydantic_errors",
    "difflib",
    "fsspec",
    "jinja2",
    "numpy",
    "pyarrow",
    "torch",
)
SHOW = f"""
import sys
from declarative_train.__main__ import main
main(sys.argv[1:])
print([name for name in {NOT_NEEDED!r} if name in sys.modules])
"""
NAMED = {  # by the recipe, or defaults of what it leaves out
    *("datasets.synthetic", "fields.category", "fields.tensor", "layers.linear", "losses.classes"),
    *("lr_schedules.factors", "optimizers.builtin", "splits.shares"),
}
SHOW_MODULES = """
import sys
from declarative_train.__main__ import main
main(sys.argv[1:])
print(*sys.modules)
"""
PACKAGE = Path(declarative_train.__file__).parent


@pytest.fixture
def recipe(tmp_path: Path) -> str:
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    return str(tmp_path / "recipe.yaml")


def test_lint_static_imports_what_it_needs(recipe: str) -> None:
    command = [sys.executable, "-c", SHOW, "lint", "--static", recipe]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == "[]"


def test_a_component_is_imported_when_a_recipe_names_it(recipe: str) -> None:
    command = [sys.executable, "-c", SHOW_MODULES, "lint", "--static", recipe]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    imported = set(result.stdout.splitlines()[-1].split())
    leaves = {
        f"{path.parent.name}.{path.stem}"
        for path in (PACKAGE / "components").glob("*/*.py")
        if '    type: Literal["' in path.read_text()
    }
    assert leaves > NAMED
    assert {name for name in leaves if f"declarative_train.components.{name}" in imported} == NAMED


@pytest.mark.parametrize(("words", "code"), [(["--static"], 0), (["--static", "--set", "training.epochs=ten"], 1)])
def test_a_process_ends_with_the_code_and_all_that_it_said(recipe: str, words: list[str], code: int) -> None:
    command = [sys.executable, "-m", "declarative_train", "lint", recipe, *words]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == code
    assert result.stdout.endswith(("1 file: nothing wrong\n", "1 file: 1 error\n"))


@pytest.mark.parametrize("words", [["lint", "--static", "{}"], ["lint", "nowhere.yaml"], ["no_command"]])
def test_the_garbage_of_a_caller_is_collected_again(recipe: str, words: list[str]) -> None:
    main([word.format(recipe) for word in words])
    assert gc.isenabled()


def test_forked_processes_do_not_collect_the_objects_of_their_parent(tmp_path: Path) -> None:
    objects: list[list[int]] = [[] for _ in range(200_000)]

    def count(job: RankJob, *_: object) -> int:
        Path(job.run_dir, str(len(gc.get_objects()) < len(objects))).touch()
        return 0

    write_data(tmp_path)
    outcome = launch(compiled(tmp_path, merged(DIGITS, {"parallelism": "ddp", "layout": {"gpus": 2}})), work=count)
    assert outcome.run_dir is not None
    assert not Path(outcome.run_dir, "False").exists()
    assert Path(outcome.run_dir, "True").exists()
    assert in_children([lambda: len(gc.get_objects())])[0] < len(objects)


def test_the_docs_of_fields_are_read_from_the_source() -> None:
    docs = field_docs(LAYERS["self_attention"])
    assert docs["heads"]
    assert set(docs) <= set(LAYERS["self_attention"].model_fields)


def test_a_model_made_while_running_has_no_docs_but_what_its_fields_say() -> None:
    made = type("Made", (Component,), {"__annotations__": {"size": int}, "size": 3, "__module__": "nowhere"})
    assert field_docs(made) == {}
