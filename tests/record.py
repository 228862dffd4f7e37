"""What a long table has measured, a line of JSON for each row as soon as it is there: one that is stopped goes on."""

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
    """`path`: appended to, and read anew at each question; of several lines of one name the last holds."""

    path: Path

    def append(self, line: dict[str, Any]) -> None:
        """`line` has a `name`. The commit of the package is written next to it."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        is_cut_short = self.path.exists() and not self.path.read_text(encoding="utf-8").endswith("\n")
        with self.path.open("a", encoding="utf-8") as file:
            file.write("\n" * is_cut_short + json.dumps(line | {"commit": commit()}) + "\n")

    def by_name(self) -> dict[str, dict[str, Any]]:
        return {line["name"]: line for line in self._read()}

    def commits(self) -> list[str]:
        """Of the package as it was measured, those that count, in the order in which they were met."""
        return list(dict.fromkeys(line["commit"] for line in self.by_name().values()))

    def forget(self) -> None:
        self.path.unlink(missing_ok=True)

    def _read(self) -> Iterator[dict[str, Any]]:
        """A last line that a stop cut short is passed over."""
        for line in self.path.read_text(encoding="utf-8").splitlines() if self.path.exists() else ():
            try:
                yield json.loads(line)
            except json.JSONDecodeError:
                continue


def commit() -> str:
    asked = ("git", "-C", str(ROOT), "rev-parse", "--short", "HEAD")
    answer = subprocess.run(asked, capture_output=True, text=True, timeout=30)
    return answer.stdout.strip() or "unknown"
