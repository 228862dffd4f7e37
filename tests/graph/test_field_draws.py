"""What is drawn from fields alone follows from the sample, and is distributed as torch's own draws are."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from declarative_train.graph.field_draws import FieldDraws

CPU = torch.device("cpu")


def drawn(
    name: str,
    samples: list[int] | np.ndarray,
    *,
    epoch: int | None = 0,
    path: str = "node",
    number: int = 0,
    seed: int = 3,
    size: int = 5,
    dtype: torch.dtype = torch.float32,
    padding: int = 0,
) -> torch.Tensor:
    draws = FieldDraws(seed)
    rows = len(samples) + padding
    draws.begin(np.asarray(samples, np.int64), epoch, rows, CPU)
    return draws.function(name, path, number)(torch.zeros(rows, size, dtype=dtype))


@pytest.mark.parametrize("name", ["rand_like", "randn_like"])
def test_a_sample_has_its_numbers_wherever_it_stands(name: str) -> None:
    whole = drawn(name, list(range(20)), dtype=torch.float64)
    assert torch.equal(drawn(name, [7, 3, 19], dtype=torch.float64), whole[[7, 3, 19]])
    torch.testing.assert_close(drawn(name, [19], padding=3, dtype=torch.float64)[0], whole[19], rtol=1e-14, atol=1e-14)
    assert len(whole.unique()) == whole.numel()


@pytest.mark.parametrize("other", [{"epoch": 1}, {"epoch": None}, {"path": "nodes"}, {"number": 1}, {"seed": 4}])
@pytest.mark.parametrize("name", ["rand_like", "randn_like"])
def test_another_epoch_node_or_seed_has_others(name: str, other: dict[str, int]) -> None:
    one, two = drawn(name, list(range(400))), drawn(name, list(range(400)), **other)  # type: ignore[arg-type]
    assert not (one == two).any()
    correlation = torch.corrcoef(torch.stack([one.flatten(), two.flatten()]))[0, 1]
    assert abs(correlation) < 0.1


def test_uniform_numbers_are_uniform() -> None:
    found = drawn("rand_like", list(range(20_000)), size=16, dtype=torch.float64)
    counts = torch.histc(found, 64, 0, 1)
    expected = found.numel() / 64
    assert ((counts - expected).abs() < 5 * expected**0.5).all()
    assert 0 <= found.min() < 1e-4
    assert 1 - 1e-4 < found.max() < 1
    assert abs(found[:, :-1].sub(0.5).mul(found[:, 1:] - 0.5).mean()) < 5 / 12 / 300_000**0.5  # neighbours in a sample
    assert abs(found[:-1].sub(0.5).mul(found[1:] - 0.5).mean()) < 5 / 12 / 300_000**0.5  # neighbours in the set


def test_normal_numbers_are_normal() -> None:
    found = drawn("randn_like", list(range(20_000)), size=16, dtype=torch.float64)
    error = found.numel() ** -0.5
    for power, moment in ((1, 0), (2, 1), (3, 0), (4, 3)):
        assert abs((found**power).mean() - moment) < 60 * error
    inside = torch.tensor([(found.abs() < width).double().mean() for width in (1, 2, 3)])
    assert torch.allclose(inside, torch.tensor([0.682689, 0.954500, 0.997300], dtype=torch.float64), atol=4 * error)
    assert abs(found[:, :-1].mul(found[:, 1:]).mean()) < 5 * error


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_no_dtype_rounds_up_to_one(dtype: torch.dtype) -> None:
    found = drawn("rand_like", list(range(20_000)), size=16, dtype=dtype)
    assert found.dtype == dtype
    assert found.max() < 1
    assert found.double().mean() == pytest.approx(0.5, abs=0.01)


def test_a_sample_without_elements_and_one_number_each() -> None:
    draws = FieldDraws(0)
    draws.begin(np.arange(3), 0, 3, CPU)
    draw = draws.function("rand_like", "node", 0)
    assert draw(torch.zeros(3)).shape == (3,)
    assert draw(torch.zeros(3, 0, 2)).shape == (3, 0, 2)
