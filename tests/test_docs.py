"""Documents run: every recipe in README and docs lints clean, every command line in them parses.

A ```yaml block with a model, data and an objective is a recipe; any other is laid over the whole recipe of
docs/language-reference.md, without that one's model where the block has a graph of its own. Blocks that name a source
whose files are not there are linted as fragments. A console block after `<!-- runs -->` is run. On a page
with blocks that have a `title`, these are written as files of that name, and the whole page is run from top to
bottom: a tutorial.
"""

from __future__ import annotations

import argparse
import os
import re
import runpy
import shlex
from dataclasses import dataclass
from pathlib import Path

import pytest

from declarative_train import planner
from declarative_train import recipe as recipe_room
from declarative_train.app.main import all_commands, command_module, main
from declarative_train.components.expressions.functions import FUNCTIONS
from declarative_train.run.event import EvaluationDone
from declarative_train.run.sinks.jsonl import read_events
from tests import shell_lines, shown_outputs
from tests.linted import dtrain
from tests.started import finish, start

DRAWS = "R108"  # said of every recipe that draws random numbers over ranks
ROOT = Path(__file__).parent.parent
GENERATED = {"checks.md", "commands.md", "components.md", "sections.md", "transformers-models.md"}
PAGES = [ROOT / "README.md", ROOT / "declarative_train/tools/agents/SKILL.md"]
PAGES += sorted(page for page in (ROOT / "docs").rglob("*.md") if page.name not in GENERATED)


@dataclass(frozen=True)
class Block:
    page: Path
    line: int
    language: str
    text: str
    runs: bool
    file: str | None

    def __str__(self) -> str:
        return f"{self.page.name}:{self.line}"


def blocks(page: Path) -> list[Block]:
    text = page.read_text()
    found = re.finditer(
        r"(?P<runs><!-- runs -->\n)?^```(?P<language>\w+)(?: title=\"(?P<file>[^\"]+)\")?\n(?P<text>.*?)^```$",
        text,
        re.M | re.S,
    )
    return [
        Block(
            page,
            text.count("\n", 0, match.start("text")),
            match["language"],
            match["text"],
            bool(match["runs"]),
            match["file"],
        )
        for match in found
    ]


ALL = [block for page in PAGES for block in blocks(page)]
OTHER_TOOLS = ("repos:",)  # what their files begin with: pre-commit
YAML = [
    block for block in ALL if block.language == "yaml" and block.file is None and not block.text.startswith(OTHER_TOOLS)
]


def sections(text: str) -> set[str]:
    return set(re.findall(r"^(\w+):", text, re.M))


def is_whole(text: str) -> bool:
    return sections(text) >= {"data", "model", "objective", "training"}


BASE = next(block.text for block in YAML if block.page.name == "language-reference.md" and is_whole(block.text))


def laid(text: str) -> str:
    """The block, ready to lint: whole, as a fragment, or as one file that extends `base.yaml`."""
    if is_whole(text):
        return text
    if re.search(r"^  source:", text, re.M):
        return "fragment: true\n" + text
    return "extends: base.yaml\n" + text.replace("fragment: true\n", "")


def base_for(text: str) -> str:
    if re.search(r"^  graph:", text, re.M):
        return re.sub(r"^model:\n(?:  .*\n)+", "", BASE, flags=re.M)
    return BASE


@pytest.mark.parametrize("block", YAML, ids=str)
def test_a_recipe_in_the_documents_lints_clean(block: Block, tmp_path: Path) -> None:
    (tmp_path / "recipes").symlink_to(ROOT / "recipes")
    (tmp_path / "base.yaml").write_text(base_for(block.text))
    path = tmp_path / "shown.yaml"
    path.write_text(laid(block.text))
    loaded = recipe_room.load(str(path))
    problems = list(loaded.diagnostics)
    if loaded.recipe is not None:
        problems += planner.compile(loaded.recipe)[1]
    assert [f"{each.code} line {each.span.line}: {each.message}" for each in problems if each.code != DRAWS] == []
    assert (loaded.recipe is None) == ("fragment: true" in laid(block.text))


