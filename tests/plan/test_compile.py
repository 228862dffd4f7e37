"""Recipe -> Plan: sizes, steps, parameters, and what is said about them."""

from __future__ import annotations

from pathlib import Path

import pytest

from declarative_train import planner
from declarative_train.components.data import Table
from declarative_train.components.datasets.csv import CsvDataset
from declarative_train.core.mesh import MeshAxis
from declarative_train.files.paths import SourceError
from declarative_train.plan.plan import EarlyStopPlan
from declarative_train.recipe import load
from tests.linted import codes, found_in


def test_a_plan_holds_what_the_ranks_need(planned) -> None:
    plan = planned("meta: {owner: me}\nseed: 3")
    assert (plan.name, plan.seed, plan.meta) == ("small", 3, {"owner": "me"})
    assert [each.name for each in plan.data.sets] == ["training", "validation"]
    assert plan.batch.steps_per_epoch == 10  # 900 rows / 96, the last batch partial
    assert plan.training.num_steps == 50
    assert plan.training.optimizer["type"] == "adam"
    assert plan.objective.terms[0].component["type"] == "cross_entropy"
    assert plan.objective.metrics[0].input == "logits"
    assert plan.evaluation is not None
    assert (plan.evaluation.every_steps, plan.evaluation.sets) == (None, ("validation",))
    assert plan.evaluation.batch_size == 96
    assert [item.name for item in plan.parameters] == ["hidden.weight", "hidden.bias", "logits.weight", "logits.bias"]
    assert [item.num_elements for item in plan.parameters] == [640, 32, 320, 10]
    assert plan.draws == ()
    assert plan.layout.units == ("hidden", "act", "logits")


@pytest.mark.parametrize(
    ("fragment", "sizes", "mesh"),
    [
        ("", (1, 1, 96, 1), ()),
        ("training: {gradient_accumulation_steps: 4}", (1, 4, 24, 1), ()),
        ("training: {microbatch_size: 12}", (1, 8, 12, 1), ()),
        ("parallelism: dp\nlayout: {gpus: 3}", (3, 1, 32, 1), ()),
        ("parallelism: ddp\nlayout: {gpus: 2}", (2, 1, 48, 1), (MeshAxis("replicate", 2),)),
        ("parallelism: fsdp\nlayout: {nodes: 2, gpus_per_node: 2}", (4, 1, 24, 1), (MeshAxis("shard", 4),)),
        (
            "parallelism: {data: {shard: all, replicate: 2}}\nlayout: {gpus: 4}",
            (4, 1, 24, 1),
            (MeshAxis("replicate", 2), MeshAxis("shard", 2)),
        ),
        (
            "parallelism: {data: {replicate: 2}, pipeline: {stages: 2, microbatches: 4}}\nlayout: {gpus: 4}",
            (2, 1, 12, 4),
            (MeshAxis("pipeline", 2), MeshAxis("replicate", 2)),
        ),
    ],
)
def test_batch_arithmetic_and_mesh(planned, fragment: str, sizes: tuple[int, ...], mesh: tuple[MeshAxis, ...]) -> None:
    plan = planned(fragment)
    batch = plan.batch
    found = (batch.data_parallel_size, batch.accumulation, batch.microbatch_size, batch.num_microbatches)
    assert found == sizes
    product = 1
    for size in sizes:
        product *= size
    assert product == batch.global_batch_size
    assert plan.layout.mesh == mesh


def test_ranks_lie_node_by_node_on_the_devices_that_are_named(planned) -> None:
    plan = planned("parallelism: {data: {shard: all, replicate: 2}}\nlayout: {nodes: 2, gpus_per_node: 3}")
    assert [(rank.node, rank.local_rank, rank.device) for rank in plan.layout.ranks] == [
        (node, local, local) for node in (0, 1) for local in (0, 1, 2)
    ]
    assert plan.layout.ranks[4].coordinates == {"replicate": 1, "shard": 1}
    plan = planned("parallelism: ddp\nlayout: {gpus: [1, 3]}")
    assert [rank.device for rank in plan.layout.ranks] == [1, 3]
    plan = planned("parallelism: dp\nlayout: {gpus: [1, 3]}")
    assert (len(plan.layout.ranks), plan.layout.num_copies, plan.layout.devices) == (1, 2, (1, 3))


