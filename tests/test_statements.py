"""What the front pages promise, and the test that holds it: a promise cannot stay when its test goes.

A statement is quoted as it stands in its page (line breaks do not count). A new promise in a page needs no line here;
one that users choose the project by does. Statements that nothing can hold are not made: see `TOO_STRONG`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from benchmarks.__main__ import describe_missed
from declarative_train.__main__ import main
from declarative_train.app.views.sections import NAMES, section_page
from declarative_train.core.machine import install, own_command
from declarative_train.planner.footprint.extrapolate import FEW
from declarative_train.recipe.sections.top import SECTIONS

ROOT = Path(__file__).parent.parent

# page, then each statement, then the test below it
HELD_TEXT = """
README.md
    checked against its data and its shapes before anything starts
        test_cases.py::test_a_mistake_is_told_as_accepted
    every parallel mode computes the same gradients, up to rounding
        test_parity.py::test_a_way_to_run_computes_the_same_gradients
    There are two exceptions, and lint reports each: random draws, such as dropout (R108), and layers
        test_rules.py::test_the_bad_example_fires_inside_its_text
    the planner chooses the fastest mode that fits into memory, by its estimates
        planner/test_auto.py::test_on_known_hardware_the_least_time_of_what_fits
    is found only by the run. It stops there, or, with `data.on_bad_row: skip`, leaves the image out
        data/test_skipping.py::test_without_skip_a_broken_picture_ends_the_run_with_its_place
        data/test_skipping.py::test_a_broken_picture_is_stood_in_for_alike_on_every_layout
    On several nodes, `dtrain run` is started on each
        run/test_nodes.py::test_two_nodes_train
    Windows: in WSL
        test_statements.py::test_windows_is_told_where_to_run
docs/commands.md
    no data, no torch
        test_layers.py::test_static_lint_never_imports_torch
    List every layer, block, loss, optimizer, source and section
        app/test_commands.py::test_list_has_every_kind_and_its_types
    stopped early, with checkpoints that `--resume` continues from: Ctrl-C, SIGTERM
        run/test_launch.py::test_a_signal_saves_and_the_run_goes_on_later
    a run that a second Ctrl-C stopped at once
        run/test_launch.py::test_the_second_ctrl_c_means_now
    | 1 | the recipe has errors
        app/test_commands.py::test_run_of_a_wrong_recipe_is_code_1
    | 2 | wrong use of the command
        app/test_commands.py::test_wrong_use_is_code_2
    `plan --diff` found a difference
        app/test_commands.py::test_plan_compares_what_was_asked_with_the_other_as_it_is
    `--scale 1,2,4,8`
        app/test_values_and_scale.py::test_scale_is_a_table_between_two_ends
docs/index.md
    every parallel mode computes the same gradients, up to rounding
        test_parity.py::test_a_way_to_run_computes_the_same_gradients
    predictions of memory, traffic and step time, also for GPUs that this machine does not have
        app/test_commands.py::test_plan_for_other_devices
        test_planner.py::test_the_plan_is_what_happens
    also on another layout, with the samples that would have come next
        run/test_resume_layouts.py::test_another_layout_goes_on
    before a process starts, each with a suggestion if there is one
        test_cases.py::test_a_mistake_is_told_as_accepted
    give the same gradients up to rounding
        test_parity.py::test_every_mode_and_schedule_that_a_recipe_can_name_has_its_cells
    of the time of a hand-written loop, a whole run
        test_statements.py::test_the_figures_of_the_front_pages_are_those_of_the_table
docs/comparison.md
    many at once, before a process starts
        test_cases.py::test_a_mistake_is_told_as_accepted
    and a choice of the mode with reasons
        planner/test_auto.py::test_on_known_hardware_the_least_time_of_what_fits
    classification, segmentation and a fixed number of boxes per picture
        test_recipes.py::test_the_gallery_learns_what_its_stories_say
    in every mode with a plain loop, per parameter, in float64, by the tests
        test_parity.py::test_a_way_to_run_computes_the_same_gradients
    to the bit where the layout is the same
        run/test_resume.py::test_to_the_bit_on_the_same_layout
    published quantized models are not taken
        packs/pretrained/test_published.py::test_a_config_that_the_block_is_not_is_refused
