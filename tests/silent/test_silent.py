"""The suite of silent mistakes: each is found as its entry says, and nothing is found in correct recipes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from declarative_train.app.catalogue import catalogue
from tests.generated_recipes import generated
from tests.linted import Found, dtrain, found_in
from tests.silent.data import write_data
from tests.silent.suite import CLASSES, HERE, ROOT, Mistake, mistakes, write_recipe
from tests.started import finish, start

SUITE = {each.name: each for each in mistakes()}
WITH_RECIPE = [name for name, each in SUITE.items() if each.recipe]
CORRECT = sorted((HERE / "recipes").glob("*.yaml"))
TRUE = {"R108", "P014", "D033"}  # of generated recipes: draws on two ranks, few cores, a class in no row of a small set
NUM_GENERATED = 100
NUM_QUICK = 20


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the data, the correct recipes and those of the repository."""
    made = tmp_path_factory.mktemp("silent")
    write_data(made)
    shutil.copytree(ROOT / "recipes", made / "recipes")
    (made / "data").symlink_to(ROOT / "tests" / "cases" / "data")
    for path in CORRECT:
        shutil.copy(path, made)
    return made


@pytest.fixture(autouse=True)
def _there(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)


@pytest.mark.parametrize("name", WITH_RECIPE)
def test_a_mistake_is_found_as_its_entry_says(name: str, folder: Path) -> None:
    each = SUITE[name]
    path = write_recipe(each, folder)
    found = found_in(path.name)
    if each.kind == "lint":
        assert [item for item in found if item["code"] == each.detail and is_near(item, each)], found
    elif each.kind == "missed":
        assert not found
    else:
        assert not [item for item in found if item["severity"] == "error"]
        output = dtrain("run", path.name, "--max-steps", "4", "--quiet")
        assert any(line.startswith("warning: ") and each.detail in line for line in output.err.splitlines()), output.err


def is_near(item: Found, each: Mistake) -> bool:
    """Return whether a diagnostic is in the recipe of the mistake, or in the correct one that it extends."""
    place = Path(str(item["path"])).name
    return place in (f"{each.name}.yaml", Path(each.base).name, "table.yaml", "pictures.yaml")


@pytest.mark.parametrize("mode", ["ddp", "fsdp", "{pipeline: {stages: 2, microbatches: 2}}"])
def test_ranks_report_together(mode: str, folder: Path) -> None:
    words = ("--max-steps", "4", "--quiet", "--set", f"parallelism={mode}", "--set", "layout={gpus: 2, device: cpu}")
    recipes = {"table.yaml": False, write_recipe(SUITE["dead_relu"], folder).name: True}
    for recipe, is_wrong in recipes.items():
        code, _, errors = finish(start("declarative_train", "run", recipe, *words, cwd=folder))
        assert code == 0, errors
        assert ("no gradient reached" in errors) == is_wrong


@pytest.mark.parametrize("name", [name for name, each in SUITE.items() if each.kind == "impossible"])
def test_what_is_impossible_has_a_test(name: str) -> None:
    file, _, function = SUITE[name].test.partition("::")
    assert f"def {function}(" in (ROOT / file).read_text("utf-8")


def test_entries_are_whole() -> None:
    assert len(SUITE) >= NUM_GENERATED
    known = catalogue()
    for each in SUITE.values():
        assert each.kind in CLASSES, each.name
        assert bool(each.recipe) != (each.kind == "impossible"), each.name
        assert each.kind != "lint" or each.detail in known, each.name


@pytest.mark.parametrize("path", CORRECT, ids=lambda path: path.stem)
def test_a_correct_recipe_is_silent(path: Path) -> None:
    assert not found_in(path.name)
    output = dtrain("run", path.name, "--max-steps", "4", "--quiet")
    assert "warning: " not in output.err


@pytest.mark.parametrize(
    "seeds", [range(NUM_QUICK), pytest.param(range(NUM_QUICK, NUM_GENERATED), marks=pytest.mark.long)], ids=str
)
def test_generated_recipes_are_silent(seeds: range, folder: Path) -> None:
    for seed in seeds:
        path = folder / f"generated_{seed}.yaml"
        path.write_text(generated(seed), "utf-8")
        found = [item for item in found_in(path.name) if item["code"] not in TRUE]
        assert not found, (seed, found)