def test_durations_become_steps(planned) -> None:
    plan = planned(
        """
        training:
          lr_schedule: {type: wsd, warmup: 5%, decay: 1 epoch}
          early_stop: {metric: validation/loss, mode: min, patience: 2 epochs}
          max_time: 2 hours
        evaluation: {every: 0.5 epochs, max: 50 samples, batch_size: 10}
        checkpoint: {every: 100 samples, keep: 2, best: {metric: validation/accuracy, mode: max}}
        logging: {every: 7 steps, dir: out}
        """
    )
    training = plan.training
    assert training.num_warmup_steps == 3  # 5% of 50, rounded up
    assert training.lr_schedule["decay"] == "10 steps"
    assert training.early_stop == EarlyStopPlan("validation/loss", "min", 20)
    assert training.max_time_s == 7200
    assert plan.evaluation is not None
    assert (plan.evaluation.every_steps, plan.evaluation.max_samples, plan.evaluation.batch_size) == (5, 50, 10)
    assert plan.checkpoint is not None
    assert (plan.checkpoint.every_steps, plan.checkpoint.keep, plan.checkpoint.best_mode) == (2, 2, "max")
    assert (plan.logging.every_steps, plan.logging.dir) == (7, "out")


@pytest.mark.parametrize(("epochs", "steps"), [("5", 50), ("0.31", 4), ("0.01", 1)])
def test_a_part_of_an_epoch_is_a_whole_step(planned, epochs: str, steps: int) -> None:
    assert planned("logging: {every: 1 step}", f"training.epochs={epochs}").training.num_steps == steps


def test_last_batch_drop_leaves_whole_batches(planned) -> None:
    assert planned("data: {last_batch: drop}").batch.steps_per_epoch == 9


def test_tokens_count_where_the_model_reads_tokens(planned, compiled) -> None:
    fragment = """
    data:
      source: {type: synthetic, kind: tokens, rows: 20000, vocabulary: 50}
      window: {length: 17, stride: 16}
      fields:
        x: {type: tensor, column: tokens, dtype: int64, rows: ":-1"}
        y: {type: tensor, column: tokens, dtype: int64, rows: "1:"}
    model:
      graph:
        hidden: {type: embedding, num_embeddings: 50, embedding_dim: 8, input: x}
        logits: {out_features: 50}
    evaluation: {every: 32000 tokens}
    """
    evaluation = planned(fragment).evaluation
    assert evaluation is not None
    assert evaluation.every_steps == 21  # 32,000 / (96 x 16), rounded up
    _, diagnostics = compiled("evaluation: {every: 1000 tokens}")
    assert [item.code for item in diagnostics] == ["R102"]


def test_test_is_evaluated_once_at_the_end(planned) -> None:
    split = "data: {split: {test: {type: last, fraction: 0.1}, extra: {type: random, fraction: 0.1}}}\n"
    evaluation = planned(split).evaluation
    assert evaluation is not None
    assert (evaluation.sets, evaluation.final_sets) == (("validation", "extra"), ("test",))
    evaluation = planned(split + "evaluation: {sets: [extra]}").evaluation
    assert evaluation is not None
    assert (evaluation.sets, evaluation.final_sets) == (("extra",), ())
    assert planned("data: {split: null}\nobjective: {metrics: null}").evaluation is None


