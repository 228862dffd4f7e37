"""Suite of silent mistakes: trainings that end normally and have learned the wrong thing, and what dtrain reports.

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

from declarative_train.app.catalogue import catalogue

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
CLASSES = {
    "impossible": "impossible: the language cannot say it, or the engine does it right in every recipe",
    "lint": "an error or a warning of `dtrain lint`, with its line",
    "run": "a warning of the third step of the run",
    "missed": "missed",
}
TOPICS = {
    "engine": "Training loops and frameworks",
    "parameters": "Parameters and their start values",
    "pictures": "Pictures and their transforms",
    "rows": "Rows, columns and sets",
    "schedules": "Optimizers, schedules, lengths",
    "texts": "Texts and dialogues",
    "values": "Losses, metrics and targets",
}
INTRODUCTION = """# Silent mistakes

{num_mistakes} trainings that end normally and have learned the wrong thing, and what dtrain reports about each. They
are in `tests/silent/`: a mistake is a change of a correct recipe, and a test compares what is found with this page.
Mistakes of training loops and frameworks have no recipe, because no recipe can make them; the table names the test that
shows it.

| outcome | mistakes |
|---|---|"""
CLOSING = """\
There are no false alarms on the correct recipes of the suite, on the shipped recipes and on 100 generated ones. Sources
are issues and pull requests of other projects, and papers; where none is named, the mistake is this project's own."""


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


def page() -> str:
    """docs/silent-mistakes.md"""
    suite = mistakes()
    names = {rule.code: rule.name for rule in catalogue().values()}
    counts = [f"| {words} | {sum(each.kind == kind for each in suite)} |" for kind, words in CLASSES.items()]
    lines = [*INTRODUCTION.format(num_mistakes=len(suite)).split("\n"), *counts, "", CLOSING]
    for topic in dict.fromkeys(each.topic for each in suite):
        lines += ["", f"## {TOPICS[topic]}", "", "| mistake | what is found | source |", "|---|---|---|"]
        lines += [
            f"| {each.mistake} | {_outcome(each, names)} | {_source(each.source)} |"
            for each in suite
            if each.topic == topic
        ]
    return "\n".join([*lines, ""])


def _outcome(each: Mistake, names: dict[str, str]) -> str:
    if each.kind == "lint":
        return f"[{each.detail}](checks.md#{each.detail.lower()}-{names[each.detail]}) {names[each.detail]}"
    if each.kind == "run":
        return f'step 3: "{each.detail} ..."'
    if each.kind == "missed":
        return "**missed**"
    return f"impossible: {each.detail} (`{each.test.rpartition('/')[2].replace('::', '`, `')}`)"


def _source(source: str) -> str:
    repository, _, number = source.partition("#")
    if number:
        return f"[{source}](https://github.com/{repository}/issues/{number})"
    return "" if source == "own" else source


def write_recipe(each: Mistake, folder: Path) -> Path:
    """Write the recipe of a mistake next to the data and the correct recipes, and return its path."""
    path = folder / f"{each.name}.yaml"
    path.write_text(f"extends: {each.base}\n{each.recipe}", "utf-8")
    return path
