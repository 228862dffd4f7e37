"""The shipped recipes of the planner's table: all that stand in recipes/, one of them with each of its switches too."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from declarative_train.plan.plan import Plan
from tests.planner.measure import compiled

ROOT = Path(__file__).parent.parent.parent
RECIPES = ROOT / "recipes"
SWITCHED = "compare_modes"  # whose ways to run are switches
TOO_LARGE = ("gpt_7b_auto_32xh100",)  # for real ranks here


@dataclass(frozen=True, slots=True)
class Shipped:
    path: Path
    switches: tuple[Path, ...] = ()

    @property
    def name(self) -> str:
        words = [str(each.relative_to(RECIPES).with_suffix("")) for each in (self.path, *self.switches)]
        return ", ".join(words)

    def plan(self) -> Plan:
        return compiled(self.path, self.name, self.switches)


def shipped() -> list[Shipped]:
    """The recipes as they are, those of the gallery behind the others."""
    paths = (*sorted(RECIPES.glob("*.yaml")), *sorted(RECIPES.glob("gallery/*.yaml")))
    switches = sorted(RECIPES.glob("switches/*.yaml"))
    found = []
    for path in paths:
        if path.stem not in TOO_LARGE:
            found.append(Shipped(path))
        if path.stem == SWITCHED:
            found += [Shipped(path, (switch,)) for switch in switches]
    return found
