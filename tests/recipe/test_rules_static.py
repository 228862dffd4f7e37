"""Rules that look at more than one value: batch, layout, pipeline, objective, evaluation, secrets."""

from __future__ import annotations

from collections.abc import Callable
from importlib import metadata

import pytest

from declarative_train.components.pipeline_schedules import PIPELINE_SCHEDULES
from declarative_train.core.diagnostics.diagnostic import Diagnostic, Severity
from declarative_train.recipe.load import Loaded, load

Laid = Callable[..., Loaded]
One = Callable[..., Diagnostic]
Wrong = Callable[..., list[Diagnostic]]

DEEP = "model: {{graph: {{hidden: {{type: mlp, hidden: [8, 8, 8, 8, 8, 8, 8, 8], input: x}}}}}}\n"
PIPE = DEEP + "parallelism: {{pipeline: {{{}}}}}\nlayout: {{gpus: {}}}\n"


@pytest.mark.parametrize(
    ("over", "code", "words", "way_out"),
    [
        (
            "training: {gradient_accumulation_steps: 5}",
            "R003",
            "24 cannot be divided evenly over 5 accumulation steps",
            "set training.global_batch_size to 20 or 25, or training.gradient_accumulation_steps to 4 or 6",
        ),
        (
            "training: {microbatch_size: 9}\nparallelism: ddp\nlayout: {gpus: 2}",
            "R003",
            "24 cannot be divided evenly over 2 data-parallel ranks x 9 samples per microbatch = 18",
            "set training.global_batch_size to 18 or 36, or training.microbatch_size to 6 or 12",
        ),
        (
            "parallelism: dp\nlayout: {gpus: 5}",
            "R003",
            "24 cannot be divided evenly over 5 devices",
            "set training.global_batch_size to 20 or 25",
        ),
        (
            "training: {global_batch_size: 3}\nparallelism: fsdp\nlayout: {nodes: 2, gpus_per_node: 4}",
            "R003",
            "3 cannot be divided evenly over 8 data-parallel ranks",
            "set training.global_batch_size to 8",
        ),
        ("training: {epochs: null}", "R004", "`training` does not set a length", "epochs"),
        (
            "training: {lr_schedule: {type: cosine, warmup: 5 epochs}}",
            "R005",
            "a warm-up of 5 epochs takes the whole run",
            "5%",
        ),
        ("training: {steps: 10, lr_schedule: {type: cosine, warmup: 480 samples}}", "R005", "480 samples", None),
        ("evaluation: {every: 6 epochs}", "R006", "6 epochs is longer than the run", None),
        ("checkpoint: {every: 200%}", "R002", "`200%` is more than the run", None),
        ("training: {steps: 5}\nlogging: {every: 10 steps}", "R006", "10 steps is longer", None),
        (
            "parallelism: {data: {replicate: 3, shard: all}}\nlayout: {gpus: 4}",
            "P001",
            "4 GPUs cannot be divided evenly",
            "1, 2, 4",
        ),
        (
            PIPE.format("stages: 3, microbatches: 6, schedule: gpipe", 2),
            "P001",
            "3 stages cannot be divided evenly over the 2 ranks",
            "set parallelism.pipeline.stages to 2 or 4",
        ),
        (
            PIPE.format("stages: 2, microbatches: 4}, data: {replicate: 2", 3),
            "P001",
            "3 GPUs cannot be divided evenly over 2 copies of the model",
            "set parallelism.data.replicate to one of 1, 3",
        ),
        ("parallelism: dp\nlayout: {nodes: 2, gpus_per_node: 2}", "P002", "cannot run on 2 nodes", "ddp"),
        ("parallelism: single\nlayout: {gpus: 4}", "P003", "single uses 1 of 4 GPUs", "ddp"),
        ("layout: {gpus: 4}", "P003", "parallelism is not set: single uses 1 of 4 GPUs", "ddp"),
        (
            "parallelism: ddp\nlayout: {nodes: 4}",
            "P004",
            "`layout` sets 4 nodes, but not the number of GPUs",
            "gpus_per_node",
        ),
        ("parallelism: ddp\nlayout: {gpus: [1, 1]}", "P005", "GPU 1 is listed twice", None),
        (
            PIPE.format("stages: 4, microbatches: 4", 2),
            "P006",
            "1f1b needs exactly 1 stage on each rank; 4 stages on 2 ranks give 2",
            "set parallelism.pipeline.stages to 2, or parallelism.pipeline.schedule to dualpipev, interleaved_1f1b",
        ),
        (
            PIPE.format("stages: 2, microbatches: 4, schedule: zbv", 2),
            "P006",
            "zbv needs exactly 2 stages on each rank",
            "set parallelism.pipeline.stages to 4",
        ),
        (
            PIPE.format("stages: 4, microbatches: 2, schedule: 1f1b", 4),
            "P007",
            "1f1b needs at least 4 microbatches, one for each stage, but there are 2",
            "set parallelism.pipeline.microbatches to 4",
        ),
        (
            PIPE.format("stages: 8, microbatches: 9, schedule: interleaved_1f1b", 4)
            + "training: {global_batch_size: 9}",
            "P007",
            "a multiple of its 2 rounds over 4 ranks, but there are 9",
            "set parallelism.pipeline.microbatches to 8 or 10",
        ),
        (
            PIPE.format("stages: 3, microbatches: 3, cut_before: [logits]", 3),
            "P008",
            "1 cut makes 2 stages, but `stages` is 3",
            "name 2 nodes",
        ),
        (
            PIPE.format("stages: 2, microbatches: 2", 1),
            "P009",
            "1 GPU makes 1 pipeline of one rank",
            "layout.gpus to 2",
        ),
        (
            PIPE.format("stages: 4, microbatches: 4, schedule: zbv", 2) + "training: {compile: true}",
            "P010",
            "torch cannot compile stages for zbv",
            "interleaved_1f1b",
        ),
        (
            "parallelism: ddp\nlayout: {gpus: [0, 3], device: cpu}",
            "P011",
            "GPU numbers have no effect on the CPU",
            "write `gpus: 2`",
        ),
        (
            "parallelism: {data: {replicate: 2, shard: all}}\nlayout: {gpus: 2}",
            "P012",
            "nothing is sharded",
            "ddp",
        ),
        (
            "parallelism: {data: {replicate: all, shard: all}}\nlayout: {gpus: 4}",
            "P021",
            "two axes are `all`",
            "set one of them to a number",
        ),
        (
            "parallelism: {data: {replicate: 2}}\nlayout: {gpus: 4}",
            "P001",
            "2 copies of the model use only a part of the 4 GPUs",
            "write `all` for replicate, or set layout.gpus to 2",
        ),
        (
            PIPE.format("stages: 3, microbatches: 4}, data: {replicate: all", 4),
            "P001",
            "4 GPUs cannot be divided evenly over pipelines of 3 ranks",
            "a multiple of that",
        ),
        (
            PIPE.format("stages: 2, microbatches: 4}, data: {shard: 2, reshard: true", 4),
            "P021",
            "`reshard` has no effect here: stages of a pipeline remain gathered during a step",
            "remove it",
        ),
        (
            "checkpoint: {best: {metric: validation/acuracy, mode: max}}",
            "K001",
            "no evaluation computes `validation/acuracy`",
            "did you mean `validation/accuracy`",
        ),
        (
            "training: {early_stop: {metric: training/loss, mode: min, patience: 1 epoch}}",
            "K001",
            "no evaluation computes `training/loss`",
            "logging window",
        ),
        (
            "data: {split: {test: 0.1}}\ncheckpoint: {best: {metric: test/loss, mode: min}}",
            "K001",
            "no evaluation computes `test/loss`",
            "evaluated once, at the end",
        ),
        (
            "data: {split: {test: 0.1}}\nevaluation: {sets: [validation, test]}\n"
            "checkpoint: {best: {metric: test/accuracy, mode: max}}",
            "K005",
            "`test` decides the best checkpoint",
            "write `metric: validation/accuracy`",
        ),
        (
            "sweep: {type: grid, metric: validation/accuracy, mode: min, over: {seed: [1, 2]}}",
            "K002",
            "a higher `validation/accuracy` is better",
            "set `mode: max`",
        ),
        (
            "sweep: {type: random, trials: 9, over: {training.optimizer.lr: {low: 1e-5, high: 0.1}}}",
            "K011",
            "90% are above 0.01",
            "add `log: true`",
        ),
        (
            "data: {split: null}\ncheckpoint: {best: {metric: validation/loss, mode: min}}",
            "K001",
            "no evaluation computes `validation/loss`",
            "add `data.split`",
        ),
        (
            "checkpoint: {best: {metric: validation/accuracy, mode: min}}",
            "K002",
            "a higher `validation/accuracy` is better",
            "set `mode: max`",
        ),
        (
            "training: {early_stop: {metric: validation/loss, mode: max, patience: 1 epoch}}",
            "K002",
            "is better",
            "set `mode: min`",
        ),
        ("evaluation: {sets: [valid]}", "K003", "data.split has no set `valid`", "did you mean `validation`"),
        ("data: {split: null}\nevaluation: {every: 1 epoch}", "K004", "there is no set to evaluate", "split"),
        ("objective: {metrics: {accuracy: {of: los}}}", "O002", "there is no loss `los`", "did you mean `loss`"),
        (
            "objective: {metrics: {accuracy: {of: loss, target: y}}}",
            "O003",
            "`accuracy` has both `of: loss` and its own target",
            "remove one of them",
        ),
        ("objective: {metrics: {accuracy: {target: y}}}", "O003", "its own target, but no input", "add `input`"),
        (
            "objective: {loss: {target: null}, metrics: {accuracy: {input: logits, target: y}}}",
            "O004",
            "cross_entropy needs a target",
            "target",
        ),
        ("objective: {loss: {type: mean, input: logits, target: y}}", "O004", "does not use a target", None),
        ("objective: {metrics: {accuracy: {input: logits}}}", "O007", "accuracy needs a target", "target: FIELD"),
        (
            "objective: {metrics: {a: {type: mean, input: logits, target: y}}}",
            "O007",
            "does not use a target",
            "remove it",
        ),
        ("data: {split: {training: 0.2}}", "O005", "the rows outside of data.split are the training set", None),
        ("objective: {metrics: {loss: {type: accuracy}}}", "O005", "`loss` is the total loss", None),
        ("meta: {api_key: 0c1f8a7be2d94c55}", "H001", "`api_key` looks like a secret", "{{ env.NAME }}"),
        ("meta: {note: [AKIAABCDEFGHIJKLMNOP]}", "H001", "this value looks like a secret", None),
        ("meta: {url: 'https://me:hunter2@host/x'}", "H001", "looks like a secret", None),
    ],
)
def test_one_rule(one: One, over: str, code: str, words: str, way_out: str | None) -> None:
    found = one(over + "\n")
    assert found.code == code, found
    assert words in found.message
    if way_out is not None:
        assert found.help is not None
        assert way_out in found.help


