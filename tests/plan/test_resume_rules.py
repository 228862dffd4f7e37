"""Every key of a recipe is free, warned or refused when a run goes on, and no key is in two classes."""

from __future__ import annotations

import types
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Union, get_args, get_origin

import pytest

from declarative_train.components.component import Component
from declarative_train.components.optimizers import OPTIMIZERS
from declarative_train.plan.codec import sign
from declarative_train.plan.plan import Plan
from declarative_train.plan.resume_rules import RESUME_RULES, judge, rule_of
from declarative_train.recipe.sections.section import Section
from declarative_train.recipe.sections.top import Top
from tests.engine.made_recipes import DEEP, compiled, merged, write_data


def keys_of(section: type[Section], path: str = "") -> Iterator[str]:
    """Of the language: to the last key of each section; what a component takes is below its key. An optimizer's fields
    are keys of their own."""
    for name, field in section.model_fields.items():
        key = f"{path}{name}"
        inner = sections_in(field.annotation)
        if key in ("parallelism", "layout"):
            yield key
        elif key == "training.optimizer":
            yield from sorted({f"{key}.{each}" for kind in OPTIMIZERS.values() for each in kind.model_fields})
        elif inner is None:
            yield key
        else:
            below, star = inner
            yield from keys_of(below, f"{key}.*." if star else f"{key}.")


def sections_in(annotation: Any, star: bool = False) -> tuple[type[Section], bool] | None:
    """The section that a field holds, and whether by name."""
    if isinstance(annotation, type) and issubclass(annotation, Section) and not issubclass(annotation, Component):
        return annotation, star
    found = [
        sections_in(each, star or get_origin(annotation) is dict)
        for each in get_args(annotation)
        if get_origin(annotation) in (dict, Union, types.UnionType) or hasattr(annotation, "__metadata__")
    ]
    return next((each for each in found if each is not None), None)


KEYS = tuple(dict.fromkeys(keys_of(Top)))
EARLY = {"metric": "validation/loss", "mode": "min", "patience": "1 epoch"}
OF_BATCH = ("global_batch_size", "gradient_accumulation_steps", "microbatch_size")


def test_the_keys_are_those_of_the_language() -> None:
    assert {"seed", "data.window.length", "training.lr_schedule.warmup", "training.optimizer.betas"} <= set(KEYS)
    assert {"objective.losses.*.weight", "model.parameters.*.lr_scale", "model.weights.*.path"} <= set(KEYS)
    assert len(KEYS) > 70


@pytest.mark.parametrize("key", KEYS)
def test_a_key_has_one_class(key: str) -> None:
    found = [
        (rule.freedom, own) for rule in RESUME_RULES for own in rule.keys if key == own or key.startswith(f"{own}.")
    ]
    assert len(found) == 1, f"put `{key}` into one rule of plan/resume_rules.py"
    assert rule_of(key.replace("*", "hidden.weight")).freedom == found[0][0]


def test_every_rule_is_about_a_key_of_the_language() -> None:
    for rule in RESUME_RULES:
        assert bool(rule.why) == (rule.freedom != "warned")
        for own in rule.keys:
            assert [key for key in KEYS if key == own or key.startswith(f"{own}.")], own


def test_the_manual_has_the_same_table() -> None:
    text = (Path(__file__).parent.parent.parent / "docs" / "checkpoints.md").read_text()
    rows = [f"| {rule.freedom} | {', '.join(f'`{key}`' for key in rule.keys)} | {rule.why} |" for rule in RESUME_RULES]
    assert "\n".join(rows) in text, "the table should read:\n" + "\n".join(rows)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    write_data(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("changes", "freedom"),
    [
        ({"training": {"epochs": 5, "lr_schedule": None}}, "free"),
        ({"training": {"optimizer": {"type": "adamw", "lr": 0.02}}}, "warned"),
        ({"training": {"optimizer": {"type": "adamw", "lr": 0.01, "betas": [0.8, 0.9]}}}, "warned"),
        ({"training": {"optimizer": {"type": "adamw", "lr": 0.01, "amsgrad": True}}}, "refused"),
        ({"training": {"optimizer": {"type": "sgd", "lr": 0.01}}}, "refused"),
        ({"training": {"precision": "bf16"}}, "refused"),
        ({"training": {"global_batch_size": 48}}, "refused"),
        ({"training": {"lr_schedule": {"type": "linear", "warmup": "3 steps"}}}, "warned"),
        ({"seed": 3}, "refused"),
        ({"data": {"shuffle": False}}, "refused"),
        ({"data": {"split": {"validation": 0.3}}}, "refused"),
        ({"objective": {"metrics": None}, "checkpoint": {"best": None}}, "free"),
        (
            {"objective": {"loss": {"type": "cross_entropy", "input": "logits", "target": "y", "weight": 2.0}}},
            "refused",
        ),
        ({"model": {"parameters": {"hidden.weight": {"lr_scale": 0.1}}}}, "warned"),
        ({"model": {"parameters": {"hidden.weight": {"frozen": True}}}}, "refused"),
        ({"model": {"parameters": {"hidden.weight": {"init": {"type": "zeros"}}}}}, "refused"),
        ({"model": {"graph": {"layers": {"type": "block", "repeat": 5}}}}, "refused"),
    ],
    ids=lambda item: str(item)[:60],
)
def test_a_change_is_judged_by_the_class_of_its_key(directory: Path, changes: dict[str, Any], freedom: str) -> None:
    base = merged(DEEP, {"training": {"lr_schedule": None}}) if freedom == "free" else DEEP
    before, now = compiled(directory, base), compiled(directory, merged(base, changes))
    verdict = judge(before, now, 5)
    told = {"free": verdict.free, "warned": verdict.warned, "refused": verdict.refused}
    assert [name for name, sentences in told.items() if sentences] == [freedom], told


