"""Suite of silent mistakes: trainings that end well and have learned the wrong thing, and what dtrain says of each.

A mistake is a change of a correct recipe. `mistakes/*.yaml` has them by topic: name -> its entry.

    mistake   what goes wrong
    source    where it was seen: `owner/repository#number`, a paper, or `own`
    base      the correct recipe: a file of recipes/ here, or a path of the repository
    recipe    what is merged over it
    files     further files, by name
    found     `lint CODE` (a warning or an error in the recipe's own lines), `run TEXT` (a warning of the run's first
              steps), `impossible WHY` (the language cannot say it, or the engine does it right), `missed`
    test      for what is impossible: the test that shows it, as `file::test`
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import yaml

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
CLASSES = {
    "impossible": "impossible: the language cannot say it, or the engine does it right in every recipe",
    "lint": "refused or warned about by `dtrain lint`",
    "run": "reported by the third step of the run, and at its end",
    "missed": "missed",
}


@dataclass(frozen=True)
class Mistake:
    """Entry of the suite, as the module describes it. `topic` is its file."""

    name: str
    topic: str
    mistake: str
    source: str
    found: str
    base: str = ""
    recipe: str = ""
    test: str = ""

    @property
    def kind(self) -> str:
        return self.found.partition(" ")[0]

    @property
    def detail(self) -> str:
        return self.found.partition(" ")[2]


def mistakes() -> list[Mistake]:
    """Return all entries, by topic and in the order of their files."""
    found = []
    for path in sorted((HERE / "mistakes").glob("*.yaml")):
        for name, entry in yaml.safe_load(path.read_text("utf-8")).items():
            found.append(Mistake(name, path.stem, **entry))
    return found


def write_recipe(each: Mistake, folder: Path) -> Path:
    """Write the recipe of a mistake next to the data and the correct recipes, and return its path."""
    path = folder / f"{each.name}.yaml"
    path.write_text(f"extends: {each.base}\n{each.recipe}", "utf-8")
    return path
