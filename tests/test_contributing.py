"""CONTRIBUTING.md is tried: its code blocks, put where their first lines say in a copy of the package, are listed,
linted and trained with; and the files that each task touches are counted."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXTERNAL = ROOT / "tests" / "packs" / "external"
GUIDE = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
AXIS = (ROOT / "docs" / "adding-an-axis.md").read_text("utf-8")
WHERE = re.compile(
    r"# (?P<how>new|at the end of|in) (?P<file>[\w./]+?)(?:, table (?P<table>\w+)|, instead of: (?P<line>[^\n]+))?\n"
)
COMMANDS = """
import contextlib, io, json, sys
from declarative_train.__main__ import main

def said(*words):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = main(list(words))
    return code, out.getvalue()

found = {name: said("list", name) for name in ("hardshrink", "training")}
found["plan"] = said("plan", "contributed.yaml")
found["page"] = said("explain", "K050")
found["lint"] = said("lint", "--format", "concise", "contributed.yaml")
found["run"] = said("run", "--quiet", "contributed.yaml")
import pytest
resume_rules = ("tests/plan/test_resume_rules.py", "-k", "clip_grad_value or every_key")
found["tests"] = pytest.main(["-q", "-n", "0", "-p", "no:cacheprovider", *resume_rules]), ""
print(json.dumps(found))
"""


@dataclass(frozen=True)
class Step:
    task: str
    how: str
    file: str
    table: str | None
    line: str | None
    text: str


def steps() -> list[Step]:
    found = []
    for part in re.split(r"^### ", GUIDE, flags=re.M)[1:]:
        task = part.partition("\n")[0]
        for block in re.findall(r"^```(?:python|yaml)\n(.*?)^```$", part, re.M | re.S):
            where = WHERE.match(block)
            assert where is not None, f"{task}: the first line of a block says where it goes, not {block[:60]!r}"
            found.append(Step(task, where["how"], where["file"], where["table"], where["line"], block[where.end() :]))
    return found


def apply(step: Step, folder: Path) -> None:
    path = folder / step.file
    if step.how == "new":
        assert not path.exists(), f"{step.file} is there already: the guide needs another example"
        path.write_text(step.text, "utf-8")
    elif step.how == "at the end of":
        path.write_text(path.read_text("utf-8") + step.text, "utf-8")
    elif step.line is not None:
        before, line, after = path.read_text("utf-8").partition(
            f"\n{step.text[: -len(step.text.lstrip())]}{step.line}\n"
        )
        assert line, f"{step.file} has no line {step.line}"
        path.write_text(f"{before}\n{step.text}{after}", "utf-8")
    else:
        path.write_text(with_row(path.read_text("utf-8"), str(step.table), step.text), "utf-8")


def with_row(text: str, table: str, row: str) -> str:
    """Before the first row whose key is larger: tables are sorted."""
    assigned = [node for node in ast.parse(text).body if isinstance(node, ast.Assign | ast.AnnAssign)]
    named = next(node for node in assigned if table in ast.unparse(node).partition("=")[0].partition(":")[0].split())
    rows = next(node for node in ast.walk(named) if isinstance(node, ast.Dict))
    key = row.strip().partition(":")[0].strip('"')
    keys = [(node.value, node.lineno) for node in rows.keys if isinstance(node, ast.Constant)]
    at = next((line for name, line in keys if str(name) > key), rows.end_lineno)
    assert at is not None
    lines = text.splitlines(keepends=True)
    return "".join([*lines[: at - 1], row, *lines[at - 1 :]])


Tried = tuple[dict[str, tuple[int, str]], Path]


@pytest.fixture(scope="module")
def tried(tmp_path_factory: pytest.TempPathFactory) -> Tried:
    folder = tmp_path_factory.mktemp("contributed")
    shutil.copytree(ROOT / "declarative_train", folder / "declarative_train")  # with what is compiled of it
    shutil.copytree(ROOT / "tests", folder / "tests", ignore=shutil.ignore_patterns("cases", "__pycache__"))
    for step in steps():
        apply(step, folder)
    rows = [(i % 7 / 7, i % 5 / 5, i % 7 / 7 - i % 5 / 5) for i in range(64)]
    (folder / "made.csv").write_text("a,b,c\n" + "".join(f"{a},{b},{c}\n" for a, b, c in rows))
    done = subprocess.run(
        [sys.executable, "-c", COMMANDS],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]), folder


def test_the_new_things_are_listed_with_their_fields(tried: Tried) -> None:
    found, _ = tried
    for name, field in {"hardshrink": "lambd", "training": "clip_grad_value", "plan": "clip grad value  0.05"}.items():
        code, text = found[name]
        assert (code, field in text) == (0, True), (name, text)


def test_the_new_check_fires_and_has_its_page(tried: Tried) -> None:
    found, _ = tried
    assert found["page"][0] == 0
    assert "evaluation-every-step" in found["page"][1]
    code, text = found["lint"]
    assert code == 0
    assert [line.split(": ", 1)[1] for line in text.splitlines() if "K050" in line] == [
        "warning[K050] the model is evaluated after every step"
    ], text


def test_a_recipe_of_all_trains(tried: Tried) -> None:
    found, folder = tried
    assert found["run"][0] == 0, found["run"]
    (written,) = folder.glob("runs/contributed/*/losses.csv")
    losses = [float(line.partition(",")[2]) for line in written.read_text().splitlines()]
    assert len(losses) == 40
    assert sum(losses[-5:]) < 0.8 * sum(losses[:5])


def test_a_new_key_is_compared_when_a_run_resumes(tried: Tried) -> None:
    assert tried[0]["tests"][0] == 0


def test_the_table_counts_the_files_of_each_task() -> None:
    rows = dict(re.findall(r"^\| \[([^\]]+)\]\([^)]+\) \| ([^|]+?) \|", GUIDE, re.M))
    counted: dict[str, set[str]] = {}
    for step in steps():
        if not step.file.endswith(".yaml"):
            counted.setdefault(step.task.lower(), set()).add(step.file)
    key = GUIDE.partition("### A key of a section")[2].partition("\n### ")[0]
    counted["a key of a section"] |= set(re.findall(r"`(docs/[\w-]+\.md)`", key))
    counted["a pack"] = {str(path) for path in EXTERNAL.rglob("*") if path.suffix in (".py", ".toml")}
    counted["an axis of parallelism"] = {*(file for file, _ in places_of_an_axis()), "the new file"}
    assert {task: int(number) for task, number in rows.items()} == {task: len(files) for task, files in counted.items()}


def places_of_an_axis() -> list[tuple[str, set[str]]]:
    """Return the files that an axis touches, each with the names that the page says are in it."""
    found = []
    for where in re.findall(r"^\| [^|]+ \| (`[^|]+|a new file[^|]+) \|$", AXIS, re.M):
        for place in where.split(";"):
            files = re.findall(r"`([\w/-]+\.\w+)`", place)
            words = set(re.findall(r"`(\w+)`", place))
            found += [(file, words if file == files[-1] else set()) for file in files if "/" in file]
    return found


def test_the_places_of_an_axis_are_there() -> None:
    found = places_of_an_axis()
    assert len(found) == len({file for file, _ in found}) == 33
    for file, words in found:
        paths = [path for path in (ROOT / "declarative_train" / file, ROOT / file) if path.exists()]
        assert paths, file
        text = paths[0].read_text("utf-8")
        assert not {word for word in words if not re.search(rf"\b{word}\b", text)}, file
