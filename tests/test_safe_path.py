"""Python that dtrain starts imports no file of the working directory."""

from __future__ import annotations

import ast
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from declarative_train.app.main import main
from declarative_train.tools.sweep.device_slots import DeviceSlot
from declarative_train.tools.sweep.sweep import _start
from tests.house import working_tree

SAFE = ("-P", "-I")
MARK = "from pathlib import Path\nPath('imported').touch()\n"


def is_interpreter(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and ast.unparse(node) == "sys.executable"


def unsafe_uses(text: str) -> Iterator[str]:
    """Every use of the interpreter but the start of a safe command line, its path in a message, and `execv`."""
    tree = ast.parse(text)
    fine = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.List) and len(node.elts) > 1 and isinstance(node.elts[1], ast.Constant):
            fine |= {id(node.elts[0])} if node.elts[1].value in SAFE else set()
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("Path", "os.execv"):
            fine.add(id(node.args[0]))
    for node in ast.walk(tree):
        if is_interpreter(node) and id(node) not in fine:
            yield f"line {getattr(node, 'lineno', 0)}"


def test_every_start_of_python_has_a_safe_path() -> None:
    texts = {name: text for name, text in working_tree().items() if "sys.executable" in text}
    assert sum(text.count("[sys.executable, ") for text in texts.values()) >= 3
    assert {name: found for name, text in texts.items() if (found := list(unsafe_uses(text)))} == {}


def test_a_start_without_a_safe_path_is_found() -> None:
    assert list(unsafe_uses("run([sys.executable, '-m', 'json'])")) == ["line 1"]
    assert list(unsafe_uses("run([sys.executable, '-P', '-m', 'json'])")) == []


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("declarative_train", "tensorboard", "queue"):
        (tmp_path / f"{name}.py").write_text(MARK)
    return tmp_path


def test_a_point_of_a_sweep_imports_no_file_of_the_folder(folder: Path) -> None:
    process = _start(folder / "plan.json", folder, DeviceSlot(0))
    assert process.wait(60) == 2
    assert "plan.json" in (folder / "console.txt").read_text()
    assert not (folder / "imported").exists()


def test_tensorboard_imports_no_file_of_the_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda _, command: started.append(command))
    main(["tensorboard", "."])
    (command,) = started
    assert subprocess.run([*command, "--version"], capture_output=True, timeout=60).stdout.strip().startswith(b"2.")
    assert not (folder / "imported").exists()