@pytest.mark.parametrize(
    "over",
    [
        "training: {gradient_accumulation_steps: 2}\nparallelism: ddp\nlayout: {gpus: 4}",
        "training: {microbatch_size: 3}\nparallelism: fsdp\nlayout: {nodes: 2, gpus_per_node: 4}",
        "parallelism: {data: {shard: all, replicate: 2}}\nlayout: {gpus: 4}",
        PIPE.format("stages: 4, microbatches: 4", 4),
        PIPE.format("stages: 4, microbatches: 3, schedule: looped_bfs", 2),
        PIPE.format("stages: 4, microbatches: 4, schedule: dualpipev", 2),
        PIPE.format("stages: 4, microbatches: 3, schedule: zbv}, data: {shard: 2", 4),
        PIPE.format("stages: 2, microbatches: 1", 2) + "training: {gradient_accumulation_steps: 2}",
        PIPE.format("stages: 3, microbatches: 3, cut_before: [act, logits]", 3),
        "training: {early_stop: {metric: validation/loss, mode: min, patience: 1 epoch}}",
        'vars: {key: 1}\nmeta: {api_key: "{{ vars.key }}", token_count: 5}',
        "training: {steps: 5}",  # logging.every is longer, but nobody wrote it
    ],
)
def test_silent(wrong: Wrong, over: str) -> None:
    assert wrong(over + "\n") == []


