"""Searches of a sweep: all combinations, random draws, or optuna.

optuna is used through its ask-and-tell interface
(https://optuna.readthedocs.io/en/stable/tutorial/20_recipes/009_ask_and_tell.html), because each point runs in another
process. Its journal is in the sweep's folder, so that a stopped sweep can resume."""

from __future__ import annotations

import itertools
import json
import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from declarative_train.recipe.sections.sweep import Sweep
from declarative_train.recipe.sweeps import SweepChoice, overlay
from declarative_train.source.node import Mapping as Tree
from declarative_train.source.node import Node, to_value

JOURNAL = "optuna.journal"


@dataclass(frozen=True)
class Point:
    """Point of a sweep: one run with its settings. `number`: index of the point. `values`: the settings by dotted path.
    `nodes`: the same settings as YAML nodes. `is_drawn`: whether the values were drawn at random."""

    number: int
    values: Mapping[str, object]
    nodes: Mapping[str, Node] = field(default_factory=dict, repr=False)
    is_drawn: bool = False  # then the search may draw the same values again

    @property
    def over(self) -> tuple[Tree, ...]:
        return tuple(overlay(key, node) for key, node in self.nodes.items())

    @property
    def key(self) -> str:
        """Text by which a resumed sweep recognises the point: its values. If the values were drawn at random, they may
        occur twice, so the text also has the index of the point."""
        values = json.dumps(self.values, sort_keys=True)
        return f"{self.number} {values}" if self.is_drawn else values


def point_of(number: int, nodes: Mapping[str, Node]) -> Point:
    return Point(number, {key: plain(to_value(node)) for key, node in nodes.items()}, nodes)


def plain(value: Any) -> object:
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value


class Search(ABC):
    """Interface of a search over the settings of a sweep. It proposes points (values of the settings) one after the
    other, and receives their results."""

    @abstractmethod
    def next(self) -> Point | None:
        """Return the next point, or None if there are no more."""

    @abstractmethod
    def is_hopeless(self, point: Point, step: int, value: float) -> bool:
        """Return whether the run of a point should be stopped early. `value`: result of the run's evaluation after step
        `step`."""

    @abstractmethod
    def tell(self, point: Point, value: float | None, *, pruned: bool = False) -> None:
        """Receive the result of a point (one run of the sweep). `value`: value of the sweep's metric, None if the run
        gave none. `pruned`: the run was stopped early because it was hopeless."""


class FixedSearch(Search):
    """Search whose points are all known from the start."""

    def __init__(self, points: Sequence[Point]) -> None:
        self.points = tuple(points)
        self._left = iter(self.points)

    def next(self) -> Point | None:
        return next(self._left, None)

    def is_hopeless(self, point: Point, step: int, value: float) -> bool:
        return False

    def tell(self, point: Point, value: float | None, *, pruned: bool = False) -> None:
        """Do nothing: the points do not depend on results."""


def list_points(sweep: Sweep, choices: Sequence[SweepChoice]) -> list[Point]:
    """Return the points of a grid or of a random search. In a grid, the last key varies fastest. A random search has
    `trials` different points, or fewer if there are fewer combinations. `choices`: the settings to vary, with their
    values."""
    keys = [choice.key for choice in choices]
    if sweep.type == "grid":
        rows = itertools.product(*(choice.values for choice in choices))
        return [point_of(number, dict(zip(keys, row, strict=True))) for number, row in enumerate(rows)]
    import numpy as np

    random, points = np.random.default_rng(sweep.seed or 0), dict[str, Point]()
    for _ in range(20 * (sweep.trials or 1)):  # there may be fewer combinations than trials
        point = point_of(len(points), {choice.key: _draw(choice, random) for choice in choices})
        points.setdefault(point.key, point)
        if len(points) == sweep.trials:
            break
    return list(points.values())


def _draw(choice: SweepChoice, random: Any) -> Node:
    import math

    if not choice.is_range:
        return choice.values[int(random.integers(len(choice.values)))]
    if choice.step is not None:
        count = int((choice.high - choice.low) / choice.step + 1e-9) + 1
        return choice.at(choice.low + int(random.integers(count)) * choice.step)
    if choice.log:
        number = math.exp(random.uniform(math.log(choice.low), math.log(choice.high)))
    else:
        number = float(random.uniform(choice.low, choice.high + (1 if choice.is_whole else 0)))
    number = min(max(number, choice.low), choice.high)
    return choice.at(int(number) if choice.is_whole else float(f"{number:.6g}"))


