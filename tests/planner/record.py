"""What `make planner` has measured, a line of JSON for each as soon as it is there: one that is stopped goes on."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from declarative_train.plan.predicted import MemoryPlan
from declarative_train.runtime.footprint.footprint import Footprint
from tests.planner.measure import Result

ROOT = Path(__file__).parent.parent.parent
RECORD = ROOT / "runs" / "planner.jsonl"


@dataclass(frozen=True, slots=True)
class Record:
    """`path`: appended to, and read anew at each question; of several lines of one name the last holds."""

    path: Path = RECORD

    def add(self, result: Result) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        is_cut_short = self.path.exists() and not self.path.read_text(encoding="utf-8").endswith("\n")
        with self.path.open("a", encoding="utf-8") as file:
            file.write("\n" * is_cut_short + json.dumps(asdict(result) | {"commit": commit()}) + "\n")

    def results(self) -> dict[str, Result]:
        return {line["name"]: result_of(line) for line in self._lines()}

    def commits(self) -> list[str]:
        """Of the package as it was measured, those that count, in the order in which they were met."""
        return list(dict.fromkeys({line["name"]: line["commit"] for line in self._lines()}.values()))

    def _lines(self) -> Iterator[dict[str, Any]]:
        """A last line that a stop cut short is passed over."""
        for line in self.path.read_text(encoding="utf-8").splitlines() if self.path.exists() else ():
            try:
                yield json.loads(line)
            except json.JSONDecodeError:
                continue


def result_of(line: dict[str, Any]) -> Result:
    predicted, measured = MemoryPlan(**line["predicted"]), Footprint(**line["measured"])
    return Result(line["name"], predicted, measured, line["num_ranks"], line["seconds"])


def commit() -> str:
    asked = ("git", "-C", str(ROOT), "rev-parse", "--short", "HEAD")
    answer = subprocess.run(asked, capture_output=True, text=True, timeout=30)
    return answer.stdout.strip() or "unknown"