# keys of `training` -> two values of what holds them; an optimizer's fields are changed in the plan
TRAINING: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "epochs": ({"epochs": 3}, {"epochs": 4}),
    "steps": ({"epochs": None, "steps": 21}, {"epochs": None, "steps": 22}),
    "global_batch_size": ({}, {"global_batch_size": 48}),
    "gradient_accumulation_steps": ({}, {"gradient_accumulation_steps": 2}),
    "microbatch_size": ({}, {"microbatch_size": 12}),
    "lr_schedule.component": ({}, {"lr_schedule": {"type": "linear"}}),
    "lr_schedule.warmup": (
        {"lr_schedule": {"type": "constant", "warmup": "9 steps"}},
        {"lr_schedule": {"type": "constant", "warmup": "8 steps"}},
    ),
    "clip_grad_norm": ({"clip_grad_norm": 1.0}, {"clip_grad_norm": 2.0}),
    "precision.compute": ({}, {"precision": "fp64"}),
    "precision.reduce": ({"precision": {"reduce": "bf16"}}, {"precision": {"reduce": "fp32"}}),
    "precision.matmul": ({}, {"precision": {"matmul": "tf32"}}),
    "compile": ({}, {"compile": True}),
    "deterministic": ({}, {"deterministic": True}),
    "channels_last": ({}, {"channels_last": False}),
    "activation_checkpointing.policy": ({}, {"activation_checkpointing": "blocks"}),
    "activation_checkpointing.every": (
        {"activation_checkpointing": {"policy": "blocks", "every": 2}},
        {"activation_checkpointing": {"policy": "blocks", "every": 3}},
    ),
    "activation_checkpointing.keep": (
        {"activation_checkpointing": {"policy": "selective", "keep": ["attention"]}},
        {"activation_checkpointing": {"policy": "selective", "keep": ["products"]}},
    ),
    "ema.decay": ({"ema": {"decay": 0.8}}, {"ema": {"decay": 0.9}}),
    "early_stop.metric": ({"early_stop": EARLY}, {"early_stop": EARLY | {"metric": "validation/accuracy"}}),
    "early_stop.mode": ({"early_stop": EARLY}, {"early_stop": EARLY | {"mode": "max"}}),
    "early_stop.patience": ({"early_stop": EARLY}, {"early_stop": EARLY | {"patience": "2 epochs"}}),
    "max_time": ({}, {"max_time": "1 hour"}),
    "non_finite": ({}, {"non_finite": "skip"}),
}


def test_the_table_has_every_key_of_training() -> None:
    keys = {key.removeprefix("training.") for key in KEYS if key.startswith("training.")}
    assert set(TRAINING) == {key for key in keys if not key.startswith("optimizer.")}


@pytest.mark.parametrize("key", TRAINING)
def test_a_changed_key_of_training_is_reported_as_its_class_says(directory: Path, key: str) -> None:
    base = merged(DEEP, {"training": {"lr_schedule": None}})
    if key == "channels_last":  # refused for a model without convolutions, such as this one
        before = compiled(directory, base)
        now = sign(replace(before, training=replace(before.training, channels_last=not before.training.channels_last)))
    else:
        before, now = (compiled(directory, merged(base, {"training": changes})) for changes in TRAINING[key])
    assert before.training != now.training or key in OF_BATCH
    assert_reported(before, now, f"training.{key}")


@pytest.mark.parametrize("name", sorted({each for kind in OPTIMIZERS.values() for each in kind.model_fields}))
def test_a_changed_field_of_an_optimizer_is_reported_as_its_class_says(directory: Path, name: str) -> None:
    plan = compiled(directory, merged(DEEP, {"training": {"lr_schedule": None}}))
    before, now = (
        sign(replace(plan, training=replace(plan.training, optimizer={**plan.training.optimizer, name: value})))
        for value in ("one", "other")
    )
    assert_reported(before, now, f"training.optimizer.{name}")


def assert_reported(before: Plan, now: Plan, key: str) -> None:
    """A resume compares plans only where their fingerprints differ."""
    freedom, verdict = rule_of(key).freedom, judge(before, now, 5)
    reported = {"free": verdict.free, "warned": verdict.warned, "refused": verdict.refused}
    assert not [name for name, sentences in reported.items() if sentences and name != freedom], reported
    if freedom != "free":
        assert before.fingerprint != now.fingerprint
        assert any(key.removesuffix(".component").removesuffix(".compute") in each for each in reported[freedom])


def test_other_contents_are_refused(directory: Path) -> None:
    before = compiled(directory, DEEP)
    with (directory / "data.npz").open("ab") as stream:
        stream.write(b" ")
    (reason,) = judge(before, compiled(directory, DEEP), 5).refused
    assert reason == "the contents of the data files changed (the samples or their order would change)"