def test_a_fragment_in_the_documents_is_linted_as_one(tmp_path: Path) -> None:
    shown = [block.text for block in YAML if block.text.startswith("fragment: true")]
    assert shown
    for text in shown:
        (tmp_path / "part.yaml").write_text(text)
        assert recipe_room.load(str(tmp_path / "part.yaml")).diagnostics == []


def command_lines() -> list[tuple[str, str]]:
    """Of console blocks, and those between backquotes; what is in brackets may be left out."""
    found = []
    for page in PAGES:
        prose = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S)
        lines = re.findall(r"`(dtrain [^`]*)`", prose)
        for block in blocks(page):
            if block.language in ("console", "sh", "bash"):
                lines += re.findall(r"^\$ (dtrain .*)$", block.text, re.M)
        found += [(page.name, line) for line in lines]
    return found


def words_of(line: str) -> list[str]:
    plain = re.sub(r"\[.*?\]", "", line).replace("...", "").replace("\\|", "|").replace("$NODE", "0")
    return shlex.split(re.split(r" [#>] ", plain)[0])[1:]


@pytest.mark.parametrize(("page", "line"), sorted(set(command_lines())))
def test_a_command_line_in_the_documents_parses(page: str, line: str) -> None:
    words = words_of(line)
    if not words or words[0].startswith("-"):
        assert words in ([], ["--version"], ["--help"])
        return
    assert words[0] in all_commands(), line
    module = command_module(words[0])
    parser = argparse.ArgumentParser(prog=f"dtrain {words[0]}", exit_on_error=False)
    module.add_arguments(parser)
    for more in ([], ["PATH"]):  # a sentence may leave out what the command works on
        try:
            parser.parse_args([*words[1:], *more])
            return
        except (argparse.ArgumentError, SystemExit):
            continue
    pytest.fail(f"{page} shows a command that does not parse: {line}")


