"""Stages, wires, schedules: what the plan of a pipeline says, and what it refuses."""

from __future__ import annotations

import pytest

from declarative_train.components.pipeline_schedules import PIPELINE_SCHEDULES
from declarative_train.graph.partition import open_blocks, stage_graphs
from declarative_train.plan.schedule_grid import bubble, schedule_grid
from declarative_train.plan.stage_balance import _partition
from declarative_train.planner.text.describe import describe

NET = """
model:
  blocks:
    res:
      inputs: [x]
      graph:
        norm: {type: layer_norm}
        fc: {type: linear, out_features: 32}
        out: x + relu(fc)
      output: out
    net:
      inputs: [x]
      graph:
        stem: {type: linear, out_features: 32}
        layers: {type: res, repeat: 6}
        last: {type: layer_norm}
      output: last
  graph:
    hidden: null
    act: null
    net: {type: net, input: x}
    skip: net + mean(x, dim=-1, keepdim=true)
    logits: {input: skip}
layout: {gpus: 4}
"""


def pipeline(words: str) -> str:
    return f"{NET}\nparallelism: {{pipeline: {{{words}}}}}"


def test_automatic_cuts_are_balanced_and_open_the_block(planned) -> None:
    plan = planned(pipeline("stages: 4, microbatches: 4"))
    stages = plan.layout.pipeline
    assert stages is not None
    assert stages.stages == (
        ("net.stem", "net.layers.0"),
        ("net.layers.1", "net.layers.2"),
        ("net.layers.3", "net.layers.4"),
        ("net.layers.5", "net.last", "skip", "logits"),
    )
    assert sum(stages.num_parameters) == sum(item.num_elements for item in plan.parameters)
    assert stages.wires == (("net.layers.0",), ("net.layers.2",), ("net.layers.4",))
    assert stages.wire_elements == (32, 32, 32)
    assert [rank.stages for rank in plan.layout.ranks] == [(0,), (1,), (2,), (3,)]
    assert stages.last_stage_rank == 3
    pieces = stage_graphs(open_blocks(plan.graph, plan.layout.units), stages.stages)
    assert [piece.batch for piece in pieces] == [("x",), (), (), ("x",)], "fields are delivered, and do not travel"


def test_equal_layers_of_a_large_model_give_equal_stages(planned) -> None:
    plan = planned(
        """
        model:
          graph:
            hidden: {out_features: 2500}
            layers: {type: linear, out_features: 2500, repeat: 16, input: act}
            logits: {input: layers}
        parallelism: {pipeline: {stages: 4, microbatches: 4}}
        layout: {gpus: 4}
        """
    )
    stages = plan.layout.pipeline
    assert stages is not None
    assert sum(stages.num_parameters) == pytest.approx(100e6, rel=0.01)
    assert all(count == pytest.approx(25e6, rel=0.05) for count in stages.num_parameters)


def test_named_cuts_and_a_v_schedule_times_fsdp(planned) -> None:
    words = "stages: 4, schedule: zbv, microbatches: 4, cut_before: [net.layers.1, net.layers.3, logits]"
    plan = planned(pipeline(words + "}, data: {shard: 2"), "training.gradient_accumulation_steps=2")
    layout = plan.layout
    assert layout.pipeline is not None
    assert [names[0] for names in layout.pipeline.stages] == ["net.stem", "net.layers.1", "net.layers.3", "logits"]
    assert [rank.stages for rank in layout.ranks] == [(0, 3), (0, 3), (1, 2), (1, 2)]
    assert layout.pipeline.last_stage_rank == 0
    assert layout.pipeline.num_microbatches == 8, "accumulation steps are made microbatches"
    assert layout.num_shards == 2


def test_a_name_of_copies_means_the_first_of_them(planned) -> None:
    layout = planned(pipeline("stages: 2, microbatches: 2, cut_before: [net.layers]"), "layout.gpus=2").layout
    assert layout.pipeline is not None
    assert layout.pipeline.stages[0] == ("net.stem",)


def test_what_a_skip_needs_is_handed_on(planned) -> None:
    plan = planned(
        NET.replace("net + mean(x, dim=-1, keepdim=true)", "net + first").replace(
            "    net: {type: net, input: x}\n",
            "    first: {type: linear, out_features: 32, input: x}\n    net: {type: net}\n",
        )
        + "\nparallelism: {pipeline: {stages: 2, microbatches: 2, cut_before: [net.layers.2]}}",
        "layout.gpus=2",
    )
    assert plan.layout.pipeline is not None
    assert plan.layout.pipeline.wires == (("first", "net.layers.1"),)
    assert plan.layout.pipeline.wire_elements == (64,)


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        ("stages: 2, microbatches: 2, cut_before: [net.layer.2]", "P101", "cannot be cut before `net.layer.2`"),
        ("stages: 2, microbatches: 2, cut_before: [net.layers.2.fc]", "P101", "net.layers.2.fc"),
        ("stages: 2, microbatches: 2, cut_before: [net.stem]", "P102", "always starts with `net.stem`"),
        ("stages: 3, microbatches: 3, cut_before: [logits, net.layers.1]", "P102", "`net.layers.1`"),
        ("stages: 16, schedule: interleaved_1f1b, microbatches: 16", "P104", "16 stages"),
    ],
)
def test_cuts_that_cannot_be(compiled, words: str, code: str, says: str) -> None:
    gpus = {"P102": "3" if "stages: 3" in words else "2", "P104": "2"}.get(code, "2")
    plan, diagnostics = compiled(pipeline(words), f"layout.gpus={gpus}")
    assert plan is None
    assert [item.code for item in diagnostics] == [code]
    assert says in diagnostics[0].message