docs/performance.md
    nothing has run on several GPUs yet
        test_statements.py::test_pages_say_that_nothing_ran_on_several_gpus
docs/gallery.md
    Tests check the bounds
        test_recipes.py::test_the_gallery_learns_what_its_stories_say
docs/architecture.md
    imports only packages above it in the table below
        test_layers.py::test_a_package_imports_only_packages_below_it
    to the bit on the same layout
        run/test_resume.py::test_to_the_bit_on_the_same_layout
docs/decisions.md
    is compared with torch's own counter, never with itself
        graph/test_cost.py::test_a_layer_costs_what_torch_counts
    So all modes start from the same numbers
        graph/test_build.py::test_a_stage_starts_as_the_whole_model_does
    Plugins are constructed whole
        engine/test_plugins.py::test_every_mode_trains_the_same_model
    The manifest, written last, *is* the checkpoint
        run/test_checkpoint.py::test_all_is_on_the_disk_before_a_checkpoint_exists
    So resume costs nothing at any size, modes see the same samples, and another layout continues
        run/test_resume_layouts.py::test_another_layout_goes_on
docs/language-reference.md
    Every key of its sections is in [sections.md]
        test_generated.py::test_generated_files_are_up_to_date
docs/plugins.md
    `dtrain lint`, `plan` and `show` read the file as text
        recipe/test_plugins.py::test_code_runs_only_when_asked
    each class is tried on a few made samples
        graph/test_examine.py::test_mixes_samples
    weights that it reads from a file, a pretrained model, included
        engine/test_plugins.py::test_the_code_is_constructed_once_and_its_relations_hold
    `2d` and `3d` inside become dtrain's own
        engine/test_plugins.py::test_batch_normalisation_of_torch_becomes_ours
    In a pipeline it is a node like any other
        engine/test_plugins.py::test_a_pipeline_may_be_cut_around_a_plugin
    only calling it again in another stage (`reuse`) is refused
        engine/test_plugins.py::test_what_a_pipeline_cannot_do_with_a_plugin_has_words
    a `__getitem__` that draws random numbers is detected and refused
        components/test_plugin_sources.py::test_what_does_not_fit_is_told_with_row_and_column
    Forked loaders share it
        components/test_plugin_sources.py::test_another_process_reads_the_same
    with any number of loaders, and in a resumed run
        engine/test_plugin_data.py::test_a_run_that_goes_on_is_the_one_that_never_stopped
    the same bits on every layout
        engine/test_plugin_data.py::test_modes_agree
