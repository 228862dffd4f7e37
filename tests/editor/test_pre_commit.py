"""The hook that other repositories use."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import yaml

from declarative_train.app.main import all_commands

ROOT = Path(__file__).parents[2]


def entry() -> list[str]:
    [hook] = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text("utf-8"))
    assert (hook["id"], hook["language"], hook["types"]) == ("dtrain-lint", "python", ["yaml"])
    program, command, *options = shlex.split(hook["entry"])
    assert program == "dtrain"
    assert command in all_commands()
    return [sys.executable, "-m", "declarative_train", command, *options]


def test_the_hook_passes_what_is_fine() -> None:
    """Called as pre-commit does: with the names of the files that are committed."""
    files = [str(path) for path in sorted((ROOT / "recipes").rglob("*.yaml"))]
    done = subprocess.run([*entry(), *files], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout


def test_the_hook_stops_what_is_not(tmp_path: Path) -> None:
    (tmp_path / "wrong.yaml").write_text("training: {epoch: 1}\nmodel: {graph: {}}\n")
    done = subprocess.run([*entry(), "wrong.yaml"], cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert done.returncode == 1
    assert "wrong.yaml:1:12" in done.stdout
