"""A pack that another package brings: installed by pip, it is linted, listed and trained with."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXTERNAL = Path(__file__).parent / "external"
IMPORT = "from declarative_train.core.packs import Pack\n"


def dtrain(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(folder / "site"), str(ROOT)])
    return subprocess.run(
        [sys.executable, "-m", "declarative_train", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("external")
    shutil.copytree(EXTERNAL, folder / "source")
    alone = ["--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check", "--quiet"]
    command = [sys.executable, "-m", "pip", "install", *alone, "--target", str(folder / "site"), str(folder / "source")]
    subprocess.run(command, check=True, timeout=100)
    degrees = [360 * number / 96 - 180 for number in range(96)]
    rows = "".join(f"{each},{math.radians(each)}\n" for each in degrees)
    (folder / "angles.csv").write_text(f"degrees,radians\n{rows}")
    shutil.copy(EXTERNAL / "angles.yaml", folder)
    return folder


def test_its_recipe_is_linted(installed: Path) -> None:
    done = dtrain(installed, "lint", "angles.yaml")
    assert (done.returncode, done.stdout) == (0, "1 file: nothing wrong\n"), done.stderr
    wrong = dtrain(installed, "lint", "--format", "concise", "angles.yaml", "--set", "model.graph.wave.frequency=-1")
    assert wrong.returncode == 1
    assert "`frequency`" in wrong.stdout
    wrong = dtrain(installed, "lint", "--format", "concise", "angles.yaml", "--set", "angles.zreo=west")
    assert wrong.returncode == 1
    assert "`zreo`" in wrong.stdout


def test_its_components_and_command_are_listed(installed: Path) -> None:
    listed = dtrain(installed, "list").stdout
    assert all(name in listed for name in ("angle", "sine", "cosine_distance"))
    assert "Factor of the input." in dtrain(installed, "list", "sine").stdout
    assert "Linear layers with a sine after each" in dtrain(installed, "list", "blocks").stdout
    assert "The direction of 0 degrees." in dtrain(installed, "list", "angles").stdout
    assert "zero: east" in dtrain(installed, "show", "--explicit", "angles.yaml").stdout
    assert "print the values of an angle" in dtrain(installed, "--help").stdout
    assert dtrain(installed, "angle", "30").stdout == "sine 0.5000, cosine 0.8660\n"


def test_its_recipe_trains(installed: Path) -> None:
    done = dtrain(installed, "run", "--quiet", "angles.yaml")
    assert done.returncode == 0, done.stderr
    (events,) = installed.glob("runs/angles/*/events.jsonl")
    found = [json.loads(line) for line in events.read_text().splitlines()]
    losses = [each["loss"] for each in found if each["event"] == "StepDone"]
    assert sum(losses[-5:]) < 0.3 * sum(losses[:5])


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import no_such_package", "the pack `torn` of torn cannot be imported: ModuleNotFoundError: No module named"),
        ("PACK = 3", "the pack `torn` of torn is not a `Pack`: torn:PACK"),
        (
            f"{IMPORT}PACK = Pack(components={{'layer': {{'linear': 'torn:Linear'}}}})",
            "the pack `torn` has a layer `linear`, and there is one already",
        ),
        (
            f"{IMPORT}PACK = Pack(components={{'source': {{'gone': 'torn.gone:X'}}}})",
            "`torn.gone:X` of a pack cannot be imported: ModuleNotFoundError",
        ),
    ],
)
def test_a_pack_that_cannot_be_used_is_one_line(code: str, message: str, installed: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    (site / "torn-1.dist-info").mkdir(parents=True)
    (site / "torn-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: torn\nVersion: 1\n")
    (site / "torn-1.dist-info" / "entry_points.txt").write_text("[dtrain.packs]\ntorn = torn:PACK\n")
    (site / "torn.py").write_text(code)
    (tmp_path / "made.yaml").write_text("data: {source: {type: gone}}\nmodel: {graph: {a: {type: linear}}}\n")
    done = dtrain(tmp_path, "lint", "made.yaml")
    assert done.returncode == 3
    assert done.stderr.startswith(f"dtrain: {message}")
    assert len(done.stderr.splitlines()) == 1