"""


TOO_STRONG = (
    "every mistake",
    "all mistakes",
    "or thousands",
    "promised:",
    "teaching system",
    "bug-free",
    "never fails",
    "no overhead",
    "only this one",
    "gradients proven",
)
FRONT = (
    "README.md",
    "pyproject.toml",
    "docs/language.md",
    "docs/language-reference.md",
    "docs/architecture.md",
    "docs/editor.md",
    "docs/performance.md",
    "docs/index.md",
    "docs/comparison.md",
    "docs/gallery.md",
    "docs/start.md",
)
RECIPES = sorted(path for path in (ROOT / "recipes").rglob("*.yaml") if "switches" not in path.parts)


def flat(text: str) -> str:
    return " ".join(text.split())


def held() -> Iterator[tuple[str, str, str]]:
    """(page, statement, test)"""
    page = words = ""
    for line in HELD_TEXT.strip("\n").splitlines():
        if not line.startswith(" "):
            page = line
        elif not line.startswith(" " * 8):
            words = line.strip()
        else:
            yield page, words, line.strip()


@pytest.mark.parametrize(("page", "words", "test"), list(held()))
def test_a_promise_stands_in_its_page_and_its_test_is_there(page: str, words: str, test: str) -> None:
    assert flat(words) in flat((ROOT / page).read_text("utf-8"))
    file, _, name = test.partition("::")
    assert re.search(rf"^def {name}\(", (ROOT / "tests" / file).read_text("utf-8"), re.M), test


def test_every_row_that_a_user_chooses_the_project_by_is_held() -> None:
    """The table of the first page, and the list of what is central: a new row needs a statement with a test."""
    statements = [(page, flat(words)) for page, words, _ in held()]
    rows = re.findall(r"^\| \[.*$", (ROOT / "docs" / "index.md").read_text("utf-8"), re.M)
    central = (
        (ROOT / "docs" / "comparison.md")
        .read_text("utf-8")
        .partition("## What is central here")[2]
        .partition("\n## ")[0]
    )
    rows_of = {"docs/index.md": rows, "docs/comparison.md": central.split("\n- ")[1:]}
    for page, found in rows_of.items():
        assert len(found) >= 4
        for row in found:
            assert any(at == page and words in flat(row) for at, words in statements), row


def test_nothing_stronger_is_said_than_what_is_held() -> None:
    texts = {name: ROOT / name for name in FRONT}
    texts |= {str(path.relative_to(ROOT)): path for path in RECIPES}
    texts |= {f"app/{path.name}": path for path in (ROOT / "declarative_train" / "app").rglob("*.py")}
    found = [(name, words) for name, path in texts.items() for words in TOO_STRONG if words in path.read_text().lower()]
    assert found == [], "say what is true, or hold it with a test and take the words off this list"


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_opens_with_its_story(path: Path) -> None:
    """What it is, the command, and what to expect; by its own name, and every file that it names is there."""
    head = "".join(line for line in path.read_text("utf-8").splitlines(keepends=True) if line.startswith("#"))
    assert re.search(r"(dtrain|torchrun) .*\brun\b", head), "the command"
    assert "Expect" in head
    assert str(path.relative_to(ROOT)) in head
    for name in re.findall(r"[\w/]+\.yaml", head):
        assert (ROOT / name).exists() or (path.parent / name).exists(), name


def test_performance_is_said_to_be_of_the_cpu_while_no_row_is_of_a_gpu() -> None:
    text = (ROOT / "docs" / "performance.md").read_text("utf-8")
    assert ("Measured on CPU" in text) == ("+cpu" in text)


def test_pages_say_that_nothing_ran_on_several_gpus() -> None:
    """And the table of one GPU names it."""
    text = (ROOT / "docs" / "performance.md").read_text("utf-8")
    table = text.partition("<!-- begin: make bench-gpu -->")[2].partition("<!-- end: make bench-gpu -->")[0]
    assert "NVIDIA" in table
    for page in ("README.md", "docs/index.md", "docs/comparison.md", "docs/performance.md"):
        lines = (ROOT / page).read_text("utf-8").splitlines()[:12]
        assert "nothing has run on several GPUs yet" in flat("\n".join(lines)), page


def test_the_figures_of_the_front_pages_are_those_of_the_table() -> None:
    """And a row that misses its target is named below the table."""
    text = (ROOT / "docs" / "performance.md").read_text("utf-8")
    table = text.partition("<!-- begin: make bench -->")[2].partition("<!-- end: make bench -->")[0]
    rows = re.findall(r"^\| \w+ \| \w+ \| \d \|.*\|$", table, re.M)
    assert len(rows) > 8
    assert table.strip().splitlines()[-1] == describe_missed(rows)
    ratio = r" \| [\d.]+ \| (\d\.\d\d)"
    found = re.findall(rf"^\| (\w+) \| \w+ \| \d{ratio * 3} \|$", table, re.M)
    assert len(found) == len(rows)
    rows = found
    for name, column in (("a training step", 1), ("the start", 2), ("a whole run", 3)):
        ratios = sorted(row[column] for row in rows)
        assert re.search(rf"^\| \[{name}.* \| {ratios[0]} to {ratios[-1]} \| ", text, re.M), (name, ratios)
    index = (ROOT / "docs" / "index.md").read_text("utf-8")
    step, whole = (sorted(row[column] for row in rows) for column in (1, 3))
    words = "of the time of a hand-written loop, a whole run"
    assert f"a step takes {step[0]} to {step[-1]} {words} {whole[0]} to {whole[-1]} |" in index


def test_the_page_of_the_planner_says_how_many_equal_blocks_are_traced() -> None:
    assert f"{FEW} and then {FEW + 1} are traced" in flat((ROOT / "docs" / "planner.md").read_text("utf-8"))


def test_the_page_of_the_gallery_counts_its_recipes() -> None:
    number = len(list((ROOT / "recipes" / "gallery").glob("*.yaml")))
    words = {15: "fifteen", 16: "sixteen", 17: "seventeen", 18: "eighteen", 19: "nineteen", 20: "twenty"}
    for page in ("gallery", "language"):
        found = flat((ROOT / "docs" / f"{page}.md").read_text("utf-8").lower())
        assert f"{words[number]} small trainings" in found, page


def test_every_key_of_every_section_is_in_the_reference() -> None:
    """By what the sections take, read from the schema, which validation and editors use."""
    schema = yaml.safe_load((ROOT / "schemas" / "recipe.schema.json").read_text("utf-8"))
    assert set(NAMES) == {"top", *SECTIONS}
    for name in ("training", "evaluation", "checkpoint", "logging", "layout", "data"):
        node = schema["$defs"][name]
        page = section_page(name)
        missing = [key for key in node["properties"] if not re.search(rf"^ +{key}: ", page, re.M)]
        assert not missing, (name, missing)


@pytest.mark.parametrize(
    ("path", "wanted"),
    [("{bin}", "dtrain"), ("/nowhere", "{bin}/dtrain"), ("{other}", "{bin}/dtrain")],
)
def test_the_command_that_a_run_ends_with_can_be_typed(
    path: str, wanted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a shell whose environment is not activated too, or with another dtrain in front."""
    own, other = tmp_path / "env" / "bin", tmp_path / "other"
    for folder in (own, other):
        folder.mkdir(parents=True)
        (folder / "dtrain").write_text("#!/bin/sh\n")
        (folder / "dtrain").chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(own / "python"))
    monkeypatch.setenv("PATH", path.format(bin=own, other=other))
    assert own_command() == wanted.format(bin=own)
    monkeypatch.chdir(tmp_path)
    assert own_command() == wanted.format(bin="env/bin")
    (own / "dtrain").unlink()
    assert own_command() == "env/bin/python -m declarative_train"


def test_windows_is_told_where_to_run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    assert main(["run", "recipes/digits_mlp.yaml"]) == 3
    assert "does not run on Windows itself; help: use WSL" in capsys.readouterr().err
    assert main(["list", "linear"]) == 0


def test_an_extra_is_installed_where_dtrain_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`pip` of another environment would not help."""
    own = tmp_path / "env" / "bin"
    own.mkdir(parents=True)
    (own / "pip").write_text("#!/bin/sh\n")
    (own / "pip").chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(own / "python"))
    monkeypatch.setenv("PATH", str(own))
    assert install("s3") == "pip install 'declarative_train[s3]'"
    monkeypatch.setenv("PATH", "/usr/bin")
    assert install("s3") == f"{own}/python -m pip install 'declarative_train[s3]'"
    monkeypatch.chdir(tmp_path)
    assert install("s3") == "env/bin/python -m pip install 'declarative_train[s3]'"
