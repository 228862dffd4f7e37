"""The same gradients in every mode for graphs that have bitten others: tied, reused, idle, frozen, mixing, repeated."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.engine.made_recipes import merged, on_pipeline, write_data
from tests.engine.parity import Recording, largest_difference, record
from tests.engine.test_parity import LIMIT, SMALL

WIDTH = {"type": "linear", "out_features": 20, "bias": False}
BLOCK = {
    "inputs": ["x"],
    "graph": {
        "norm": {"type": "layer_norm", "input": "x"},
        "up": {"type": "linear", "out_features": 24},
        "act": {"type": "gelu"},
        "down": {"type": "linear", "out_features": 20},
        "out": "x + down",
    },
    "output": "out",
}


CASES: dict[str, dict[str, Any]] = {
    "tied": {
        "nodes": {
            "first": {**WIDTH, "input": "x"},
            "act": {"type": "relu"},
            "second": WIDTH,
            "logits": {"type": "linear", "out_features": 10},
        },
        "parameters": {"second.weight": {"tie": "first.weight"}},
    },
    "reused": {
        "nodes": {
            "first": {**WIDTH, "input": "x"},
            "act": {"type": "relu"},
            "again": {"type": "reuse", "node": "first", "input": "act"},
            "logits": {"type": "linear", "out_features": 10},
        },
    },
    "repeated": {
        "blocks": {"layer": BLOCK},
        "nodes": {
            "layers": {"type": "layer", "repeat": 3, "input": "x"},
            "logits": {"type": "linear", "out_features": 10},
        },
    },
    "batch_norm": {
        "nodes": {
            # a bias in front would have the gradient 0, and rounding noise for its difference
            "hidden": {"type": "linear", "out_features": 12, "bias": False, "input": "x"},
            "norm": {"type": "batch_norm", "over": "4 samples"},
            "act": {"type": "relu"},
            "logits": {"type": "linear", "out_features": 10},
        },
    },
    "batch_norm_across": {
        "nodes": {
            "hidden": {"type": "linear", "out_features": 12, "bias": False, "input": "x"},
            "norm": {"type": "batch_norm", "over": "16 samples"},
            "act": {"type": "relu"},
            "logits": {"type": "linear", "out_features": 10},
        },
    },
    "named_like_torch": {  # its methods, those of a sharded module, and what the engine sets on one
        "blocks": {
            "forward": {
                "inputs": ["x"],
                "graph": {
                    "train": {"type": "linear", "out_features": 12},
                    "state_dict": {"type": "layer_norm"},
                    "out": "relu(state_dict) + x",
                },
                "output": "out",
            },
        },
        "nodes": {
            "parameters": {"type": "linear", "out_features": 12, "input": "x"},
            "reshard": {"type": "forward", "repeat": 2},
            "training": {"type": "linear", "out_features": 12},
            "is_frozen": "relu(training)",
            "unshard": {"type": "reuse", "node": "training", "input": "is_frozen"},
            "logits": {"type": "linear", "out_features": 10},
        },
    },
    "frozen": {
        "nodes": {
            "hidden": {"type": "linear", "out_features": 12, "input": "x"},
            "drop": {"type": "relu"},
            "logits": {"type": "linear", "out_features": 10},
        },
        "parameters": {"hidden": {"frozen": True}},
    },
    "detached": {
        "nodes": {
            "hidden": {"type": "linear", "out_features": 12, "input": "x"},
            "cut": "detach(hidden)",
            "logits": {"type": "linear", "out_features": 10},
        },
    },
    "contrast_across": {
        "nodes": {
            "a": {"type": "linear", "out_features": 6, "input": "x"},
            "b": {"type": "linear", "out_features": 6, "input": "x"},
        },
        "objective": {"loss": {"type": "info_nce", "input": "a", "target": "b", "over": "16 samples"}},
    },
    "recurrent": {
        "nodes": {
            "kind": {"type": "embedding", "embedding_dim": 20, "input": "y"},
            "rows": "reshape(x + kind, B, 5, 4)",
            "lstm": {"type": "lstm", "hidden_size": 6},
            "gru": {"type": "gru", "hidden_size": 5},
            "last": "gru[:, -1]",
            "logits": {"type": "linear", "out_features": 10},
        },
    },
    # the gradient that leaves a stage before `turn` does not lie in memory in order
    "turned": {
        "nodes": {
            "wide": {"type": "linear", "out_features": 24, "input": "x"},
            "table": "tanh(reshape(wide, B, 2, 3, 4))",
            "first": {"type": "linear", "out_features": 4},
            "turn": {"type": "permute", "dims": [0, 3, 1, 2]},
            "up": {"type": "linear", "out_features": 5},
            "pooled": "mean(up, dim=[1, 2])",
            "logits": {"type": "linear", "out_features": 10},
        },
    },
}
CHECKPOINTED = (("selective", "fsdp"), ("all", "dp"))  # ddp calls the same blocks as one process does
# ddp averages what has a gradient, fsdp cuts the graph into units of every name; `dp` takes little time
QUICK = {
    "ddp": ("tied", "batch_norm_across", "contrast_across"),
    "fsdp": ("repeated", "tied", "reused", "frozen", "named_like_torch"),
}
MODES: dict[str, dict[str, Any]] = {
    "ddp": {"parallelism": "ddp", "layout": {"gpus": 2}},
    "fsdp": {"parallelism": "fsdp", "layout": {"gpus": 2}},
    "dp": {"parallelism": "dp", "layout": {"gpus": 2}},
}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("parity")
    write_data(path, 37)
    return path


def recipe(case: str, **training: Any) -> dict[str, Any]:
    parts = CASES[case]
    model = {key: parts[key] for key in ("blocks", "parameters") if key in parts}
    base = merged(SMALL, {"model": None})
    changes = {"model": {"graph": parts["nodes"], **model}, "training": training}
    return merged(base, changes | {"objective": parts.get("objective", {})})


@pytest.fixture(scope="module")
def references() -> dict[str, Recording]:
    return {}


def reference(case: str, directory: Path, references: dict[str, Recording]) -> Recording:
    if case not in references:
        references[case] = record(directory, recipe(case))
    return references[case]


@pytest.mark.parametrize(
    ("case", "mode"),
    [
        pytest.param(case, mode, marks=() if case in QUICK.get(mode, CASES) else pytest.mark.long)
        for case in CASES
        for mode in MODES
    ],
)
def test_equal(case: str, mode: str, directory: Path, references: dict[str, Recording]) -> None:
    if (case, mode) == ("batch_norm_across", "dp"):
        pytest.skip("refused: see test_dp_refuses_groups_across_replicas")
    wanted = reference(case, directory, references)
    found = record(directory, merged(recipe(case), MODES[mode]))
    assert largest_difference(wanted, found) <= LIMIT
    for name, item in wanted.parameters.items():
        np.testing.assert_allclose(found.parameters[name], item, rtol=1e-9, atol=1e-12)


def test_gradients_between_stages_may_lie_in_any_order(directory: Path, references: dict[str, Recording]) -> None:
    way = on_pipeline(4, "interleaved_zero_bubble", 2, cuts=["table", "turn", "pooled"])
    found = record(directory, merged(recipe("turned"), way))
    assert largest_difference(reference("turned", directory, references), found) <= LIMIT


@pytest.mark.parametrize(
    ("which", "mode"),
    [
        pytest.param(which, mode, marks=() if (which, mode) in CHECKPOINTED else pytest.mark.long)
        for which in ("selective", "blocks", "all")
        for mode in MODES
    ],
)
def test_activation_checkpointing(which: str, mode: str, directory: Path, references: dict[str, Recording]) -> None:
    for case in ("repeated", "batch_norm", "named_like_torch"):
        found = record(directory, merged(recipe(case, activation_checkpointing=which), MODES[mode]))
        assert largest_difference(reference(case, directory, references), found) <= LIMIT


def test_stages_hold_nodes_of_any_name(directory: Path, references: dict[str, Recording]) -> None:
    for way in (
        on_pipeline(2, "1f1b", 2, cuts=["training"]),
        on_pipeline(2, "1f1b", 4, cuts=["reshard.1"], data={"shard": 2}),
    ):
        found = record(directory, merged(recipe("named_like_torch"), way))
        assert largest_difference(reference("named_like_torch", directory, references), found) <= LIMIT


def test_stages_that_share_a_parameter_add_up_its_gradients_and_count_it_once_in_the_norm(directory: Path) -> None:
    clipped = recipe("tied", clip_grad_norm=0.05)
    found = record(directory, merged(clipped, on_pipeline(2, "1f1b", 2, cuts=["second"])))
    assert largest_difference(record(directory, clipped), found) <= LIMIT


def test_dp_refuses_groups_across_replicas(directory: Path) -> None:
    from declarative_train.engine.failures import RunFailure

    with pytest.raises((RunFailure, AssertionError), match="R107"):
        record(directory, merged(recipe("batch_norm_across"), MODES["dp"]))


def test_a_head_that_only_a_metric_reads_trains_nothing_and_hangs_nobody(directory: Path) -> None:
    idle = {
        "training": {
            "optimizer": {"type": "adamw", "lr": 0.01, "weight_decay": 0.5}
        },  # which moves what has no gradient
        "model": {"graph": {"other": {"type": "linear", "out_features": 10, "input": "act"}}},
        "objective": {"metrics": {"accuracy": {"type": "accuracy", "input": "other", "target": "y"}}},
    }
    wanted = record(directory, merged(SMALL, idle))
    for mode in MODES.values():
        found = record(directory, merged(merged(SMALL, idle), mode))
        assert largest_difference(wanted, found) <= LIMIT
        assert found.parameters.keys() == wanted.parameters.keys()
        for name, values in wanted.parameters.items():
            np.testing.assert_allclose(found.parameters[name], values, rtol=0, atol=LIMIT, err_msg=name)


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("mode", ["single", "ddp", "fsdp"])
def test_compiled_units_give_the_same_gradients(mode: str, directory: Path) -> None:
    """Each in a process of its own: one that has compiled cannot fork ranks that do (torch keeps compiler threads)."""
    code = (
        "import sys\nfrom pathlib import Path\nfrom tests.engine.test_parity_graphs import *\n"
        "mode, directory = sys.argv[1], Path(sys.argv[2])\n"
        "for case in ('repeated', 'named_like_torch'):\n"
        "    wanted = record(directory, recipe(case))\n"
        "    found = record(directory, merged(recipe(case, compile=True), MODES.get(mode, {})))\n"
        "    assert largest_difference(wanted, found) <= LIMIT, largest_difference(wanted, found)\n"
    )
    subprocess.run([sys.executable, "-c", code, mode, str(directory)], check=True, timeout=500)
