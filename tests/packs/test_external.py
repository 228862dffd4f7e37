"""A pack that another package brings: installed by pip, it is linted, listed and trained with."""

from __future__ import annotations

import json
import math
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXTERNAL = Path(__file__).parent / "external"
IMPORT = "from declarative_train.core.packs import Pack\n"
COMMANDS = """
import contextlib, io, json, sys
from declarative_train.__main__ import main

for words in json.loads(sys.argv[1]):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        try:
            code = main(words)
        except SystemExit as end:
            code = end.code
    print(json.dumps([code, out.getvalue()]))
"""


def python(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(folder / "site"), str(ROOT)])
    return subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def dtrain(folder: Path, *commands: str) -> list[tuple[int, str]]:
    """Return the exit code and the output of each command, all run by one process."""
    done = python(folder, "-c", COMMANDS, json.dumps([shlex.split(each) for each in commands]))
    assert done.returncode == 0, done.stderr
    return [tuple(json.loads(line)) for line in done.stdout.splitlines()]


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
    wrong = "lint --format concise angles.yaml --set"
    right, value, key = dtrain(
        installed, "lint angles.yaml", f"{wrong} model.graph.wave.frequency=-1", f"{wrong} angles.zreo=west"
    )
    assert right == (0, "1 file: nothing wrong\n")
    assert (value[0], "`frequency`" in value[1]) == (1, True), value
    assert (key[0], "`zreo`" in key[1]) == (1, True), key


def test_its_components_and_command_are_listed(installed: Path) -> None:
    wanted = {
        "list": "angle",
        "list layers": "sine",
        "list losses": "cosine_distance",
        "list sine": "Factor of the input.",
        "list blocks": "Linear layers with a sine after each",
        "list angles": "The direction of 0 degrees.",
        "show --explicit angles.yaml": "zero: east",
        "--help": "print the values of an angle",
        "angle 30": "sine 0.5000, cosine 0.8660\n",
    }
    for (words, text), (code, out) in zip(wanted.items(), dtrain(installed, *wanted), strict=True):
        assert (code, text in out) == (0, True), (words, out)


def test_its_recipe_trains(installed: Path) -> None:
    done = python(installed, "-m", "declarative_train", "run", "--quiet", "angles.yaml")
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
    done = python(tmp_path, "-m", "declarative_train", "lint", "made.yaml")
    assert done.returncode == 3
    assert done.stderr.startswith(f"dtrain: {message}")
    assert len(done.stderr.splitlines()) == 1