def test_rules_are_applied_to_parameters(planned) -> None:
    plan = planned(
        """
        model:
          parameters:
            "*": {init: {type: normal, std: 0.5}}
            bias: {weight_decay: 0.0, init: {type: zeros}}
            hidden: {lr_scale: 0.1}
            hidden.bias: {frozen: true}
            logits.weight: {optimizer: {type: sgd, lr: 0.5}}
        """
    )
    by_name = {item.name: item for item in plan.parameters}
    assert by_name["hidden.weight"].lr_scale == 0.1
    assert by_name["hidden.weight"].init == {"type": "normal", "mean": 0.0, "std": 0.5, "zero_row": None}
    assert by_name["hidden.bias"].frozen
    assert by_name["logits.bias"].weight_decay == 0.0
    assert by_name["logits.bias"].init is not None
    assert by_name["logits.bias"].init["type"] == "zeros"
    assert by_name["logits.weight"].optimizer is not None
    assert by_name["logits.weight"].optimizer["lr"] == 0.5


TWO = """
model:
  graph:
    more: {type: linear, out_features: 20, input: x}
    again: {type: linear, out_features: 20, input: more}
    hidden: {input: again}
"""


@pytest.mark.parametrize("turned", [False, True])
def test_a_tie_goes_to_the_parameter_that_torch_meets_first(planned, turned: bool) -> None:
    later, first = "again.weight", "more.weight"
    name, source = (first, later) if turned else (later, first)
    plan = planned(TWO + f"  parameters:\n    {name}: {{tie: {source}}}\n    {source}: {{lr_scale: 3.0}}\n")
    by_name = {item.name: item for item in plan.parameters}
    assert by_name[later].tie == first
    assert by_name[first].tie is None
    assert by_name[first].lr_scale == 3.0, "what is set for the source holds"
    assert (by_name[first].init is not None) == turned, "and it starts as the source does"


@pytest.mark.parametrize(
    ("rules", "code", "says"),
    [
        ("again.weight: {tie: moore.weight}", "U102", "which does not exist"),
        ("again.weight: {tie: logits.weight}", "U102", "has shape (20, 20), `logits.weight` has (10, 32)"),
        ("again.weight: {tie: more.weight}\n    more.weight: {tie: again.weight}", "U102", "leads back to itself"),
        ("hiden: {frozen: true}", "U002", "no parameter matches"),
        ('"*": {frozen: true}', "U104", "every parameter is frozen"),
        ("bias: {init: {type: orthogonal}}", "U101", "hidden.bias"),
        ("bias: {optimizer: {type: muon, lr: 0.1}}", "U103", ""),
    ],
)
def test_rules_that_do_not_fit(compiled, rules: str, code: str, says: str) -> None:
    plan, diagnostics = compiled(TWO + f"  parameters:\n    {rules}\n")
    assert plan is None
    assert {item.code for item in diagnostics} == {code}
    assert any(says in item.message for item in diagnostics)


def test_balanced_weights_are_numbers_in_the_plan(planned) -> None:
    plan = planned("objective: {loss: {class_weights: balanced}}")
    weights = plan.objective.terms[0].component["class_weights"]
    assert isinstance(weights, list)
    assert len(weights) == 10
    shifted = planned(
        """
        model: {graph: {target: y + 1, logits: {out_features: 11}}}
        objective: {loss: {target: target, class_weights: balanced}}
        """
    )
    moved = shifted.objective.terms[0].component["class_weights"]
    assert isinstance(moved, list)
    assert moved[1:] == pytest.approx(weights), "counted over what the batch graph makes of the training rows"


def test_draws_are_named(planned) -> None:
    graph = "drop: {type: dropout, p: 0.5, input: x}, noisy: drop + randn_like(drop), hidden: {input: noisy}"
    assert planned(f"model: {{graph: {{{graph}}}}}").draws == ("drop", "noisy")


def test_mistakes_of_all_parts_are_told_together(compiled) -> None:
    _, diagnostics = compiled(
        """
        model:
          graph: {norm: {type: batch_norm, over: 7 samples, input: x}, hidden: {input: norm}}
          parameters: {hiden: {frozen: true}}
          weights: {hidden: {path: nowhere.pt}}
        training: {lr_schedule: {type: cosine, warmup: 50 steps}}
        logging: {every: 1000 steps}
        """
    )
    assert sorted(item.code for item in diagnostics) == ["R103", "R103", "R104", "U002", "U105"]


