"""`dtrain` in this process, for tests: its exit code, its output, and the diagnostics of `dtrain lint`."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

from declarative_train.app.main import main

CASES = Path(__file__).parent / "cases"


Found = dict[str, object]  # a diagnostic, as `--format json` prints it


@dataclass(frozen=True)
class Output:
    code: int
    out: str
    err: str

    @property
    def diagnostics(self) -> list[Found]:
        """Diagnostics of a command with `--format json`."""
        found: list[Found] = json.loads(self.out)["diagnostics"]
        return found


def dtrain(*words: str) -> Output:
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main(words)
    return Output(code, out.getvalue(), err.getvalue())


def found_in(path: str, *words: str) -> list[Found]:
    return dtrain("lint", path, "--format", "json", *words).diagnostics


def codes(diagnostics: list[Found]) -> set[object]:
    return {diagnostic["code"] for diagnostic in diagnostics}


def write(folder: Path, files: Mapping[str, str | bytes]) -> None:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