def test_a_metric_of_several_losses_says_which(one: One) -> None:
    losses = "{kind: {type: cross_entropy, input: logits, target: y}, more: {type: mean, input: logits}}"
    found = one(f"objective: {{loss: null, losses: {losses}}}\n")
    assert found.code == "O001"
    assert found.help is not None
    assert "accuracy: {of: kind}" in found.help


def test_a_metric_of_a_loss_without_a_target(one: One) -> None:
    found = one(
        "objective: {loss: {type: mean, input: logits},"
        " metrics: {f1: {input: logits, target: y}, accuracy: {type: accuracy}}}\n"
    )
    assert (found.code, found.message) == ("O007", "accuracy needs a target, but the loss `loss` has none")


def test_no_loss_is_an_error(wrong: Wrong) -> None:
    assert "O006" in {d.code for d in wrong("objective: {loss: null, metrics: null}\n")}


def test_exclusive_keys_displace_those_of_a_base_and_clash_in_one_file(laid: Laid) -> None:
    loaded = laid("training: {steps: 10}\n")
    assert loaded.diagnostics == []
    assert loaded.recipe is not None
    assert (loaded.recipe.training.epochs, loaded.recipe.training.steps) == (None, 10)
    both = laid("training: {steps: 10, epochs: 1}\n").diagnostics
    assert [(d.code, d.span.column) for d in both] == [("S006", 23)]
    assert both[0].related[0].span.column == 12


