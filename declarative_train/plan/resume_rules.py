"""Rules for resuming from a checkpoint with a changed recipe: a change of a key is free, warned or refused.

free      the steps compute the same numbers, or only the number of steps changes
warned    later steps compute other numbers, as intended; both values are reported
refused   the checkpoint would belong to another run; the reason and both values are reported
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Literal, NamedTuple

from declarative_train.components.lr_schedules import LR_SCHEDULES
from declarative_train.plan.difference import changes

if TYPE_CHECKING:
    from declarative_train.plan.plan import Plan, TrainingPlan

Freedom = Literal["free", "warned", "refused"]
_POINTS = 200  # steps in the rest of a run at which lr schedules are compared


class ResumeRule(NamedTuple):
    """Rule that says whether a run may resume after a change of the recipe. It holds for the dotted paths `keys`, in
    which `*` stands for any name, and for all keys below them. `freedom`: free, warned or refused. `why`: the reason,
    for a message."""

    freedom: Freedom
    keys: tuple[str, ...]
    why: str = ""


def _all_below(section: str, *names: str) -> tuple[str, ...]:
    return tuple(f"{section}.{name}" for name in names)


RESUME_RULES = (
    ResumeRule(
        "free",
        ("requires", "language", "extends", "fragment", "vars", "plugins"),
        "what they change in other keys is compared there",
    ),
    ResumeRule("free", ("name", "meta", "evaluation", "checkpoint", "logging", "sweep"), "no step depends on them"),
    ResumeRule(
        "free",
        ("parallelism", "layout", "data.workers", "model.parameters.*.cut"),
        "every layout trains on the same samples",
    ),
    ResumeRule("free", ("objective.metrics",), "they do not affect training"),
    ResumeRule(
        "free",
        _all_below("training", "steps", "epochs", "max_time", "early_stop"),
        "they only change the length of the run",
    ),
    ResumeRule(
        "free",
        (
            *_all_below("training", "gradient_accumulation_steps", "microbatch_size"),
            *_all_below("training", "compile", "activation_checkpointing", "deterministic", "channels_last"),
            *_all_below("training.precision", "reduce", "matmul"),
        ),
        "they only change how a step is computed, and rounding",
    ),
    ResumeRule("warned", ("data.transforms",)),
    ResumeRule("warned", _all_below("training", "lr_schedule", "clip_grad_norm", "non_finite", "ema")),
    ResumeRule("warned", _all_below("training.optimizer", "lr", "weight_decay", "betas", "eps", "alpha", "dampening")),
    ResumeRule("warned", _all_below("training.optimizer", "nesterov", "lr_decay", "beta2_decay", "d", "adjust_lr_fn")),
    ResumeRule("warned", _all_below("training.optimizer", "ns_coefficients", "ns_steps")),
    ResumeRule("warned", _all_below("model.parameters.*", "lr_scale", "weight_decay")),
    ResumeRule(
        "refused",
        (
            *_all_below("training.optimizer", "type", "momentum", "amsgrad", "centered", "initial_accumulator_value"),
            *_all_below("model.parameters.*", "optimizer", "frozen"),
        ),
        "the saved optimizer state belongs to the other optimizer",
    ),
    ResumeRule("refused", ("seed",), "the order of the samples and all random numbers depend on it"),
    ResumeRule(
        "refused",
        (
            *_all_below("data", "source", "fields", "split", "window", "last_batch", "on_bad_row"),
            *_all_below("data", "shuffle", "shuffle_window", "shuffle_streams"),
        ),
        "the samples or their order would change",
    ),
    ResumeRule("refused", ("training.global_batch_size",), "the position in the data would change"),
    ResumeRule("refused", ("model.parameters.*.storage",), "the frozen weights would be rounded differently"),
    ResumeRule("refused", ("training.precision.compute",), "every number would be computed in another precision"),
    ResumeRule("refused", ("objective.losses",), "another loss is minimised"),
    ResumeRule(
        "refused",
        ("model.graph", "model.blocks", *_all_below("model.parameters.*", "tie", "adapter")),
        "the saved parameters belong to the other model",
    ),
    ResumeRule(
        "refused",
        ("model.weights", "model.parameters.*.init"),
        "they would have no effect: the checkpoint replaces the start values",
    ),
)
_UNKNOWN = ResumeRule("refused", (), "it decides what the checkpoint holds")
# key of a `Change` -> key of the rules above
_KEYS = (
    (r"training\.precision", "training.precision.compute"),
    (r"contents", "data.source"),
    (r"objective\.loss\b(.*)", r"objective.losses\1"),
    (r"data\.sets\b.*", "data.split"),
    (r"data\.roll\b.*", "data.shuffle_window"),
    (r"data\.mix\b.*", "data.source"),
)


@cache
def _patterns() -> list[tuple[re.Pattern[str], ResumeRule]]:
    """Return (compiled pattern, rule) for each key in RESUME_RULES. `*` in a key also matches dots, because the names
    of parameters contain dots (`hidden.weight`)."""
    found = []
    for rule in RESUME_RULES:
        for key in rule.keys:
            found.append((re.compile(re.escape(key).replace(r"\*", ".+") + r"(\..*)?"), rule))
    return found


def rule_of(key: str) -> ResumeRule:
    """Return the rule that says whether a run may resume although `key` has changed. `key`: dotted path of a key of the
    recipe, or `contents` for the content of data files."""
    for pattern, into in _KEYS:
        found = re.fullmatch(pattern, key)
        key = found.expand(into) if found else key
    return next((rule for pattern, rule in _patterns() if pattern.fullmatch(key)), _UNKNOWN)


@dataclass(frozen=True, slots=True)
class ResumeVerdict:
    """Changes of a recipe since a checkpoint, as sentences: those that resuming ignores (`free`), warns about
    (`warned`), or refuses (`refused`)."""

    free: tuple[str, ...]
    warned: tuple[str, ...]
    refused: tuple[str, ...]


def judge(before: Plan, now: Plan, step: int) -> ResumeVerdict:
    """Compare the plan of a checkpoint with the current plan, and return the changes: those that resuming ignores,
    warns about, or refuses. `step`: step after which the checkpoint was saved."""
    by_freedom: dict[Freedom, list[str]] = {"free": [], "warned": [], "refused": []}
    for change in changes(before, now):
        rule = rule_of(change.key)
        reason = f" ({rule.why})" if rule.freedom == "refused" else ""
        by_freedom[rule.freedom].append(f"{change.sentence}{reason}")
    if now.training.num_steps < step:
        end = f"the run should last {now.training.num_steps:,} steps, but has reached step {step:,}"
        by_freedom["refused"].append(end)
    elif not by_freedom["refused"]:
        by_freedom["warned"] += filter(None, [_compare_lr(before.training, now.training, step)])
    return ResumeVerdict(*(tuple(by_freedom[freedom]) for freedom in ("free", "warned", "refused")))


def _compare_lr(before: TrainingPlan, now: TrainingPlan, step: int) -> str | None:
    """Return a warning if the learning rates of the remaining steps differ between the two plans; otherwise None. They
    may differ because a schedule depends on the length of the run."""
    if step >= now.num_steps:
        return None
    end = max(min(before.num_steps, now.num_steps), step + 1)
    points = range(step, end, max((end - step) // _POINTS, 1))
    if all(_factor(before, at) == _factor(now, at) for at in (*points, now.num_steps - 1)):
        return None
    word = now.lr_schedule["type"]
    over = "" if step < before.num_steps else " after its end"
    text = f"the lr schedule ({word}) changes from here on: at step {step + 1:,} it gives {_factor(now, step):.4g} x lr"
    text += f" instead of {_factor(before, step):.4g} x lr{over}"
    if before.num_warmup_steps != now.num_warmup_steps:
        text += f"; its warm-up is {now.num_warmup_steps:,} steps instead of {before.num_warmup_steps:,}"
    return text


def _factor(training: TrainingPlan, at: int) -> float:
    """Return the factor of the learning rate for the step after step `at`. After the end of the run, it is that of the
    last step."""
    schedule = LR_SCHEDULES.read(training.lr_schedule)
    return schedule.factor(min(at, training.num_steps - 1), training.num_steps, training.num_warmup_steps)
