"""Mutated recipes. Each is compiled, and must either get a diagnostic, or become a plan that trains a step.

python -m tests.fuzz 20000 [FIRST]     20,000 mutations, from seed FIRST on; prints a count of the results

Most steps are trained in one process on the CPU, whatever the mode of the recipe: `single` gives the gradients of every
mode (tests/parity). Real ranks train some of the plans for several ranks, and those that `single` cannot train. A plan
is not trained if an earlier one trained the same step.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field, replace
from pathlib import Path

from declarative_train import planner
from declarative_train import recipe as recipe_room
from declarative_train.core.diagnostics.diagnostic import Diagnostic
from declarative_train.core.diagnostics.render import render
from declarative_train.plan.codec import to_data
from declarative_train.plan.plan import Plan
from declarative_train.run.launch import run
from tests.linted import CASES
from tests.mutations import mutate

SHIPPED = Path(__file__).parents[1] / "recipes"
SEEDS = [*sorted(SHIPPED.rglob("*.yaml")), *sorted((CASES / "ok").glob("*.yaml")), *sorted(CASES.glob("*.yaml"))]
SLOWEST_S = 6.0  # longest time of a lint, on a slow machine that does other work too
MOST_PARAMETERS = 3_000_000  # larger models are not trained here
MOST_VALUES = 20_000_000  # models with more values in all edges of a batch are not trained here
MOST_RANKS = 4
REAL_RANKS_EVERY = 4  # of the plans for several ranks, one in so many is trained by real ranks
NOT_OF_A_STEP = ("name", "files", "overrides", "fingerprint", "identity", "logging", "checkpoint", "meta", "layout")
ON_ONE_CPU = ("parallelism=single", "layout.gpus=1", "layout.device=cpu", "training.compile=false")


@dataclass
class Tally:
    """Results of the mutations. `counts`: number of each result. `failures`: texts of the errors, each with its seed.
    `trained`: keys of the steps that were trained."""

    counts: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    slowest_s: float = 0.0
    slowest: str = ""
    trained: set[str] = field(default_factory=set)
    several: int = 0  # number of trained plans for several ranks

    def text(self) -> str:
        lines = [f"{count:>7}  {what}" for what, count in self.counts.most_common()]
        return "\n".join([*lines, f"slowest lint {self.slowest_s:.2f} s ({self.slowest})"])


def fuzz(first: int, count: int) -> Tally:
    """Test the mutations of `count` seeds, from seed `first` on."""
    tally = Tally()
    planner.compile(_recipe(CASES / "base.yaml"))  # imports torch, which is not measured
    sources = [(path, path.read_text("utf-8")) for path in SEEDS]
    for seed in range(first, first + count):
        path, text = sources[seed % len(sources)]
        content = mutate(text, seed).decode("utf-8", "surrogateescape")
        label = f"seed {seed} of {path.name}"
        try:
            recipe, found = _lint(path, content, label, tally)
            if recipe is None:
                wrong = any(item.is_error for item in found)
                tally.counts["refused by the static rules" if wrong else "a sound fragment"] += 1
                continue
            plan = _compile(path, recipe, label, tally)
            if plan is None:
                tally.counts["refused by data, graph or plan"] += 1
                continue
            tally.counts[_train(path, content, plan, tally)] += 1
        except Exception:
            tally.failures.append(f"{label}\n{traceback.format_exc()}")
    return tally


def _recipe(path: Path) -> recipe_room.Recipe:
    loaded = recipe_room.load(str(path))
    assert loaded.recipe is not None
    return loaded.recipe


def _lint(
    path: Path, content: str, label: str, tally: Tally
) -> tuple[recipe_room.Recipe | None, tuple[Diagnostic, ...]]:
    begin = time.process_time()
    loaded = recipe_room.load(str(path), text=content)
    texts = {} if loaded.document is None else dict(loaded.document.texts())
    render(loaded.diagnostics, texts, format="full")
    _measure(begin, label, tally)
    is_fragment = "fragment" in content
    wrong = any(item.is_error for item in loaded.diagnostics)
    assert wrong or loaded.recipe is not None or is_fragment, "neither an error nor a recipe"
    return loaded.recipe, tuple(loaded.diagnostics)


def _compile(path: Path, recipe: recipe_room.Recipe, label: str, tally: Tally) -> Plan | None:
    begin = time.process_time()
    plan, found = planner.compile(recipe, offline=True)
    render(found, {str(path): ""}, format="full")
    _measure(begin, f"{label}, compiled", tally)
    assert plan is not None or found, "neither a diagnostic nor a plan"
    return plan


def _measure(begin: float, label: str, tally: Tally) -> None:
    took = time.process_time() - begin  # processor time: other work on the machine does not change it
    if took > tally.slowest_s:
        tally.slowest_s, tally.slowest = took, label
    assert took < SLOWEST_S, f"lint took {took:.1f} s"


def train(path: Path, content: str, tally: Tally) -> None:
    """Train a step of a recipe without mistakes, and count the result in `tally`."""
    loaded = recipe_room.load(str(path), text=content)
    assert loaded.recipe is not None
    plan = planner.compile(loaded.recipe)[0]
    assert plan is not None
    tally.counts[_train(path, content, plan, tally)] += 1


def _train(path: Path, content: str, plan: Plan, tally: Tally) -> str:
    """Train one step of the plan, and return the result in words. Raises AssertionError with the output of the run if
    it fails."""
    if _is_large(plan):
        return "compiled: too large to train here"
    key = _what_a_step_depends_on(plan)
    if key in tally.trained:
        return "trained before"
    tally.trained.add(key)
    several = len(plan.layout.ranks) > 1
    tally.several += several
    if not several or tally.several % REAL_RANKS_EVERY:
        loaded = recipe_room.load(str(path), text=content, set_=ON_ONE_CPU)
        alone = None if loaded.recipe is None else planner.compile(loaded.recipe, offline=True)[0]
        if alone is not None:
            return _step(path, loaded, "trained in one process")
    if plan.layout.num_nodes > 1 or len(plan.layout.ranks) > MOST_RANKS or plan.layout.device == "cuda":
        return "compiled: for other machines"
    loaded = recipe_room.load(str(path), text=content, set_=("training.compile=false",))
    return _step(path, loaded, "trained by its ranks" if several else "trained in one process")


def _step(path: Path, loaded: recipe_room.Loaded, done: str) -> str:
    assert loaded.recipe is not None
    plan, _ = planner.compile(loaded.recipe, offline=True)
    assert plan is not None
    folder = Path(tempfile.mkdtemp(prefix="fuzz"))
    try:
        with open(folder / "said", "w+", encoding="utf-8") as file:  # a real file, because forked ranks write to it too
            with redirect_stderr(file), redirect_stdout(file):
                code = run(_into(plan, folder), max_steps=1, sinks=lambda _: ())
            file.seek(0)
            said = file.read()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if code == 3 and "training.non_finite: skip" in said:
        return "stopped at a loss that is not finite"
    assert code in (0, 75), f"the run failed with {code}: {said}"
    return done


def _into(plan: Plan, folder: Path) -> Plan:
    return replace(plan, logging=replace(plan.logging, dir=str(folder), checkpoints=None))


def _is_large(plan: Plan) -> bool:
    edges = sum(spec.num_elements for node in plan.graph.nodes for spec in node.outputs.values())
    return (
        sum(parameter.num_elements for parameter in plan.parameters) > MOST_PARAMETERS
        or plan.batch.global_batch_size * edges > MOST_VALUES
    )


def _what_a_step_depends_on(plan: Plan) -> str:
    data = to_data(plan)
    mode = plan.layout.mode, len(plan.layout.ranks)
    return repr((mode, [(key, value) for key, value in data.items() if key not in NOT_OF_A_STEP]))


if __name__ == "__main__":
    warnings.simplefilter("error")
    begun = time.perf_counter()
    result = fuzz(int(sys.argv[2]) if len(sys.argv) > 2 else 0, int(sys.argv[1]))
    print("\n".join([*result.failures, result.text()]))
    print(f"{len(result.failures)} failures of {sys.argv[1]} in {time.perf_counter() - begun:.0f} s")
    sys.exit(bool(result.failures))