def test_loss_and_losses_clash(wrong: Wrong) -> None:
    text = "objective:\n  loss: {type: mse}\n  losses: {}\n"
    found = load("r.yaml", text=text).diagnostics
    assert "S006" in {d.code for d in found}


def test_warnings_leave_a_recipe(laid: Laid) -> None:
    loaded = laid("evaluation: {every: 6 epochs}\n")
    assert loaded.recipe is not None
    assert [d.severity for d in loaded.diagnostics] == [Severity.WARNING]


@pytest.mark.parametrize("requires", ["dtrain>=0.1", "dtrain >= 0.0.1, < 99", "dtrain!=5"])
def test_a_requirement_that_is_met(wrong: Wrong, requires: str) -> None:
    assert wrong(f'requires: "{requires}"\n') == []


def test_a_newer_dtrain_may_know_the_key(wrong: Wrong) -> None:
    found = {d.code: d for d in wrong("requires: dtrain>=99.0\nseeds: 3\n")}
    assert set(found) == {"S001", "S007"}
    assert found["S001"].help is not None
    assert "requires dtrain>=99.0, which may have it" in found["S001"].help


def test_a_requirement_that_cannot_be_read(one: One) -> None:
    assert "not of the form" in one("requires: torch\n").message


@pytest.mark.parametrize("stages_per_rank", [1, 2])
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize(
    "schedule", ["gpipe", "1f1b", "interleaved_1f1b", "interleaved_zero_bubble", "zbv", "dualpipev"]
)
def test_microbatches_as_torch_takes_them(schedule: str, ranks: int, stages_per_rank: int) -> None:
    """Our conditions against the constructors that would refuse at run time."""
    from unittest.mock import MagicMock

    from torch import nn
    from torch.distributed.pipelining import schedules
    from torch.distributed.pipelining.stage import _PipelineStageBase

    single = schedule in ("gpipe", "1f1b")
    if single != (stages_per_rank == 1):
        pytest.skip("not the number of stages that it works with")
    ours = PIPELINE_SCHEDULES[schedule]
    kind = getattr(schedules, ours.torch_class)

    def stage(index: int) -> MagicMock:
        made = MagicMock(spec=_PipelineStageBase)
        made.stage_index, made.group_size, made.group_rank = index, ranks, 0
        made.num_stages, made.has_backward = ranks * stages_per_rank, True
        made.group, made.submod = None, nn.Module()
        return made

    for number in range(1, 20):
        stages = [stage(index) for index in ((0,) if single else (0, ranks))]
        try:
            kind(stages[0] if single else stages, n_microbatches=number, loss_fn=lambda a, b: a)
        except ValueError:
            assert not ours.takes(number, ranks, ranks * stages_per_rank), number
        else:
            assert ours.takes(number, ranks, ranks * stages_per_rank), number