@pytest.mark.parametrize(
    ("over", "layout", "code"),
    [
        ("48 samples", "ddp", None),
        ("16 samples", "ddp", None),
        ("96 samples", "ddp", None),  # both ranks together
        ("32 samples", "ddp", "R104"),
        ("192 samples", "ddp", "R104"),
        ("microbatch", "ddp", "R105"),
        ("microbatch", "single", None),
        ("48 samples", "dp", None),
        ("96 samples", "dp", "R107"),  # replicas run each on its own
        ("7 samples", "dp", "R104"),
    ],
)
def test_groups_of_samples(compiled, over: str, layout: str, code: str | None) -> None:
    gpus = 1 if layout == "single" else 2
    fragment = f"""
    model: {{graph: {{norm: {{type: batch_norm, over: {over}, input: x}}, hidden: {{input: norm}}}}}}
    parallelism: {layout}
    layout: {{gpus: {gpus}}}
    """
    plan, diagnostics = compiled(fragment)
    assert [item.code for item in diagnostics] == ([] if code is None else [code])
    if code == "R104":
        assert "set `over` to " in (diagnostics[0].help or "")
    if code == "R107":
        assert "each of the 2 replicas of dp has 48" in diagnostics[0].message
    if code == "R105":
        assert plan is not None
        assert diagnostics[0].help is not None
        assert "`over: 48 samples`" in diagnostics[0].help


def test_a_loss_that_mixes_samples_has_its_groups_too(compiled) -> None:
    fragment = """
    model: {graph: {logits: {out_features: 32}}}
    objective: {loss: {type: info_nce, input: logits, target: act, over: 7 samples}, metrics: null}
    """
    _, diagnostics = compiled(fragment)
    assert [item.code for item in diagnostics if item.is_error] == ["R104"]


def test_a_loss_in_dp_sees_the_rows_of_all_replicas(compiled) -> None:
    fragment = """
    model: {graph: {logits: {out_features: 32}}}
    objective: {loss: {type: info_nce, input: logits, target: act, over: 96 samples}, metrics: null}
    parallelism: dp
    layout: {gpus: 2}
    """
    plan, diagnostics = compiled(fragment)
    assert plan is not None, diagnostics


def test_a_batch_larger_than_the_data(compiled) -> None:
    plan, diagnostics = compiled("", "training.global_batch_size=1000")
    assert plan is not None
    assert [(item.code, item.is_error) for item in diagnostics] == [("R101", False)]
    plan, diagnostics = compiled("data: {last_batch: drop}", "training.global_batch_size=1000")
    assert plan is None
    assert [(item.code, item.is_error) for item in diagnostics] == [("R101", True)]


REMOTE_RECIPE = """
data:
  source: {{type: csv, path: "{path}"}}
  fields: {{x: {{columns: ["x*"]}}, y: {{type: category, column: y, num_classes: 10}}}}
model: {{graph: {{logits: {{type: linear, out_features: 10, input: x}}}}}}
objective: {{loss: {{type: cross_entropy, input: logits, target: y}}}}
training: {{epochs: 5, global_batch_size: 96, optimizer: {{type: adam, lr: 0.01}}}}
"""


def test_a_source_on_another_machine_is_opened_by_a_plan_and_not_by_lint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = []

    def opens(self: CsvDataset) -> Table:
        opened.append(self.paths)
        raise SourceError("unreadable", "no network in tests")

    monkeypatch.setattr(CsvDataset, "open", opens)
    text = REMOTE_RECIPE.format(path="s3://bucket/rows.csv")
    (tmp_path / "recipe.yaml").write_text(text)
    recipe = load(str(tmp_path / "recipe.yaml")).recipe
    assert recipe is not None
    assert codes(found_in(str(tmp_path / "recipe.yaml"))) == {"D015"}
    assert planner.compile(recipe, offline=True)[0] is None
    assert opened == []
    assert [item.severity for item in planner.compile(recipe)[1]] == ["error"]
    assert opened == [("s3://bucket/rows.csv",)]
