"""`parallelism: auto` -> one of the modes, and why.

Every candidate is judged by the rules that a written mode meets, by its memory, and by its predicted step time; the
smallest time wins. Times that differ by less than a hundredth are equal, and then the simpler mode is taken: the
estimates are not as exact as that.

It is a search by branch and bound. A candidate is out when its update alone needs more than there is, when a trace said
that it does not fit, or when the estimate says so by more than it may be too high: by less where a pipeline of the same
kind with other microbatches was tried, and tells how far off the estimate is. What would be taken if all that is left
fitted is tried, until that is known to fit: then nothing that is left could be faster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from declarative_train.core.amounts import amount, time_in_words
from declarative_train.core.diagnostics.diagnostic import Diagnostic
from declarative_train.plan.checks.stages import does_not_fit, no_mode_left
from declarative_train.plan.predicted import TAKEN, CandidatePlan, ChoicePlan
from declarative_train.planner.auto.candidates import Candidate, candidates
from declarative_train.planner.auto.hints import hints
from declarative_train.planner.auto.judge import Judge, Verdict, findings
from declarative_train.planner.auto.target import Target
from declarative_train.recipe.recipe import Recipe

EQUAL = 1.01
TOO_HIGH = 1.25  # an estimate over what is needed: 1.19 was seen (tests/planner/test_auto_search.py)
CORRECTED_TOO_HIGH = 1.1


@dataclass(frozen=True, slots=True)
class Choice:
    """`recipe` with the mode in the place of `auto`, None when there is none to take. `doubtful`, and then nothing
    else: a candidate whose trace decides what is taken; `is_last_hope`: no estimate says that anything fits."""

    recipe: Recipe | None
    plan: ChoicePlan | None
    diagnostics: list[Diagnostic]
    doubtful: Candidate | None = None
    is_last_hope: bool = False


def judged(judge: Judge) -> list[Verdict]:
    most_stages = sum(bool(node.parameters) for node in judge.model.nodes.values())
    return [judge.verdict(candidate) for candidate in candidates(judge.recipe, most_stages)]


def choose(judge: Judge, verdicts: Sequence[Verdict], known: Mapping[str, int], *, may_trace: bool) -> Choice:
    """`known`: bytes of candidates that were traced, by their words; `may_trace`: more of them can be."""
    recipe, target = judge.recipe, judge.target
    verdicts, may_fit = [_corrected(each, known, target) for each in verdicts], _may_fit(verdicts, known, target)
    fitting = [each for each in verdicts if each.fits]
    possible = [each for each in verdicts if each.refusal is None]
    if not possible:
        return Choice(None, None, [_nothing_left(recipe, verdicts)])
    promising = [each for each in possible if may_fit(each)] if may_trace else fitting
    doubtful = _doubtful(promising, possible, known, target) if may_trace else None
    if doubtful is not None:
        return Choice(None, None, [], doubtful.candidate, is_last_hope=not promising)
    diagnostics = []
    if not fitting:
        diagnostics.append(_too_large(judge, possible))
        if target.hardware is not None:
            return Choice(None, None, diagnostics)
    best = fastest(promising) if fitting else _smallest(possible)
    chosen = recipe._replace(parallelism=best.candidate.parallelism)
    said = findings(recipe)
    diagnostics += [each for each in findings(chosen) if each not in said]
    plan = replace(_choice(best, verdicts, target), num_traced=len(known))
    if known:  # else nothing is traced at all
        plan = replace(plan, untried=tuple(_untried(filter(may_fit, possible), best)))
    return Choice(chosen, plan, diagnostics)


def _corrected(verdict: Verdict, known: Mapping[str, int], target: Target) -> Verdict:
    needed = known.get(verdict.candidate.words)
    return verdict if needed is None else replace(verdict, memory_bytes=needed, fits=target.holds(needed))


def _may_fit(verdicts: Sequence[Verdict], known: Mapping[str, int], target: Target) -> Callable[[Verdict], bool]:
    """`verdicts` by the estimate alone."""
    found: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for each in verdicts:
        kind, number = _kind(each)
        needed = known.get(each.candidate.words)
        if needed is not None and number and each.memory_bytes:
            found.setdefault(kind, []).append((number, needed / each.memory_bytes))

    def may_fit(each: Verdict) -> bool:
        if each.candidate.words in known:
            return each.fits
        kind, number = _kind(each)
        _, factor = min((abs(number - other), ratio) for other, ratio in found.get(kind, [(0, 0.0)]))
        least = each.memory_bytes * (factor / CORRECTED_TOO_HIGH if factor else 1 / TOO_HIGH)
        return target.holds(each.least_bytes) and target.holds(int(least))

    return may_fit


def _kind(each: Verdict) -> tuple[tuple[str, str], int]:
    """Of a pipeline, and how many microbatches; 0 of others."""
    pipeline = each.candidate.parallelism.pipeline
    schedule, number = ("", 0) if pipeline is None else (pipeline.schedule, pipeline.microbatches)
    return (each.candidate.family, schedule), number


def _doubtful(
    promising: Sequence[Verdict], possible: Sequence[Verdict], known: Mapping[str, int], target: Target
) -> Verdict | None:
    """What has to be tried before anything is taken. That which would be taken, where the estimate says that it is too
    large; what is tried when it is taken is not asked for here. The fastest, where on it depends what counts as equally
    fast; the smallest, where nothing is promising."""
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


def _seconds(each: Verdict) -> float:
    return each.step_s or 0.0


def _untried(may_fit: Iterable[Verdict], best: Verdict) -> Iterator[str]:
    """What would have been taken if it fitted, the fastest first."""
    if best.step_s is None:
        return
    for each in sorted(may_fit, key=_seconds):
        if not each.fits and _seconds(each) * EQUAL < best.step_s:
            yield each.candidate.words


def fastest(fitting: Sequence[Verdict]) -> Verdict:
    """The first of those that take the least time; the first of all, where no time is known."""
    least = min((each.step_s for each in fitting if each.step_s is not None), default=None)
    if least is None:
        return fitting[0]
    return next(each for each in fitting if each.step_s is not None and each.step_s <= least * EQUAL)


def _smallest(possible: Sequence[Verdict]) -> Verdict:
    return min(possible, key=lambda each: each.memory_bytes)


def _nothing_left(recipe: Recipe, verdicts: Sequence[Verdict]) -> Diagnostic:
    first = verdicts[0]
    assert first.refusal is not None
    return no_mode_left(recipe.span("parallelism"), first.candidate.words, first.refusal)


def _too_large(judge: Judge, possible: Sequence[Verdict]) -> Diagnostic:
    """A warning where no hardware is named: the run may be meant for another machine than this one."""
    least, memory = _smallest(possible), judge.target.memory_bytes
    assert memory is not None, "all fit where the memory is unknown"
    is_certain = judge.target.hardware is not None
    ways = hints(judge) if is_certain else ["layout.hardware, where this machine is not the one that it is for"]
    span = judge.recipe.span("parallelism")
    return does_not_fit(span, least.candidate.words, least.memory_bytes, memory, ways, is_certain=is_certain)


def _choice(best: Verdict, verdicts: Sequence[Verdict], target: Target) -> ChoicePlan:
    rows = [_row(each, best, target) for each in _best_of_families(verdicts, best)]
    return ChoicePlan(_reason(best, verdicts), tuple(rows), len(verdicts), target.assumptions)


def _best_of_families(verdicts: Iterable[Verdict], best: Verdict) -> list[Verdict]:
    """One for each family, in the order of the candidates."""
    families: dict[str, list[Verdict]] = {}
    for each in verdicts:
        families.setdefault(each.candidate.family, []).append(each)
    return [best if best in members else _representative(members) for members in families.values()]


def _representative(members: Sequence[Verdict]) -> Verdict:
    fitting = [each for each in members if each.fits]
    if fitting:
        return fastest(fitting)
    possible = [each for each in members if each.refusal is None]
    return _smallest(possible) if possible else members[0]


def _row(each: Verdict, best: Verdict, target: Target) -> CandidatePlan:
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
    return CandidatePlan(each.candidate.words, each.memory_bytes, each.step_s, verdict)


def _reason(best: Verdict, verdicts: Sequence[Verdict]) -> str:
    """One sentence."""
    name, fitting = best.candidate.words, [each for each in verdicts if each.fits]
    if len(verdicts) == 1:
        return f"{name}: there is one device"
    if not fitting:
        return f"{name}: nothing fits here, and it needs the least"
    said = _against_others(best, [each for each in fitting if each.candidate.family != best.candidate.family])
    return f"{name}: {'; '.join([*said, *_passed_over(verdicts[: verdicts.index(best)])])}"


def _against_others(best: Verdict, others: Sequence[Verdict]) -> list[str]:
    """`others`: of other families, and they fit."""
    if not others:
        return ["nothing else fits"]
    if best.step_s is None:
        return ["the simplest that fits"]
    second = min(others, key=lambda each: each.step_s or 0.0)
    assert second.step_s is not None
    if second.step_s <= best.step_s * EQUAL:
        return [f"{time_in_words(best.step_s)} a step, as little as {second.candidate.words}, which is no simpler"]
    then = f"{second.candidate.words} with {time_in_words(second.step_s)}"
    return [f"{time_in_words(best.step_s)} a step, the least of all that fit; next is {then}"]


def _passed_over(simpler: Sequence[Verdict]) -> list[str]:
    """Why what is simpler was not taken, where it is not for its time."""
    refused = next((each for each in simpler if each.refusal is not None), None)
    large = next((each for each in simpler if each.refusal is None and not each.fits), None)
    said = [] if large is None else [f"{large.candidate.family} does not fit"]
    if refused is not None and refused.refusal is not None:
        said.append(f"{refused.candidate.family} is refused ({refused.refusal.code})")
    return said