def test_an_optimizer_that_needs_whole_parameters(laid: Laid, one: One) -> None:
    """Also one of some parameters; where every rank has them whole it is welcome."""
    adafactor = "training: {optimizer: {type: adafactor, lr: 0.01}}\n"
    some = 'model: {parameters: {"logits.*": {optimizer: {type: adafactor, lr: 0.01}}}}\n'
    sharded = "parallelism: fsdp\nlayout: {gpus: 2}\n"
    found = one(adafactor + sharded)
    assert (found.code, found.span.line) == ("P013", 2)
    assert "`adafactor` needs whole parameters" in found.message
    assert found.related[0].span.line == 3
    found = one(some + sharded)
    assert (found.code, found.span.line) == ("P013", 2)
    pipes = "stages: 2, microbatches: 2}}, data: {{{}: 2"
    found = one(adafactor + PIPE.format(pipes.format("shard"), 4))
    assert found.code == "P013"
    assert not laid(adafactor + PIPE.format(pipes.format("replicate"), 4)).diagnostics
    assert not laid(adafactor + "parallelism: ddp\nlayout: {gpus: 2}").diagnostics


@pytest.mark.parametrize(
    ("over", "cores", "words", "way_out"),
    [
        ("data: {workers: 3}", 2, "3 loader workers: 3 processes, and this machine has 2 cores", "to 2"),
        ("data: {workers: 2}", 1, "2 loader workers: 2 processes, and this machine has 1 core", "to 1"),
        (
            "data: {workers: 4}\nparallelism: ddp\nlayout: {gpus: 2}",
            6,
            "2 ranks with 4 loader workers each: 8 processes, and this machine has 6 cores",
            "set data.workers to 3",
        ),
        ("data: {workers: 1}\nparallelism: fsdp\nlayout: {gpus: 4}", 2, "4 ranks with 1 loader worker each", "to 0"),
    ],
)
def test_more_loader_workers_than_cores(
    one: One, monkeypatch: pytest.MonkeyPatch, over: str, cores: int, words: str, way_out: str
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(cores)), raising=False)
    found = one(over)
    assert (found.code, found.severity) == ("P014", Severity.WARNING)
    assert words in found.message
    assert found.help is not None
    assert way_out in found.help


@pytest.mark.parametrize(
    "over",
    [
        "data: {workers: 2}",
        "data: {workers: 2}\nparallelism: dp\nlayout: {gpus: 2}",  # one process
        "data: {workers: 1}\nparallelism: ddp\nlayout: {gpus: 2}",
        "data: {workers: 8}\nparallelism: ddp\nlayout: {nodes: 2, gpus_per_node: 2}",  # other machines
    ],
)
def test_as_many_loader_workers_as_cores(laid: Laid, monkeypatch: pytest.MonkeyPatch, over: str) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {0, 1}, raising=False)
    assert not laid(over).diagnostics


@pytest.mark.parametrize(
    ("over", "words"),
    [
        ("parallelism: {pipeline: {stages: 4, schedule: zbv, microbatches: 4}}\nlayout: {gpus: 2}", "the schedule zbv"),
        (
            "model: {parameters: {logits: {frozen: true, storage: int8}}}\nparallelism: fsdp\nlayout: {gpus: 2}",
            "`storage`",
        ),
    ],
)
@pytest.mark.parametrize(("version", "is_refused"), [("2.11.0", True), ("2.12.1+cpu", True), ("2.13.0+cpu", False)])
def test_an_older_torch_is_refused_what_it_cannot_run(
    laid: Laid, monkeypatch: pytest.MonkeyPatch, over: str, words: str, version: str, is_refused: bool
) -> None:
    monkeypatch.setattr(metadata, "version", lambda name: version)
    found = [each for each in laid(over).diagnostics if each.code == "P023"]
    assert len(found) == is_refused
    for each in found:
        assert words in each.message
        assert "needs torch 2.13 or newer" in each.message
        assert each.help == "pip install 'torch>=2.13'"


ACROSS = """
model:
  blocks:
    mixed:
      inputs: [x]
      graph: {seen: {type: self_attention, heads: 2, input: x}}
      output: seen
  graph:
    image:  reshape(x, B, 1, 2, 2)
    conv:   {type: conv2d, out_channels: 4, kernel_size: 3, padding: 1, input: image}
    mixed:  {type: mixed, input: conv}
    flat:   {type: flatten, input: mixed}
    hidden: {input: flat}
"""


def test_a_feature_map_as_a_sequence_is_found_from_inside_a_block(wrong) -> None:
    (found,) = wrong(ACROSS)
    assert found.code == "G015"
    assert "`conv` gives feature maps" in found.message