REACHED = {"images.md": ("pictures", "validation/accuracy", 0.95)}  # what a page says of its run, and a little less
RUN = [
    pytest.param(
        page,
        id=page.name,
        marks=[pytest.mark.long] if re.search(r"\$ dtrain (run|sweep|fits) ", page.read_text()) else [],
    )
    for page in PAGES
    if any(block.page == page and (block.runs or block.file) for block in ALL)
]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("page", RUN)
def test_what_a_page_shows_runs(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In an empty folder next to the recipes, from top to bottom; each command ends with 0."""
    for name in ("recipes", "LICENSE", "README.md"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)
    mine = [block for block in ALL if block.page == page]
    is_tutorial = any(block.file for block in mine)
    ran = []
    for block in mine:
        if block.file is not None:
            Path(block.file).parent.mkdir(exist_ok=True)
            Path(block.file).write_text(block.text)
        elif block.language == "console" and (is_tutorial or block.runs):
            ran += [run_line(line) for line in re.findall(r"^\$ (.*)$", block.text, re.M)]
    assert ran
    assert [line for line, code in ran if code != 0] == [], capsys.readouterr()
    if page.name in REACHED:
        run, metric, least = REACHED[page.name]
        (log,) = tmp_path.glob(f"runs/{run}/*/events.jsonl")
        last = [event for event in read_events(log) if isinstance(event, EvaluationDone)][-1]
        assert last.values[metric] > least


def run_line(line: str) -> tuple[str, int | None]:
    words = shlex.split(line, comments=True)
    if words[:2] == ["dtrain", "run"]:  # forks ranks, which the process of the tests does not like
        return line, finish(start("declarative_train", *words[1:]), 200)[0]
    if words[0] == "dtrain":
        return line, main(words[1:])
    assert words[0] == "python", f"a page shows a command that this test cannot run: {line}"
    runpy.run_path(words[1], run_name="__main__")
    return line, 0


def test_the_functions_of_expressions_are_all_named() -> None:
    text = (ROOT / "docs" / "language-reference.md").read_text()
    listed = re.search(r"The functions, with torch's meaning and argument names:\n(.*?)\.\n\n", text, re.S)
    assert listed is not None
    assert re.findall(r"`(\w+)`", listed[1]) == sorted(FUNCTIONS)


def test_links_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_every_recipe_of_the_gallery_has_a_card_and_a_row() -> None:
    text = (ROOT / "docs" / "gallery.md").read_text()
    names = sorted(path.stem for path in (ROOT / "recipes" / "gallery").glob("*.yaml"))
    assert sorted(re.findall(r"\(images/gallery/(\w+)\.svg\)", text)) == names
    assert sorted(re.findall(r"^\| \[(\w+)\]", text, re.M)) == names


def test_the_mistake_in_the_readme_looks_as_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One letter less in the recipe of the same page."""
    own = [block for block in ALL if block.page.name == "README.md"]
    recipe = next(block.text for block in own if block.language == "yaml")
    shown = next(block.text for block in own if block.language == "text")
    (tmp_path / "recipes").symlink_to(ROOT / "recipes")
    (tmp_path / "recipe.yaml").write_text(recipe.replace("out_features: 10", "out_feature: 10"))
    monkeypatch.chdir(tmp_path)
    assert shown in dtrain("lint", "recipe.yaml").out


MISTAKE = re.compile(
    r"^<!-- mistake in (?P<file>\S+?)(?: for (?P<linted>\S+))?: "
    r"(?:(?P<old>.+?) -> (?P<new>.+?)|(?P<words>--set .+?)) *-->\n"
    r"```text\n(?P<shown>.*?)^```$",
    re.M | re.S,
)
MISTAKES = [(page, match) for page in PAGES for match in MISTAKE.finditer(page.read_text())]


@pytest.mark.parametrize(("page", "match"), MISTAKES, ids=[f"{page.name}-{n}" for n, (page, _) in enumerate(MISTAKES)])
def test_a_mistake_in_a_document_looks_as_shown(
    page: Path, match: re.Match[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files of the page, one of them changed as the comment says. ACCEPT=1 writes what lint says now."""
    (tmp_path / "recipes").symlink_to(ROOT / "recipes")
    for block in ALL:
        if block.page == page and block.file is not None:
            (tmp_path / block.file).write_text(block.text)
    path = tmp_path / match["file"]
    if match["words"] is None:
        assert path.read_text().count(match["old"]) == 1
        path.write_text(path.read_text().replace(match["old"], match["new"]))
    monkeypatch.chdir(tmp_path)
    found = dtrain("lint", match["linted"] or match["file"], *shlex.split(match["words"] or "")).out
    text = re.sub(r"^\d+ files?: .*\n", "", found, flags=re.M)
    if os.environ.get("ACCEPT"):
        page.write_text(page.read_text().replace(match[0], match[0][: -len(match["shown"] + "```")] + text + "```"))
        return
    assert match["shown"] == text


@pytest.mark.long
def test_the_page_of_myths_shows_what_the_commands_print() -> None:
    assert shown_outputs.main(["--check", "myths.md"]) == 0, "run `python -m tests.shown_outputs`"


def test_the_mistake_of_the_first_page_looks_as_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = [block.text for block in ALL if block.page.name == "start.md" and block.language == "text"]
    shown = next(text for text in blocks if "error[" in text)
    planned = next(text for text in blocks if "accumulation" in text)
    monkeypatch.chdir(tmp_path)
    assert main(["init", "first.yaml"]) == 0
    assert planned in dtrain("plan", "first.yaml").out
    Path("first.yaml").write_text(Path("first.yaml").read_text().replace("out_features: 4", "out_feature: 4"))
    assert shown in dtrain("lint", "first.yaml").out


def test_the_table_of_the_tutorial_gives_the_recipe_and_the_message_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    own = [block for block in ALL if block.page.name == "table.md"]
    recipe, baselines, message = (block.text for block in own if block.language == "text")
    monkeypatch.chdir(tmp_path)
    for block in own:
        if block.file is not None:
            Path(block.file).parent.mkdir(exist_ok=True)
            Path(block.file).write_text(block.text)
            runpy.run_path(block.file, run_name="__main__")
    assert main(["init", "--from", "people.csv", "--target", "churn"]) == 0
    assert recipe in Path("people.yaml").read_text()
    command, _, said = baselines.partition("\n")
    assert main(shlex.split(command)[2:]) == 0
    assert capsys.readouterr().out.endswith(said)
    command, _, said = message.partition("\n")
    capsys.readouterr()
    assert main(shlex.split(command)[2:]) == 2
    assert capsys.readouterr().err == said


def test_every_shell_line_is_run_or_has_a_reason() -> None:
    run = {block.page for block in ALL if block.file is not None}
    left = [
        (block.page.name, line)
        for block in ALL
        if block.language in ("console", "sh", "bash") and not block.runs and block.page not in run
        for line in shell_lines.lines_of(block.text)
    ]
    assert [each for each in left if shell_lines.test_of(*each) is None] == []
    for page, begin, what in shell_lines.ELSEWHERE:
        assert any(name == page and line.startswith(begin) for name, line in left), (page, begin)
        if "::" in what:
            path, _, name = what.partition("::")
            assert f"def {name}(" in (ROOT / "tests" / path).read_text("utf-8"), what
    plain = "dtrain (run|plan) recipes/{}( --node .*)?"
    others = {name for name, line in shell_lines.lines_of_recipes() if not re.fullmatch(plain.format(name), line)}
    assert {Path(name).stem for name in others} == set(shell_lines.OF_RECIPES)


SHORT = {"run": " --max-steps 2", "generate": " --max-tokens 4"}  # options with which a line takes seconds
SMALL = {"large_model_pipeline": " --set vars.width=64"}


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("recipe", shell_lines.OF_RECIPES)
def test_the_lines_of_a_recipe_run(recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And those of the tutorial that resume it."""
    (tmp_path / "recipes").symlink_to(ROOT / "recipes")
    monkeypatch.chdir(tmp_path)
    lines = [line for name, line in shell_lines.lines_of_recipes() if name == f"{recipe}.yaml"]
    page = (ROOT / "docs" / "tutorials" / "many_gpus.md").read_text("utf-8")
    lines += [line for line in re.findall(r"^\$ (dtrain run .*--resume.*)$", page, re.M) if f"/{recipe}." in line]
    assert lines
    for line in lines:
        more = SHORT.get(line.split()[1], "") + SMALL.get(recipe, "")
        assert run_line(line + more)[1] == 0, line


@pytest.mark.long
def test_the_first_lines_of_the_readme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lines = re.findall(r"^\$ (dtrain .*)$", PAGES[0].read_text("utf-8"), re.M)
    assert [code for _, code in map(run_line, lines)] == [0] * len(lines)


def test_other_command_lines_name_what_is_there() -> None:
    """Words of the Makefile, and the module that launchers start."""
    makefile = (ROOT / "Makefile").read_text()
    lines = [
        line
        for block in ALL
        if block.language in ("console", "sh", "bash")
        for line in re.sub(r"\\\n\s*", "", block.text).splitlines()
    ]
    words = [word for line in lines for word in re.findall(r"^\$ make ([\w-]+)", line)]
    assert words
    assert [word for word in words if not re.search(rf"^[\w -]*\b{word}\b[\w -]*:", makefile, re.M)] == []
    started = [line for line in lines if re.search(r"\b(torchrun|srun|mpirun)\b.*\brun\b", line)]
    assert started
    modules = [line for line in started if "torchrun" in line]
    assert [line for line in modules if "-m declarative_train run" not in line] == []
    assert [line for line in started if line not in modules and "dtrain run" not in line] == []
