"""Record of a long measurement: one line of JSON for each row, written as soon as it is measured. A measurement that
was interrupted can therefore continue."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent


@dataclass(frozen=True, slots=True)
class Lines:
    """Lines of the file at `path`, which is read at each call. If several lines have the same name, the last one
    counts."""

    path: Path

    def append(self, line: dict[str, Any]) -> None:
        """Append a line, which must have a `name`. The current commit is added to it."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        is_cut_short = self.path.exists() and not self.path.read_text(encoding="utf-8").endswith("\n")
        with self.path.open("a", encoding="utf-8") as file:
            file.write("\n" * is_cut_short + json.dumps(line | {"commit": commit()}) + "\n")

    def by_name(self) -> dict[str, dict[str, Any]]:
        return {line["name"]: line for line in self._read()}

    def commits(self) -> list[str]:
        """Return the commits at which the lines that count were measured, in the order of the file."""
        return list(dict.fromkeys(line["commit"] for line in self.by_name().values()))

    def forget(self) -> None:
        self.path.unlink(missing_ok=True)

    def _read(self) -> Iterator[dict[str, Any]]:
        """Yield the lines of the file. A last line that was cut off by an interruption is left out."""
        for line in self.path.read_text(encoding="utf-8").splitlines() if self.path.exists() else ():
            try:
                yield json.loads(line)
            except json.JSONDecodeError:
                continue


def commit() -> str:
    asked = ("git", "-C", str(ROOT), "rev-parse", "--short", "HEAD")
    answer = subprocess.run(asked, capture_output=True, text=True, timeout=30)
    return answer.stdout.strip() or "unknown"
