"""The text of a plan: what stands in it, and that it stays short."""

from __future__ import annotations

import re
import textwrap

import pytest
import torch

from declarative_train.components.optimizers import OPTIMIZERS
from declarative_train.core.amounts import amount, ranges
from declarative_train.planner.text.describe import describe, summary
from declarative_train.planner.text.model import columns


def parts(text: str) -> dict[str, list[str]]:
    """The lines below each title."""
    found: dict[str, list[str]] = {}
    for block in text.split("\n\n"):
        title, *lines = block.split("\n")
        found[title] = [line.strip() for line in lines]
    return found


def test_the_whole_of_a_small_one(planned, monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.chdir(tmp_path)
    text = describe(planned("parallelism: ddp\nlayout: {gpus: 2}\nlogging: {every: 20 steps}"))
    head, _, rest = text.partition("\n")
    assert head.startswith("small: ddp on 2 GPUs (or as many CPU ranks), seed 0, language 1, plan ")
    body, _, files = rest.partition("\n\nfiles\n")
    assert [line.split()[0] for line in files.splitlines()] == ["recipe.yaml", "base.yaml"]
    assert body.strip("\n") == textwrap.dedent(
        """
        data
          synthetic kind classification rows 1000
          training    900 samples
          validation  100 samples
          field  per sample  dtype    values
          x      (20)        float32
          y      ()          int64    0..9

        batch
          96 = 2 ranks x 1 accumulation x 48
          50 steps = 5 epochs x 10 steps
          the last batch of an epoch has 36 samples

        model
          node    what    gives    parameters
          hidden  linear  (B, 32)         672
          act     relu    (B, 32)
          logits  linear  (B, 10)         330
          1,002 parameters (1 k) in 4 tensors

        objective
          loss    loss      cross_entropy of logits against y
          metric  accuracy  accuracy of logits against y

        training
          optimizer    adam lr 0.01 betas [0.9, 0.999] eps 1e-08
          lr schedule  constant
          precision    fp32
          evaluation   validation at the end
          checkpoint   at the end, the last 1 kept; written in the background, from a copy of 12 kB on the host
          logging      every 20 steps, below runs

        layout
          mesh: replicate 2
          rank  node  device  replicate
             0     0       0          0
             1     0       1          1
          units: 3, from hidden to logits

        memory per device, estimated
                       parameters  gradients  optimizer  activations  loss     data  together
          each device  4.01 kB     4.01 kB    8.02 kB    14.2 kB      5.76 kB  0 B   36 kB
        """
    ).strip("\n")


def test_the_plan_in_five_lines(planned) -> None:
    assert summary(planned("parallelism: fsdp\nlayout: {gpus: 2}")).splitlines() == [
        "small: fsdp on 2 GPUs (or as many CPU ranks), seed 0, language 1",
        "data    synthetic kind classification rows 1000: training 900, validation 100 samples",
        "batch   96 = 2 ranks x 1 accumulation x 48; 50 steps = 5 epochs x 10 steps",
        "model   1,002 parameters (1 k), adam lr 0.01, fp32",
        "memory  about 30 kB on a device",
    ]


def test_a_golden_text_has_nothing_of_the_machine(planned, tmp_path) -> None:
    text = describe(planned(), hashes=False)
    assert str(tmp_path) not in text
    assert text.startswith("small: single, on one device, seed 0, language 1\n")
    assert not {"files", "recipe.yaml"} & set(text.split())


def test_copies_ties_draws_and_the_batch_graph_are_shown(planned) -> None:
    text = describe(
        planned(
            """
            model:
              graph:
                target: (y + 1) % 10
                drop: {type: dropout, p: 0.5, input: x}
                layers: {type: linear, out_features: 20, repeat: 5, input: drop}
                hidden: {input: layers}
              parameters:
                layers.4.weight: {tie: layers.0.weight}
                logits: {lr_scale: 0.5}
                hidden: {frozen: true, init: {type: normal, std: 0.1}}
            objective: {loss: {target: target}}
            """
        )
    )
    model = parts(text)["model"]
    assert any(line.startswith("target") and "(batch)" in line for line in model)
    assert any(line.startswith("layers.0..4  linear") for line in model)
    assert "layers.4.weight is tied to layers.0.weight" in model
    settings = parts(text)["settings of parameters"]
    (slow,) = (" ".join(line.split()) for line in settings if "logits.weight" in line)
    assert slow == "330 2 adam betas [0.9, 0.999] eps 1e-08 0.005 0 the layer's logits.weight and 1 more"
    (frozen,) = (" ".join(line.split()) for line in settings if "hidden.weight" in line)
    assert frozen == "672 2 nothing: frozen - - normal std 0.1 hidden.weight and 1 more"
    assert any("672 of them frozen" in line for line in model)
    assert "draws        drop: reproducible only on this layout" in parts(text)["training"]


def test_settings_of_parameters_and_fields_of_metrics_are_shown(planned) -> None:
    """A recipe with another optimizer for all of its parameters looked as if it had none."""
    text = describe(
        planned(
            """
            model: {parameters: {"*": {weight_decay: 0.3, init: {type: ones}, optimizer: {type: adagrad, lr: 3}}}}
            objective: {metrics: {top: {type: accuracy, top_k: 2}}}
            """
        )
    )
    (row,) = parts(text)["settings of parameters"][1:]
    assert " ".join(row.split()) == "1,002 4 adagrad eps 1e-10 3 0.3 ones hidden.weight and 3 more"
    assert any(line.endswith("accuracy of logits against y, top_k 2") for line in parts(text)["objective"])


def test_metrics_that_are_no_means_are_said_to_be_of_evaluations(planned) -> None:
    """Else somebody looks for `training/f1`."""
    text = describe(planned("objective: {metrics: [accuracy, f1]}"))
    rows = {line.split()[1]: line for line in parts(text)["objective"] if line.startswith("metric")}
    assert rows["f1"].endswith("only in evaluations: it is not a mean over items")
    assert rows["accuracy"].endswith("against y")


def test_parameters_without_settings_take_no_lines(planned) -> None:
    assert "settings of parameters" not in parts(describe(planned()))


def test_the_grid_of_a_pipeline_is_shown(planned) -> None:
    text = describe(planned("parallelism: {pipeline: {stages: 2, microbatches: 2}}\nlayout: {gpus: 2}"))
    layout = parts(text)["layout"]
    assert layout[-2:] == ["rank 0  0F0  0F1  .    0B0  .    0B1", "rank 1  .    1F0  1B0  1F1  1B1  ."]
    assert any("33% of the grid is idle" in line for line in layout)
    assert [line.split()[0] for line in parts(text)["memory per device, estimated"][1:]] == ["pipeline", "pipeline"]


def test_fsdp_needs_less_and_gathers(planned) -> None:
    text = describe(planned("parallelism: fsdp\nlayout: {gpus: 4}\ntraining: {precision: bf16}"))
    head, row = parts(text)["memory per device, estimated"]
    assert "gathered" in head
    assert row.startswith("each device  1 kB")


def test_recomputed_activations_are_there_for_one_copy_at_a_time(planned) -> None:
    copies = """
model:
  blocks: {two: {inputs: [x], graph: {a: {type: linear, out_features: 32}, b: {type: gelu}}, output: b}}
  graph: {layers: {type: two, repeat: 8, input: act}, logits: {input: layers}}
"""
    rows = [
        parts(describe(planned(f"training: {{activation_checkpointing: {mode}}}\n{copies}")))[
            "memory per device, estimated"
        ][1]
        for mode in ("none", "blocks", "all")
    ]
    none, blocks, everything = (re.split(r"\s{2,}", row)[-4] for row in rows)
    assert none == amount(96 * 4 * (74 + 8 * 64), "B"), "per sample 32 + 32 + 10, and 64 in each copy"
    assert blocks == everything == amount(96 * 4 * (74 + 8 * 32 + 64), "B")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
@pytest.mark.parametrize("shape", [(6, 4), (5,)])
def test_the_state_of_every_optimizer_is_counted_right(name: str, shape: tuple[int, ...]) -> None:
    fields = {"sgd": {"momentum": 0.9}, "rmsprop": {"momentum": 0.5, "centered": True}}.get(name, {})
    optimizer = OPTIMIZERS[name].model_validate({"type": name, "lr": 0.1, **fields})
    if optimizer.check({"p": shape}) is not None:
        pytest.skip("not for this shape")
    parameter = torch.nn.Parameter(torch.ones(shape))
    made = optimizer.build([{"params": [parameter], "lr": 0.1, "weight_decay": 0.0}])
    parameter.grad = torch.ones(shape)
    made.step()
    state = made.state[parameter].values()
    counted = sum(item.numel() for item in state if isinstance(item, torch.Tensor) and item.ndim)
    assert optimizer.num_state_elements(shape) == counted


def test_how_numbers_are_written() -> None:
    assert [amount(0, "B"), amount(999, "B"), amount(123456, "B"), amount(25e6)] == ["0 B", "999 B", "123 kB", "25 M"]
    assert ranges([0, 1, 2, 3, 8, 12, 13]) == "0-3, 8, 12-13"
    assert columns([["a", "1"], ["bbb", "1,000"]]) == ["a        1", "bbb  1,000"]
