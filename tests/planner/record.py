"""What `make planner` has measured, as results."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from declarative_train.plan.predictions import MemoryPlan
from tests.planner.footprint import Footprint
from tests.planner.measure import Result
from tests.record import ROOT, Lines


@dataclass(frozen=True, slots=True)
class Record:
    lines: Lines = field(default_factory=lambda: Lines(ROOT / "runs" / "planner.jsonl"))

    def add(self, result: Result) -> None:
        self.lines.append(asdict(result))

    def results(self) -> dict[str, Result]:
        return {name: result_of(line) for name, line in self.lines.by_name().items()}


def result_of(line: dict[str, Any]) -> Result:
    predicted, measured = MemoryPlan(**line["predicted"]), Footprint(**line["measured"])
    return Result(line["name"], predicted, measured, line["num_ranks"], line["seconds"])
