"""Shell commands in README, in the pages and at the top of recipes, and the test that runs each of them.

`test_docs.py` runs the blocks of tutorials, and those after `<!-- runs -->`. Every other command is in `ELSEWHERE`,
with the test that runs it, or with the reason why no test does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
LAUNCHING = "launching.md"

# page, beginning of a line, and `file::test` or a reason
ELSEWHERE = (
    (LAUNCHING, "dtrain run RECIPE --node", "run/test_nodes.py::test_two_nodes_train"),
    (
        LAUNCHING,
        "#!/bin/bash",
        "test_slurm.py::test_the_documented_job_saves_when_it_is_warned_and_goes_on_when_it_is_requeued",
    ),
    (LAUNCHING, "torchrun ", "run/test_torchrun.py::test_the_documented_line_of_torchrun_on_two_nodes"),
    (LAUNCHING, "srun ", "test_slurm.py::test_the_documented_line_of_srun"),
    (LAUNCHING, "mpirun -n", "run/test_torchrun.py::test_the_documented_line_of_mpirun"),
    (LAUNCHING, "mpirun --hostfile", "run/test_nodes.py::test_the_documented_line_of_mpirun_starts_agents"),
    (LAUNCHING, "dtrain launch ", "tools/test_launch_files.py::test_the_documented_lines_write_their_files"),
    ("README.md", "dtrain ", "test_docs.py::test_the_first_lines_of_the_readme"),
    ("README.md", "pip install .", "downloads torch; tests/core_install checks what is installed"),
    ("README.md", "make ", "`make test` would run itself; `make run` is run by CI"),
    ("myths.md", "dtrain ", "test_docs.py::test_the_page_of_myths_shows_what_the_commands_print"),
    ("verify.md", "dtrain ", "tools/test_verify.py::test_the_page_has_the_outputs_of_its_commands"),
    (
        "many_gpus.md",
        "dtrain run recipes/compare_modes.yaml",
        "test_docs.py::test_the_lines_of_a_recipe_run",
    ),
    ("exporting.md", "dtrain export ", "packs/export/test_export.py::test_the_documented_lines"),
    ("start.md", "", "clones and downloads; CI does both before the tests"),
    ("editor.md", "", "downloads packages of Node; editor/test_vscode.py builds the extension where they are"),
)
# Recipes whose commands, in the comments at their top, test_docs.py runs. Other recipes only have `dtrain run` and
# `dtrain plan`, which test_recipes.py runs, and the command for several nodes of docs/launching.md.
OF_RECIPES = ("compare_modes", "data_parallel", "gpt_stdlib", "large_model_pipeline", "multi_gpu_ddp")


def lines_of(block: str) -> list[str]:
    """Return the commands of a block: those after `$`, or the whole block if it is a script."""
    joined = re.sub(r"\\\n\s*", "", block)
    marked = re.findall(r"^\$ (.*)$", joined, re.M)
    if marked or joined.startswith("#!"):
        return marked or [joined]
    return [line for line in joined.splitlines() if line.strip()]


def find_line(page: str, begin: str) -> str:
    """Return the only command on a page that begins with `begin`, without its comment."""
    text = (ROOT / "docs" / page).read_text("utf-8")
    blocks = re.findall(r"^```(?:console|bash|sh)\n(.*?)^```$", text, re.M | re.S)
    (found,) = {line for block in blocks for line in lines_of(block) if line.startswith(begin)}
    return found.split("    #")[0]


def test_of(page: str, line: str) -> str | None:
    """Return the test that runs a command, or the reason why no test does; None if the command is not listed."""
    return next((what for name, begin, what in ELSEWHERE if name == page and line.startswith(begin)), None)


def lines_of_recipes() -> Iterator[tuple[str, str]]:
    for path in sorted((ROOT / "recipes").glob("*.yaml")):
        for line in re.findall(r"^# +(?:\w+: +)?((?:dtrain|python|torchrun) .*)$", path.read_text("utf-8"), re.M):
            yield path.name, re.sub(" +", " ", re.split("   +", line)[0])
