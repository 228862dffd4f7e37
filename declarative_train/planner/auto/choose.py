"""Choice of a mode for `parallelism: auto`, and its reason. If no mode fits: changes of the recipe with which one fits.

All candidates have an estimate of time and memory. A trace (a step on tensors without memory) predicts memory better,
but takes longer. So candidates are traced one at a time, the fastest first, until one fits. A candidate is excluded if

- parameters, gradients and optimizer state alone exceed the memory,
- a trace showed that it does not fit, or
- its estimate exceeds the memory by more than the estimate's possible error."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from declarative_train.core.amounts import amount, time_in_words
from declarative_train.core.diagnostics.diagnostic import Diagnostic
from declarative_train.plan.checks.stages import does_not_fit, no_mode_left
from declarative_train.plan.predictions import TAKEN, CandidatePlan, ChoicePlan
from declarative_train.planner.auto.candidates import Candidate, candidates, list_divided
from declarative_train.planner.auto.judge import Judge, LayoutVerdict, findings
from declarative_train.planner.auto.target import Target, target_of
from declarative_train.recipe.recipe import Recipe
from declarative_train.recipe.sections.training import ActivationCheckpointing, Training

EQUAL = 1.01  # times with a smaller ratio count as equal, because estimates are not more exact
TOO_HIGH = 1.25  # highest ratio of estimate to need: 1.19 was measured (tests/planner/test_auto_search.py)
CORRECTED_TOO_HIGH = 1.1
MOST_HINTS = 3
FACTORS = (2, 4, 8, 16, 32, 64)  # by which hints increase the number of GPUs


@dataclass(frozen=True, slots=True)
class LayoutChoice:
    """Result of `choose`: a mode, a candidate that must be examined before the choice, or only diagnostics.

    recipe         the recipe with the chosen mode in place of `auto`; None if none is chosen
    plan           the choice and its reasons, as the Plan stores them
    doubtful       candidate whose memory must be traced before the choice
    is_last_hope   no candidate fits by the estimates, and `doubtful` is the smallest untraced one
    bounded        candidate whose step time must be computed first; only a lower bound is known
    """

    recipe: Recipe | None
    plan: ChoicePlan | None
    diagnostics: list[Diagnostic]
    doubtful: Candidate | None = None
    is_last_hope: bool = False
    bounded: Candidate | None = None


def judge_all(judge: Judge) -> list[LayoutVerdict]:
    """Return a verdict on each mode that `parallelism: auto` can choose, except those that divide layers over ranks.
    The verdicts are estimates; no mode is traced."""
    return [judge.verdict(candidate) for candidate in candidates(judge.recipe, _count_stages(judge))]


def judge_divided(judge: Judge) -> list[LayoutVerdict]:
    """Return verdicts, from estimates alone, on all candidates whose ranks divide layers, experts or positions."""
    verdicts = map(judge.verdict_of_divided, list_divided(judge.recipe, _count_stages(judge)))
    return [each for each in verdicts if each is not None]


def _count_stages(judge: Judge) -> int:
    """Return the largest possible number of pipeline stages: the number of graph nodes with parameters."""
    return sum(bool(node.parameters) for node in judge.model.nodes.values())


def choose(
    judge: Judge, verdicts: Sequence[LayoutVerdict], known: Mapping[str, int], *, may_trace: bool
) -> LayoutChoice:
    """Choose a candidate of `parallelism: auto`, or name one that must be examined first (see `LayoutChoice`).
    `verdicts`: the verdict on each candidate, from an estimate. `known`: {name of a traced candidate: its memory in
    bytes}. `may_trace`: the caller can trace more candidates."""
    recipe, target = judge.recipe, judge.target
    verdicts, may_fit = (
        [_apply_trace(each, known, target) for each in verdicts],
        _make_fit_test(verdicts, known, target),
    )
    fitting = [each for each in verdicts if each.fits]
    possible = [each for each in verdicts if each.refusal is None]
    if not possible:
        return LayoutChoice(None, None, [_nothing_left(recipe, verdicts)])
    promising = [each for each in possible if may_fit(each)] if may_trace else fitting
    least = min(promising, key=_seconds) if promising else _smallest(possible)
    if least.is_least:
        return LayoutChoice(None, None, [], bounded=least.candidate)
    doubtful = _find_doubtful(promising, possible, known, target) if may_trace else None
    if doubtful is not None:
        return LayoutChoice(None, None, [], doubtful.candidate, is_last_hope=not promising)
    diagnostics = []
    if not fitting:
        diagnostics.append(_too_large(judge, possible))
        if target.hardware is not None:
            return LayoutChoice(None, None, diagnostics)
    best = fastest(promising) if fitting else _smallest(possible)
    chosen = recipe._replace(parallelism=best.candidate.parallelism)
    before = findings(recipe)
    diagnostics += [each for each in findings(chosen) if each not in before]
    plan = replace(_choice(best, verdicts, target), num_traced=len(known))
    if known:  # without traces, no candidate counts as untried
        plan = replace(plan, untried=tuple(_list_untried(filter(may_fit, possible), best)))
    return LayoutChoice(chosen, plan, diagnostics)


def _apply_trace(verdict: LayoutVerdict, known: Mapping[str, int], target: Target) -> LayoutVerdict:
    needed = known.get(verdict.candidate.words)
    return verdict if needed is None else replace(verdict, memory_bytes=needed, fits=target.holds(needed))


def _make_fit_test(
    verdicts: Sequence[LayoutVerdict], known: Mapping[str, int], target: Target
) -> Callable[[LayoutVerdict], bool]:
    """Return a function that says whether a candidate may fit on the device. If the candidate was traced, the traced
    memory decides. Otherwise the estimate decides; it is first divided by `TOO_HIGH`, because estimates may be too
    high.

    If a pipeline of the same kind (`_kind`) was traced, its ratio of traced to estimated memory corrects the estimate,
    which is then divided only by `CORRECTED_TOO_HIGH`.

    `verdicts`: all candidates, with estimated memory. `known`: {name of a traced candidate: its memory in bytes}."""
    found: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for each in verdicts:
        kind, number = _kind(each)
        needed = known.get(each.candidate.words)
        if needed is not None and number and each.memory_bytes:
            found.setdefault(kind, []).append((number, needed / each.memory_bytes))

    def may_fit(each: LayoutVerdict) -> bool:
        if each.candidate.words in known:
            return each.fits
        kind, number = _kind(each)
        _, factor = min((abs(number - other), ratio) for other, ratio in found.get(kind, [(0, 0.0)]))
        least = each.memory_bytes * (factor / CORRECTED_TOO_HIGH if factor else 1 / TOO_HIGH)
        return target.holds(each.least_bytes) and target.holds(int(least))

    return may_fit


def _kind(each: LayoutVerdict) -> tuple[tuple[str, str], int]:
    """Return (kind, number of microbatches) of a candidate; the number is 0 without a pipeline. A kind is (name of the
    mode, schedule of its pipeline or ""). The estimates of candidates of one kind have similar errors."""
    pipeline = each.candidate.parallelism.pipeline
    schedule, number = ("", 0) if pipeline is None else (pipeline.schedule, pipeline.microbatches)
    return (each.candidate.name or each.candidate.family, schedule), number


def _find_doubtful(
    promising: Sequence[LayoutVerdict], possible: Sequence[LayoutVerdict], known: Mapping[str, int], target: Target
) -> LayoutVerdict | None:
    """Return the verdict on the candidate to trace next, or None if a mode can be chosen without another trace:

    - if no candidate is promising, the smallest untraced one
    - otherwise the choice of `fastest`, if it does not fit by its estimate
    - otherwise the one with the shortest time, if it is untraced and `fastest` would choose a simpler one without it

    `promising`: candidates that may fit, the simplest first. `possible`: all candidates without an error. `known`:
    {traced candidate: its memory in bytes}."""
    if not promising:
        left = [each for each in possible if each.candidate.words not in known and target.holds(each.least_bytes)]
        return _smallest(left) if left else None
    best = fastest(promising)
    if not best.fits:
        return best
    least = min(promising, key=_seconds)
    simpler = promising[: promising.index(best)]
    if least.candidate.words not in known and any(_seconds(each) <= _seconds(best) * EQUAL for each in simpler):
        return least
    return None


def _seconds(each: LayoutVerdict) -> float:
    return each.step_s or 0.0


def _list_untried(may_fit: Iterable[LayoutVerdict], best: LayoutVerdict) -> Iterator[str]:
    """Yield the names of the candidates that would be faster than `best`, but seem too large for the memory; the
    fastest first. `may_fit`: candidates that fit, or might fit because estimates of memory can be too high."""
    if best.step_s is None:
        return
    for each in sorted(may_fit, key=_seconds):
        if not each.fits and _seconds(each) * EQUAL < best.step_s:
            yield each.candidate.words


def fastest(fitting: Sequence[LayoutVerdict]) -> LayoutVerdict:
    """Return the fastest candidate in `fitting`, which is sorted from simple to complex. Times up to `EQUAL` times the
    shortest count as equal; then the simplest candidate is returned. If no time is known, return the first."""
    least = min((each.step_s for each in fitting if each.step_s is not None), default=None)
    if least is None:
        return fitting[0]
    return next(each for each in fitting if each.step_s is not None and each.step_s <= least * EQUAL)


def _smallest(possible: Sequence[LayoutVerdict]) -> LayoutVerdict:
    return min(possible, key=lambda each: each.memory_bytes)


def _nothing_left(recipe: Recipe, verdicts: Sequence[LayoutVerdict]) -> Diagnostic:
    first = verdicts[0]
    assert first.refusal is not None
    return no_mode_left(recipe.span("parallelism"), first.candidate.words, first.refusal)


def _too_large(judge: Judge, possible: Sequence[LayoutVerdict]) -> Diagnostic:
    """Return the diagnostic that says that no candidate fits: an error if the memory of the GPU is known, else a
    warning, because the run may be meant for another machine. `possible`: all candidates without an error."""
    least, memory = _smallest(possible), judge.target.memory_bytes
    assert memory is not None, "all fit, since the memory is unknown"
    is_certain = judge.target.hardware is not None
    ways = hints(judge) if is_certain else ["set layout.hardware, if the run is for another machine"]
    span = judge.recipe.span("parallelism")
    return does_not_fit(span, least.candidate.words, least.memory_bytes, memory, ways, is_certain=is_certain)


def _choice(best: LayoutVerdict, verdicts: Sequence[LayoutVerdict], target: Target) -> ChoicePlan:
    rows = [_row(each, best, target) for each in _best_of_families(verdicts, best)]
    return ChoicePlan(_reason(best, verdicts), tuple(rows), len(verdicts), target.assumptions)


def _best_of_families(verdicts: Iterable[LayoutVerdict], best: LayoutVerdict) -> list[LayoutVerdict]:
    """Return one verdict for each family of candidates (group of similar modes), in the order of the candidates. In the
    family of the chosen candidate it is `best`. In any other family it is the verdict on the fastest candidate that
    fits or, if none fits, on the smallest one."""
    families: dict[str, list[LayoutVerdict]] = {}
    for each in verdicts:
        families.setdefault(each.candidate.family, []).append(each)
    return [best if best in members else _representative(members) for members in families.values()]


def _representative(members: Sequence[LayoutVerdict]) -> LayoutVerdict:
    fitting = [each for each in members if each.fits]
    if fitting:
        return fastest(fitting)
    possible = [each for each in members if each.refusal is None]
    return _smallest(possible) if possible else members[0]


def _row(each: LayoutVerdict, best: LayoutVerdict, target: Target) -> CandidatePlan:
    if each.refusal is not None:
        return CandidatePlan(each.candidate.words, None, None, f"{each.refusal.code}: {each.refusal.message}")
    if each is best:
        verdict = TAKEN
    elif not each.fits:
        assert target.memory_bytes is not None
        verdict = f"does not fit into {amount(target.memory_bytes, 'B')}"
    elif each.step_s is None or best.step_s is None:
        verdict = "fits"
    else:
        verdict = "as fast" if each.step_s <= best.step_s * EQUAL else f"{each.step_s / best.step_s:.2f} x the time"
    return CandidatePlan(each.candidate.words, each.memory_bytes, each.step_s, verdict, each.is_least)


def _reason(best: LayoutVerdict, verdicts: Sequence[LayoutVerdict]) -> str:
    """Return a sentence for the plan on why `best` was chosen. `verdicts`: the verdicts on all candidates."""
    name, fitting = best.candidate.words, [each for each in verdicts if each.fits]
    if len(verdicts) == 1:
        return f"{name}: there is only one device"
    if not fitting:
        return f"{name}: nothing fits, and this needs the least memory"
    reasons = _compare_others(best, [each for each in fitting if each.candidate.family != best.candidate.family])
    return f"{name}: {'; '.join([*reasons, *_explain_skipped(verdicts[: verdicts.index(best)])])}"


def _compare_others(best: LayoutVerdict, others: Sequence[LayoutVerdict]) -> list[str]:
    """Return a list with one text, which compares the step time of the chosen candidate with that of the fastest in
    `others`. `others`: the candidates of other families (`Candidate.family`) that fit in memory."""
    if not others:
        return ["nothing else fits"]
    if best.step_s is None:
        return ["the simplest that fits"]
    second = min(others, key=lambda each: each.step_s or 0.0)
    assert second.step_s is not None
    if second.step_s <= best.step_s * EQUAL:
        return [f"{time_in_words(best.step_s)} a step, the same as {second.candidate.words}, which is not simpler"]
    then = f"{second.candidate.words} with {'more than ' * second.is_least}{time_in_words(second.step_s)}"
    return [f"{time_in_words(best.step_s)} a step, the least of all that fit; next is {then}"]


def _explain_skipped(simpler: Sequence[LayoutVerdict]) -> list[str]:
    """Return texts that say why some candidates simpler than the chosen one were not chosen: the first that does not
    fit, and the first that was rejected with an error. `simpler`: the verdicts on these candidates."""
    refused = next((each for each in simpler if each.refusal is not None), None)
    large = next((each for each in simpler if each.refusal is None and not each.fits), None)
    reasons = [] if large is None else [f"{large.candidate.family} does not fit"]
    if refused is not None and refused.refusal is not None:
        reasons.append(f"{refused.candidate.family} is rejected ({refused.refusal.code})")
    return reasons


def hints(judge: Judge) -> list[str]:
    """Return a few changes of the recipe, as texts; each alone would make the model fit. [] if none was found."""
    found: list[str] = []
    for way, recipe in _list_changes(judge.recipe):
        target = target_of(recipe.layout)
        changed = Judge.of(recipe, judge.lowered, judge.parameters, judge.data, target, judge.scales)
        for candidate in candidates(recipe, most_stages=0):  # without pipelines: one mode that fits is enough
            verdict = changed.verdict(candidate)
            if verdict.fits:
                found.append(f"{way} ({candidate.words}, {amount(verdict.memory_bytes, 'B')})")
                break
        if len(found) == MOST_HINTS or (found and way.startswith("layout")):
            break
    return found


def _list_changes(recipe: Recipe) -> Iterator[tuple[str, Recipe]]:
    """Yield pairs (description, changed recipe) for a plan that needs too much memory: with activation checkpointing,
    with more accumulation steps, and with more GPUs or nodes."""
    training, layout = recipe.training, recipe.layout
    policy = training.activation_checkpointing.policy
    again = _with(training, activation_checkpointing=ActivationCheckpointing(policy="blocks"))
    if policy == "none":
        kept = _with(training, activation_checkpointing=ActivationCheckpointing(policy="selective"))
        yield "training.activation_checkpointing: selective", recipe._replace(training=kept)
    if policy in ("none", "selective"):
        yield "training.activation_checkpointing: blocks", recipe._replace(training=again)
    steps = _most_accumulation(recipe)
    if steps is not None:
        less = {"gradient_accumulation_steps": steps, "microbatch_size": None}
        yield f"training.gradient_accumulation_steps: {steps}", recipe._replace(training=_with(training, **less))
        if policy == "none":
            both = f"training.gradient_accumulation_steps: {steps} with activation_checkpointing: blocks"
            yield both, recipe._replace(training=_with(again, **less))
    for factor in FACTORS:
        number = layout.num_gpus * factor
        if training.global_batch_size % number:
            return
        if layout.gpus is None:
            changed, way = {"nodes": layout.num_nodes * factor}, f"layout.nodes: {layout.num_nodes * factor}"
        else:
            changed, way = {"gpus": number}, f"layout.gpus: {number}"
        yield way, recipe._replace(layout=layout.model_copy(update=changed))


def _most_accumulation(recipe: Recipe) -> int | None:
    """Return the number of accumulation steps with which each GPU computes one sample at a time. Return None if the
    recipe already has that number, or if the batch does not divide evenly over the GPUs."""
    share, rest = divmod(recipe.training.global_batch_size, recipe.layout.num_gpus)
    return share if not rest and share > (recipe.training.gradient_accumulation_steps or 1) else None


def _with(training: Training, **values: object) -> Training:
    return training.model_copy(update=values)