@pytest.mark.parametrize("name", sorted(PIPELINE_SCHEDULES))
@pytest.mark.parametrize(("ranks", "microbatches"), [(2, 4), (4, 8)])
def test_every_schedule_runs_each_microbatch_once_and_in_order(name: str, ranks: int, microbatches: int) -> None:
    schedule = PIPELINE_SCHEDULES[name]
    stages = ranks if name in ("gpipe", "1f1b") else 2 * ranks
    grid = schedule_grid(schedule, ranks, stages, microbatches)
    assert len({len(row) for row in grid}) == 1
    for rank, row in enumerate(grid):
        for stage in schedule.stages_of(rank, ranks, stages):
            for number in range(microbatches):
                times = [at for at, cell in enumerate(row) for part in cell.split("+") if part == f"{stage}F{number}"]
                assert len(times) == 1
                back = [f"{stage}{kind}{number}" for kind in "BIW"]
                after = [at for at, cell in enumerate(row) if any(part in back for part in cell.split("+"))]
                assert after
                assert min(after) > times[0]


def test_the_bubble_of_1f1b_is_the_known_one() -> None:
    for ranks, microbatches in ((2, 4), (4, 4), (16, 64)):
        grid = schedule_grid(PIPELINE_SCHEDULES["1f1b"], ranks, ranks, microbatches)
        assert bubble(grid) == pytest.approx((ranks - 1) / (microbatches + ranks - 1))


def test_a_partition_is_the_best_there_is() -> None:
    assert _partition([4, 1, 1, 1, 1, 4], [True] * 6, 3) == [1, 5, 6]
    assert _partition([1, 0, 0, 1], [True, False, False, True], 2) in ([1, 4], [2, 4], [3, 4])
    assert _partition([1, 1, 1], [True, False, False], 2) is None


LINKED = """
model:
  graph:
    first: {type: linear, out_features: 20, input: x}
    %s
    third: {type: linear, out_features: 20, input: second}
    hidden: {out_features: 20, input: third}
%s
parallelism: {pipeline: {stages: 2, microbatches: 2%s}}
layout: {gpus: 2}
"""


@pytest.mark.parametrize(
    ("second", "rules"),
    [
        ("second: {type: linear, out_features: 20, input: first}", "  parameters: {third.weight: {tie: first.weight}}"),
        ("second: {type: linear, out_features: 20, input: first}", "  parameters: {first.weight: {tie: third.weight}}"),
        ("second: {type: reuse, node: first, input: first}", ""),
    ],
)
def test_nodes_that_share_a_parameter_stay_together_or_are_copied(planned, second: str, rules: str) -> None:
    pipeline = planned(LINKED % (second, rules, "")).layout.pipeline
    assert pipeline is not None
    assert {"first", "third" if rules else "second"} <= set(pipeline.stages[0])
    assert pipeline.shared == ()

    before = "third" if rules else "second"
    pipeline = planned(LINKED % (second, rules, f", cut_before: [{before}]")).layout.pipeline
    assert pipeline is not None
    names = ["first.weight"] if rules else ["first.bias", "first.weight"]
    assert sorted((item.name, item.stages) for item in pipeline.shared) == [(name, (0, 1)) for name in names]


def test_the_plan_says_who_holds_a_copy(planned) -> None:
    fragment = """
    model:
      graph:
        hidden: {out_features: 10, input: x}
        more: {type: linear, out_features: 10, input: logits}
      parameters: {more.weight: {tie: logits.weight}}
    objective: {loss: {input: more}}
    parallelism: {pipeline: {stages: 3, microbatches: 3}}
    layout: {gpus: 3}
    """
    plan = planned(fragment)
    pipeline = plan.layout.pipeline
    assert pipeline is not None
    assert [(item.name, item.stages) for item in pipeline.shared] == [("logits.weight", (1, 2))]
    assert pipeline.num_parameters == (210, 110, 110)
    assert "copies of logits.weight in the stages 1, 2: their gradients are summed" in describe(plan)


def test_two_copies_on_a_rank_are_not_sharded(compiled) -> None:
    fragment = """
    model:
      graph:
        hidden: {out_features: 10, input: x}
        more: {type: linear, out_features: 10, input: logits}
        last: {type: linear, out_features: 10, input: more}
      parameters: {last.weight: {tie: logits.weight}}
    objective: {loss: {input: last}}
    training: {global_batch_size: 48}
    parallelism:
      pipeline: {stages: 4, schedule: %s, microbatches: 4, cut_before: [logits, more, last]}
      data: {%s: 2}
    layout: {gpus: 4}
    """
    _, found = compiled(fragment % ("interleaved_1f1b", "shard"))
    assert [each.code for each in found] == ["P105"]
    plan, _ = compiled(fragment % ("interleaved_1f1b", "replicate"))
    assert plan is not None


def test_thousands_of_ranks_are_planned_in_seconds(planned) -> None:
    words = "stages: 16, schedule: 1f1b, microbatches: 32}, data: {shard: 256"
    plan = planned(
        f"""
        model:
          graph:
            hidden: {{out_features: 64}}
            layers: {{type: linear, out_features: 64, repeat: 32, input: act}}
            logits: {{input: layers}}
        parallelism: {{pipeline: {{{words}}}}}
        layout: {{nodes: 512, gpus_per_node: 8}}
        training: {{global_batch_size: 8192}}
        data: {{source: {{rows: 100000}}}}
        """
    )
    from declarative_train.planner.text.describe import describe

    assert len(plan.layout.ranks) == 4096
    text = describe(plan)
    assert "0-255" in text
    assert text.count("\n") < 130
