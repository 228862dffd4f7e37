"""The core works alone: in a copy without the folders `packs/` and `tools/` and without their entry points, its modules
are imported, a recipe is linted and trained, and the tests of its rooms pass."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_layers import ROOMS

ROOT = Path(__file__).parent.parent
OUTSIDE = ROOMS[ROOMS.index("packs") :]
QUICK = ("source/test_merge.py", "recipe/test_sections.py", "data/test_tensor_sets.py")
IMPORTS = """
import importlib, pkgutil, sys, declarative_train
from declarative_train.__main__ import main
from declarative_train.core.packs import find_packs
assert not find_packs()
for module in pkgutil.walk_packages(declarative_train.__path__, "declarative_train."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
assert main(["lint", "recipes/digits_mlp.yaml"]) == 0
sys.exit(main(["run", "--quiet", "recipes/digits_mlp.yaml", "--set", "training.epochs=1"]))
"""


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("core")
    ignored = shutil.ignore_patterns(*OUTSIDE)  # with what is compiled of it
    for name in ("declarative_train", "tests", "recipes", "docs", "schemas", "benchmarks"):
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    for path in ROOT.iterdir():
        if path.is_file():
            shutil.copy(path, folder)
    metadata = folder / "declarative_train-0.1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: declarative_train\nVersion: 0.1.0\n")
    return folder


def python(core: Path, *words: str, timeout_s: int = 100) -> str:
    done = subprocess.run(
        [sys.executable, *words],
        cwd=core,
        env={**os.environ, "PYTHONPATH": str(core)},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


def run_tests(core: Path, *names: str, timeout_s: int) -> None:
    chosen = "not long and not matrix and not gpu"
    tests = [f"tests/{name}" for name in names]
    python(core, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", chosen, *tests, timeout_s=timeout_s)


def test_its_modules_need_no_pack_and_it_lints_and_trains(core: Path) -> None:
    assert "nothing wrong" in python(core, "-c", IMPORTS)


@pytest.mark.timeout(400)
def test_some_of_its_tests_pass(core: Path) -> None:
    run_tests(core, *QUICK, timeout_s=390)


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("room", [room for room in ROOMS if room not in OUTSIDE and (ROOT / "tests" / room).is_dir()])
def test_the_tests_of_its_rooms_pass(core: Path, room: str) -> None:
    run_tests(core, room, timeout_s=7000)