class OptunaSearch(Search):
    """Search by optuna. `folder`: the folder of its journal. In a resumed sweep, interrupted points run again first,
    and the points before the interruption count towards `trials`."""

    def __init__(
        self,
        sweep: Sweep,
        choices: Sequence[SweepChoice],
        folder: Path,
        name: str,
        higher_is_better: bool,
        num_jobs: int,
    ) -> None:
        import optuna
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._optuna, self._sweep, self._choices = optuna, sweep, choices
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warning that an option is experimental
            self.study = optuna.create_study(
                storage=JournalStorage(JournalFileBackend(str(folder / JOURNAL))),
                study_name=name,
                load_if_exists=True,
                direction="maximize" if higher_is_better else "minimize",
                sampler=self._sampler(num_jobs),
                pruner=self._pruner(),
            )
        states = optuna.trial.TrialState
        self._trials: dict[int, Any] = {}
        self._waiting = [each for each in self.study.get_trials(deepcopy=False) if each.state == states.RUNNING]
        self._num_left = (sweep.trials or 1) - len(
            [each for each in self.study.get_trials(deepcopy=False) if each.state != states.WAITING]
        )

    def _sampler(self, num_jobs: int) -> Any:
        samplers, seed = self._optuna.samplers, self._sweep.seed or 0
        if self._sweep.sampler == "random":
            return samplers.RandomSampler(seed=seed)
        if self._sweep.sampler == "cmaes":
            return samplers.CmaEsSampler(seed=seed)
        return samplers.TPESampler(seed=seed, constant_liar=num_jobs > 1)

    def _pruner(self) -> Any:
        pruners = self._optuna.pruners
        kinds = {"median": pruners.MedianPruner, "hyperband": pruners.HyperbandPruner}
        return kinds.get(self._sweep.pruner or "none", pruners.NopPruner)()

    def next(self) -> Point | None:
        if self._waiting:
            frozen = self._waiting.pop(0)
            trial = self._optuna.trial.Trial(self.study, frozen._trial_id)
        elif self._num_left > 0:
            self._num_left -= 1
            trial = self.study.ask()
        else:
            return None
        self._trials[trial.number] = trial
        point = point_of(trial.number, {choice.key: self._suggest(trial, choice) for choice in self._choices})
        return replace(point, is_drawn=True)

    def _suggest(self, trial: Any, choice: SweepChoice) -> Node:
        if choice.is_range:
            suggest = trial.suggest_int if choice.is_whole else trial.suggest_float
            more = {} if choice.step is None else {"step": choice.step}
            number = suggest(choice.key, choice.low, choice.high, log=choice.log, **more)
            return choice.at(number if choice.is_whole else float(f"{number:.6g}"))
        values = [plain(to_value(node)) for node in choice.values]
        is_simple = all(isinstance(value, bool | int | float | str) for value in values)
        if is_simple and len(set(map(repr, values))) == len(values):
            found = trial.suggest_categorical(choice.key, values)
            return choice.values[next(at for at, value in enumerate(values) if repr(value) == repr(found))]
        return choice.values[int(trial.suggest_categorical(choice.key, list(range(len(values)))))]

    def is_hopeless(self, point: Point, step: int, value: float) -> bool:
        trial = self._trials[point.number]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an earlier session reported this step
            trial.report(value, step)
        return bool(trial.should_prune())

    def tell(self, point: Point, value: float | None, *, pruned: bool = False) -> None:
        states = self._optuna.trial.TrialState
        if pruned:
            self.study.tell(self._trials[point.number], state=states.PRUNED)
        elif value is None or value != value:
            self.study.tell(self._trials[point.number], state=states.FAIL)
        else:
            self.study.tell(self._trials[point.number], value)


def corners(choices: Sequence[SweepChoice]) -> list[Point]:
    """Return points to compile before an adaptive search starts, so that errors are found early. The first point has
    the first value of `choice.samples()` for each setting. Every other point differs from it in one setting, and
    together they have all values. `choices`: the settings that the search varies."""
    first = {choice.key: choice.samples()[0] for choice in choices}
    rows = [first, *(first | {choice.key: node} for choice in choices for node in choice.samples()[1:])]
    return [point_of(number, row) for number, row in enumerate(rows)]
