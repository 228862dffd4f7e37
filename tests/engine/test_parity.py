"""The same gradients whatever the mode: float64, plain SGD, uneven last batch, masked targets, accumulation."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

from declarative_train.engine.engine import Engine
from declarative_train.engine.step import scale
from tests.engine.made_recipes import DIGITS, merged, write_data
from tests.engine.parity import Recording, largest_difference, record

LIMIT = 1e-10
LONG = pytest.mark.long
SMALL: dict[str, Any] = merged(
    DIGITS,
    {
        "data": {"split": None},
        "training": {"epochs": 1, "global_batch_size": 16, "precision": "fp64"},
        "evaluation": None,
        "checkpoint": None,
        "objective": {"metrics": None},
    },
)
# the global batches are 16, 16 and 5 rows: the last gives one of 4 ranks a single row, and one nothing
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "accumulation": {"training": {"gradient_accumulation_steps": 2}},
    "masked": {"objective": {"loss": {"type": "cross_entropy", "input": "logits", "target": "y", "ignore_index": 3}}},
    "masked_accumulation": {
        "objective": {"loss": {"type": "cross_entropy", "input": "logits", "target": "y", "ignore_index": 3}},
        "training": {"gradient_accumulation_steps": 2},
    },
    "two_terms": {
        "objective": {
            "loss": None,
            "losses": {
                "kind": {"type": "cross_entropy", "input": "logits", "target": "y", "ignore_index": 3},
                "small": {"type": "mean", "input": "energy", "weight": 0.1},
            },
        },
        "model": {"graph": {"energy": "sum(logits * logits, dim=-1)"}},
    },
    "clipped": {"training": {"clip_grad_norm": 0.1}},
}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("parity")
    write_data(path, 37)
    return path


@pytest.fixture(scope="module")
def reference(directory: Path) -> dict[str, Recording]:
    found = {}
    for name, changes in CASES.items():
        whole = {"training": {"gradient_accumulation_steps": None}} if "accumulation" in name else {}
        found[name] = record(directory, merged(merged(SMALL, changes), whole))
    return found


def counted(few: int, many: int, *hardest: str) -> list[Any]:
    """The hardest cases on many ranks, where some have one row of the last batch and some have none. The long tests
    take all, and on few."""
    every = [(case, num_ranks) for num_ranks in (few, many) for case in CASES]
    hard = [(case, many) for case in hardest]
    return [*hard, *(pytest.param(*each, marks=LONG) for each in every if each not in hard)]


DDP = (("clipped", 2), ("masked_accumulation", 2), ("two_terms", 4))
EVERY_DDP = product(CASES, (1, 2, 4))


@pytest.mark.parametrize(
    ("case", "num_ranks"), [*DDP, *(pytest.param(*each, marks=LONG) for each in EVERY_DDP if each not in DDP)]
)
def test_ddp_equals_one_process(case: str, num_ranks: int, directory: Path, reference: dict[str, Recording]) -> None:
    changes = {"parallelism": "ddp", "layout": {"gpus": num_ranks}}
    found = record(directory, merged(merged(SMALL, CASES[case]), changes))
    wanted = reference[case]
    assert found.sample_ids == wanted.sample_ids
    assert [len(ids) for ids in found.sample_ids] == [16, 16, 5]
    assert found.losses == pytest.approx(wanted.losses, rel=1e-12)
    assert largest_difference(wanted, found) <= LIMIT


@pytest.mark.parametrize(("case", "num_ranks"), counted(2, 4, "masked_accumulation", "clipped"))
def test_fsdp_equals_one_process(case: str, num_ranks: int, directory: Path, reference: dict[str, Recording]) -> None:
    changes = {"parallelism": "fsdp", "layout": {"gpus": num_ranks}}
    found = record(directory, merged(merged(SMALL, CASES[case]), changes))
    assert found.sample_ids == reference[case].sample_ids
    assert largest_difference(reference[case], found) <= LIMIT


@pytest.mark.parametrize("case", [pytest.param("masked_accumulation", marks=LONG), "clipped"])
def test_hybrid_sharding_equals_one_process(case: str, directory: Path, reference: dict[str, Recording]) -> None:
    changes = {"parallelism": {"data": {"replicate": 2, "shard": "all"}}, "layout": {"gpus": 4}}
    found = record(directory, merged(merged(SMALL, CASES[case]), changes))
    assert found.sample_ids == reference[case].sample_ids
    assert largest_difference(reference[case], found) <= LIMIT


@pytest.mark.parametrize(("case", "num_replicas"), counted(2, 4, "masked_accumulation", "two_terms"))
def test_dp_equals_one_process(case: str, num_replicas: int, directory: Path, reference: dict[str, Recording]) -> None:
    changes = {"parallelism": "dp", "layout": {"gpus": num_replicas}}
    found = record(directory, merged(merged(SMALL, CASES[case]), changes))
    assert found.sample_ids == reference[case].sample_ids
    assert found.losses == pytest.approx(reference[case].losses, rel=1e-12)
    assert largest_difference(reference[case], found) <= LIMIT


def test_one_process_with_accumulation_equals_one_without(directory: Path, reference: dict[str, Recording]) -> None:
    for case in ("accumulation", "masked_accumulation"):
        found = record(directory, merged(SMALL, CASES[case]))
        assert found.sample_ids == reference[case].sample_ids
        assert largest_difference(reference[case], found) <= LIMIT


def ddp_2(directory: Path, case: str = "plain") -> Recording:
    return record(directory, merged(merged(SMALL, CASES[case]), {"parallelism": "ddp", "layout": {"gpus": 2}}))


def test_a_planted_bug_is_found_one_rank_scales_twice(
    directory: Path, reference: dict[str, Recording], monkeypatch: pytest.MonkeyPatch
) -> None:
    right = scale.Scale.of

    def wrong(self: scale.Scale, *args: Any) -> Any:
        factors, counts = right(self, *args)
        rank = torch.distributed.get_rank()
        return [factor * (1 + rank) for factor in factors], counts

    monkeypatch.setattr(scale.Scale, "of", wrong)
    assert largest_difference(reference["plain"], ddp_2(directory)) > 0.01


def test_a_planted_bug_is_found_a_chunk_is_not_reduced(
    directory: Path, reference: dict[str, Recording], monkeypatch: pytest.MonkeyPatch
) -> None:
    right = Engine.step

    def wrong(self: Engine, step: int, batches: Any, **more: Any) -> Any:
        return right(self, step, batches[:1], **more)

    monkeypatch.setattr(Engine, "step", wrong)
    found = ddp_2(directory, "accumulation")
    assert largest_difference(reference["accumulation"], found) > 0.01


def test_a_planted_bug_is_found_local_counts(
    directory: Path, reference: dict[str, Recording], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The classic mistake: each rank divides by its own number of valid targets."""

    def wrong(self: scale.Scale, chunks: Any) -> Any:
        mine = scale.sum_of(
            [self._objective.counts(chunk.tensors, chunk.row_weight, chunk.num_rows) for chunk in chunks]
        )
        factors = (self._weights / self._dp_size / mine).to(self._dtype)
        return list(factors.unbind()), self._ranks.sum(mine)

    monkeypatch.setattr(scale.Scale, "_from_counts", wrong)
    assert largest_difference(reference["masked"], ddp_2(directory, "masked")) > 0.001
