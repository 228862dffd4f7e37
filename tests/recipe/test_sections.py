"""Sections: what is read, what defaults are, and the words for what is wrong."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from declarative_train.core.diagnostics.diagnostic import Diagnostic
from declarative_train.core.duration import Duration
from declarative_train.recipe.load import Loaded, load
from declarative_train.recipe.sections.parallelism import Axes, DataAxes, PipelineAxis

Laid = Callable[..., Loaded]
One = Callable[..., Diagnostic]
Wrong = Callable[..., list[Diagnostic]]


def place(diagnostic: Diagnostic) -> tuple[int, int]:
    return diagnostic.span.line, diagnostic.span.column


def test_the_small_recipe_is_silent_and_has_its_defaults(laid: Laid) -> None:
    loaded = laid()
    assert loaded.diagnostics == []
    recipe = loaded.recipe
    assert recipe is not None
    assert (recipe.name, recipe.seed, recipe.plugins, recipe.meta) == ("small", 0, (), {})
    assert recipe.parallelism == Axes()
    assert recipe.layout.num_gpus == 1
    assert recipe.training.lr_schedule.component.type == "constant"
    assert recipe.logging.every == Duration(10, "steps")
    assert recipe.data.split["validation"].type == "random"
    assert recipe.objective.losses["loss"].component.type == "cross_entropy"
    assert recipe.objective.metrics["accuracy"].component.type == "accuracy"
    assert recipe.data.fields["x"].type == "tensor"


def test_the_name_is_the_files_stem(tmp_path, laid: Laid) -> None:  # type: ignore[no-untyped-def]
    assert laid("name: null\n").recipe.name == "over"  # type: ignore[union-attr]


def test_all_mistakes_at_once(wrong: Wrong) -> None:
    found = wrong(
        "seeds: 3\n"
        "training: {global_batch_size: many, optimizer: {type: adm}, lr_schedule: {type: cosine, warm: 5%}}\n"
        "layout: {gpu: 2}\nparallelism: dpd\nobjective: {loss: {input: nowhere}}\n"
    )
    assert {d.code for d in found} == {"S001", "S003", "S005", "W001"}
    assert [d.message for d in found if d.code == "S005"] == [
        "there is no optimizer `adm`",
        "there is no mode of parallelism `dpd`",
    ]


@pytest.mark.parametrize(
    ("over", "code", "at", "words", "way_out"),
    [
        ("seeds: 3", "S001", (2, 1), "the recipe has no key `seeds`", "did you mean `seed`?"),
        ("gpus: 2", "S001", (2, 1), "no key `gpus`", "`gpus` belongs in `layout`"),
        ("training: {lr: 0.1}", "S001", (2, 12), "no key `lr`", "`lr` belongs in `training.optimizer`"),
        ("layout: {warmup: 5%}", "S001", (2, 10), "no key `warmup`", "belongs in `training.lr_schedule`"),
        ("training: {learning_rate: 1}", "S001", (2, 12), "no key", "its name here is `lr`, in `training.optimizer`"),
        ("training: {epochs: ten}", "S003", (2, 20), "`epochs` is the text `ten`, expected a number", None),
        ("training: {steps: 1.5}", "S003", (2, 19), "`steps` is 1.5, expected an integer", None),
        ('training: {steps: "10"}', "S003", (2, 19), "the text `10`", "write it without quotes"),
        ("training: {compile: yes}", "S003", (2, 21), "`compile` is the text `yes`", "write `true`"),
        ("training: {precision: fp8}", "S004", (2, 23), "expected one of fp32, bf16, fp16, fp64", "known: bf16"),
        ("training: {global_batch_size: 0}", "S004", (2, 31), "but must be at least 1", None),
        ("training: {clip_grad_norm: .inf}", "S004", (2, 28), "a finite number", None),
        ("training: 5", "S003", (2, 11), "`training` is 5, expected a mapping", None),
        ("training: {optimizer: sgd}", "S003", (2, 23), "expected a mapping", "write `{type: sgd, lr: ...}`"),
        (
            "training: {optimizer: {type: adamx}}",
            "S005",
            (2, 30),
            "there is no optimizer `adamx`",
            "did you mean `adam",
        ),
        ("training: {optimizer: {lrs: 0.1}}", "S001", (2, 24), "`adam` has no key `lrs`", "did you mean `lr`"),
        ("evaluation: {every: 100}", "R001", (2, 21), "`every` is 100 without a unit", "write `100 steps`"),
        ("training: {max_time: 5 epochs}", "R002", (2, 22), "`5 epochs` is in epochs", None),
        ("evaluation: {every: 5 parsecs}", "R002", (2, 21), "not a unit of duration", None),
        ("evaluation: {every: 0 steps}", "R002", (2, 21), "is zero", None),
        ("evaluation: {max: 10 steps}", "R002", (2, 19), "this takes samples", None),
        ("data: {split: {hold-out: 0.1}}", "B003", (2, 16), "a set cannot be named `hold-out`", "hold_out"),
        ("data: {split: {more: {fraction: 0.1}}}", "S002", (2, 16), "needs `type`", "random"),
        ("data: {fields: {x: {column: a, columns: b}}}", "S004", (2, 20), "not both", None),
        ("parallelism: {strategy: ddp}", "S001", (2, 15), "no key `strategy`", "a word (`fsdp`) or axes"),
        (
            "parallelism: {pipeline: {stages: 2}}",
            "S002",
            (2, 15),
            "`parallelism.pipeline` needs `microbatches`",
            "add `m",
        ),
        ("parallelism: {data: {reshard: false}}", "P021", (2, 15), "has no axis", "shard: all"),
        ("parallelism: 3", "S003", (2, 14), "`parallelism` is 3, expected a word or axes", None),
        ("parallelism: [ddp]", "S003", (2, 14), "expected a word or axes", None),
        ("objective: {metrics: [acuracy]}", "S005", (2, 23), "there is no metric `acuracy`", "did you mean `accuracy`"),
        ("objective: {metrics: accuracy}", "S003", (2, 22), "expected a mapping of names", None),
        ("name: a/b", "S004", (2, 7), "`a/b` is used as a folder", None),
        ("training: {batch_size: 3}", "S001", (2, 12), "no key", "its name here is `global_batch_size`"),
        ("data: {fields: {y: {type: video}}}", "S005", (2, 27), "there is no type of field `video`", "tensor"),
        ("objective: {metrics: [accuracy, {type: f1}]}", "S003", (2, 22), "is a list", "name each"),
        ("model: {grahp: {}}", "S001", (2, 9), "`model` has no key `grahp`", "did you mean `graph`"),
    ],
)
def test_words_and_place(one: One, over: str, code: str, at: tuple[int, int], words: str, way_out: str | None) -> None:
    found = one(over + "\n")
    assert (found.code, place(found)) == (code, at), found
    assert words in found.message
    if way_out is not None:
        assert found.help is not None
        assert way_out in found.help


def test_a_misspelt_key_is_one_mistake(tmp_path) -> None:  # type: ignore[no-untyped-def]
    found = load(
        "r.yaml", text="training: {global_batch_sise: 4, epochs: 1, optimizer: {type: sgd, lr: 1}}\n"
    ).diagnostics
    assert [d.code for d in found if "batch" in d.message] == ["S001"]


def test_missing_sections_are_told_at_the_start() -> None:
    found = load("r.yaml", text="# story\nname: empty\n").diagnostics
    assert [(d.code, d.message) for d in found] == [
        ("S002", f"the recipe needs `{name}`") for name in ("data", "objective", "training", "model")
    ]
    assert {d.span.line for d in found} == {2}


@pytest.mark.parametrize(
    ("mode", "wanted"),
    [
        ("ddp", Axes(data=DataAxes(replicate="all"))),
        ("{data: {replicate: 1, shard: all}}", Axes(data=DataAxes(replicate=1, shard="all"))),
        ("single", Axes()),
        ("{pipeline: {stages: 2, microbatches: 4}}", Axes(pipeline=PipelineAxis(stages=2, microbatches=4))),
    ],
)
def test_modes(laid: Laid, mode: str, wanted: object) -> None:
    gpus = 1 if mode == "single" else 2
    loaded = laid(f"parallelism: {mode}\nlayout: {{gpus: {gpus}}}\n")
    assert loaded.diagnostics == []
    assert loaded.recipe is not None
    assert loaded.recipe.parallelism == wanted


def test_a_mode_replaces_another_with_its_keys(laid: Laid) -> None:
    over = "parallelism: {pipeline: {stages: 2, microbatches: 2}}\nlayout: {gpus: 2}\n"
    loaded = laid(over, set_=("parallelism=ddp",))
    assert loaded.diagnostics == []
    assert loaded.recipe is not None
    assert loaded.recipe.parallelism == Axes(data=DataAxes(replicate="all"))


def test_a_template_is_judged_at_its_own_place(one: One) -> None:
    found = one('vars: {n: many}\ntraining: {steps: "{{ vars.n }}"}\n')
    assert (found.code, place(found)) == ("S003", (3, 19))
    assert "the text `many`" in found.message


def test_a_template_that_fails_is_one_mistake(one: One) -> None:
    found = one('training: {steps: "{{ vars.nothing }}"}\n')
    assert found.code.startswith("T")
    assert place(found)[0] == 2


def test_a_set_option_is_named_as_the_place(one: One) -> None:
    found = one(set_=("training.global_batch_size=many",))
    assert found.code == "S003"
    assert "training.global_batch_size=many" in found.span.path


def test_durations_are_read(laid: Laid) -> None:
    recipe = laid(
        "evaluation: {every: 0.5 epochs, max: 10 samples}\n"
        "training: {max_time: 2 hours, lr_schedule: {type: cosine, warmup: 10%},"
        " early_stop: {metric: validation/loss, mode: min, patience: 2 epochs}}\n"
    ).recipe
    assert recipe is not None
    assert recipe.evaluation.every == Duration(0.5, "epochs")
    assert recipe.evaluation.max == Duration(10, "samples")
    assert recipe.training.max_time is not None
    assert recipe.training.max_time.seconds == 7200
    assert recipe.training.lr_schedule.warmup == Duration(10, "%")
