"""Blocks of losses on answers: values and gradients compared with their papers' formulas, written out here in another
way, and with TRL's functions where TRL is installed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from declarative_train.core.tensor_spec import TensorSpec
from declarative_train.graph.build import build
from tests.engine.made_recipes import compiled

ROWS = 12
RNG = np.random.default_rng(0)


def draw(*shape: int, scale: float = 1.0) -> np.ndarray:
    return (scale * RNG.normal(size=(ROWS, *shape))).astype(np.float32)


def sums() -> np.ndarray:
    """Log-likelihoods of answers."""
    return -20 * RNG.random(ROWS, dtype=np.float32) - 1


def means() -> np.ndarray:
    """Log-likelihoods of answers per token."""
    return -3 * RNG.random(ROWS, dtype=np.float32) - 0.05


PAIR = {"chosen": sums(), "rejected": sums()}
FOUR = PAIR | {"chosen_reference": sums(), "rejected_reference": sums()}
SINGLE = {name: sums() for name in ("policy", "reference", "other_policy", "other_reference")}
SINGLE |= {"good": np.arange(ROWS) % 3 > 0}
MEANS = {"chosen": means(), "rejected": means()}
FOUR_MEANS = MEANS | {"chosen_reference": means(), "rejected_reference": means()}
TEXTS = {
    "logits": draw(6, 11, scale=3),
    "tokens": RNG.integers(0, 11, (ROWS, 7)),
    "trained": RNG.random((ROWS, 7)) > 0.4,
}
TEXTS["trained"][0] = False  # a text whose answer was cut off
CLASSES = {"student": draw(5, 11, scale=2), "teacher": draw(5, 11, scale=2)}

Formula = Callable[..., dict[str, Tensor]]


def log_likelihood(logits: Tensor, tokens: Tensor, trained: Tensor) -> dict[str, Tensor]:
    found = []
    for row in range(ROWS):
        places = [at for at in range(1, tokens.shape[1]) if trained[row, at]]
        each = [-F.cross_entropy(logits[row, at - 1][None], tokens[row, at][None]) for at in places]
        found.append(torch.stack(each).sum() if each else logits[row].sum() * 0)
    counts = trained[:, 1:].sum(1).clamp(min=1)
    return {"sum": torch.stack(found), "mean": torch.stack(found) / counts}


def dpo(beta: float = 0.1, noise: float = 0.0) -> Formula:
    """Rafailov et al., 2023, equation 7, and, with labels that are wrong with probability `noise`, Mitchell, 2023."""

    def loss(chosen: Tensor, rejected: Tensor, chosen_reference: Tensor, rejected_reference: Tensor) -> Any:
        preferred = torch.sigmoid(beta * (chosen - chosen_reference - rejected + rejected_reference))
        return {"loss": -(1 - noise) * preferred.log() - noise * (1 - preferred).log()}

    return loss


def ipo(chosen: Tensor, rejected: Tensor, chosen_reference: Tensor, rejected_reference: Tensor) -> dict[str, Tensor]:
    """Azar et al., 2023, equation 17, with tau 0.2."""
    return {"loss": ((chosen - rejected) - (chosen_reference - rejected_reference) - 1 / 0.4) ** 2}


def orpo(chosen: Tensor, rejected: Tensor) -> dict[str, Tensor]:
    """Hong et al., 2024, equations 4 to 7."""
    odds = [p.exp() / (1 - p.exp()) for p in (chosen, rejected)]
    ratio = -torch.sigmoid((odds[0] / odds[1]).log()).log()
    return {"loss": -chosen + 0.3 * ratio, "ratio": ratio}


def simpo(chosen: Tensor, rejected: Tensor) -> dict[str, Tensor]:
    """Meng et al., 2024, equation 6, with beta 2.5 and gamma 0.7."""
    return {"loss": -torch.sigmoid(2.5 * chosen - 2.5 * rejected - 0.7).log()}


def kto(policy: Tensor, reference: Tensor, good: Tensor, other_policy: Tensor, other_reference: Tensor) -> Any:
    """Ethayarajh et al., 2024, equation 8, with beta 0.2, lambda_D 1.5 and lambda_U 0.5."""
    reward, zero = policy - reference, (other_policy - other_reference).mean().detach().clamp(min=0)
    wanted = 1.5 - 1.5 * torch.sigmoid(0.2 * (reward - zero))
    return {"loss": torch.where(good, wanted, 0.5 - 0.5 * torch.sigmoid(0.2 * (zero - reward)))}


def bradley_terry(chosen: Tensor, rejected: Tensor) -> dict[str, Tensor]:
    return {"loss": (chosen.exp() + rejected.exp()).log() - chosen + 0.01 * (chosen + rejected) ** 2}


def distillation(beta: float, temperature: float) -> Formula:
    """Agarwal et al., 2023, equation 1, of distributions with a temperature."""

    def divergence(p: Tensor, q: Tensor) -> Tensor:
        return F.kl_div(q.log(), p, reduction="none").sum(-1)

    def loss(student: Tensor, teacher: Tensor) -> dict[str, Tensor]:
        p, q = (torch.softmax(each / temperature, -1) for each in (teacher, student))
        if beta in (0, 1):
            return {"output": divergence(p, q) if beta == 0 else divergence(q, p)}
        mixed = beta * p + (1 - beta) * q
        return {"output": beta * divergence(p, mixed) + (1 - beta) * divergence(q, mixed)}

    return loss


CASES: dict[str, tuple[str, dict[str, Any], dict[str, np.ndarray], Formula]] = {
    "log likelihood": ("sequence_log_likelihood", {}, TEXTS, log_likelihood),
    "dpo": ("dpo", {}, FOUR, dpo()),
    "dpo with noise": ("dpo", {"beta": 0.3, "label_smoothing": 0.2}, FOUR, dpo(0.3, 0.2)),
    "ipo": ("ipo", {"beta": 0.2}, FOUR_MEANS, ipo),
    "orpo": ("orpo", {"beta": 0.3}, MEANS, orpo),
    "simpo": ("simpo", {"beta": 2.5, "gamma": 0.7}, MEANS, simpo),
    "kto": ("kto", {"beta": 0.2, "good_weight": 1.5, "bad_weight": 0.5}, SINGLE, kto),
    "bradley_terry": ("bradley_terry", {"center": 0.01}, {"chosen": draw(), "rejected": draw()}, bradley_terry),
    "distillation": ("distillation", {"temperature": 2}, CLASSES, distillation(0, 2)),
    "reverse": ("distillation", {"beta": 1}, CLASSES, distillation(1, 1)),
    "jensen-shannon": ("distillation", {"beta": 0.3, "temperature": 1.5}, CLASSES, distillation(0.3, 1.5)),
}


def run_block(
    folder: Path, block: str, fields: dict[str, Any], data: dict[str, np.ndarray], outputs: Iterable[str]
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The outputs of a block in a recipe that minimises them, and its inputs: those of numbers have gradients. A
    parameter times 0 is added to these, since a recipe must have something to train."""
    columns = data | {"zero": np.zeros((ROWS, 1), np.float32)}
    np.savez(folder / "data.npz", **columns)  # type: ignore[arg-type]
    dtypes = {"f": "float32", "i": "int64", "b": "bool"}
    names = {name: "made" if name == "output" else f"made.{name}" for name in outputs}
    nodes: dict[str, Any] = {"rest": {"type": "linear", "out_features": 1, "bias": False, "input": "zero"}}
    ports = {}
    for name, values in data.items():
        ports[name] = f"{name}_too" if values.dtype.kind == "f" else name
        if values.dtype.kind == "f":
            nodes[ports[name]] = f"{name} + {['rest[:, 0]', 'rest', 'unsqueeze(rest, 1)'][values.ndim - 1]}"
    recipe: dict[str, Any] = {
        "name": "made",
        "data": {
            "source": {"type": "npy", "path": "data.npz"},
            "fields": {name: {"column": name, "dtype": dtypes[each.dtype.kind]} for name, each in columns.items()},
        },
        "model": {"graph": nodes | {"made": {"type": block, "inputs": ports, **fields}}},
        "objective": {"losses": {name: {"type": "mean", "input": node} for name, node in names.items()}},
        "training": {"steps": 1, "global_batch_size": 4, "optimizer": {"type": "sgd", "lr": 0.1}},
        "layout": {"device": "cpu"},
    }
    recipe["objective"]["losses"].pop("preferred", None)
    if "preferred" in names:
        recipe["objective"]["metrics"] = {"preferred": {"type": "mean", "input": "made.preferred"}}
    graph = compiled(folder, recipe).graph
    given = {name: torch.from_numpy(values.copy()) for name, values in columns.items()}
    for each in given.values():
        each.requires_grad_(each.is_floating_point())
    made = dict(zip(graph.outputs, build(graph)(*(given[name] for name in graph.inputs)), strict=True))
    return {name: made[node] for name, node in names.items()}, given


@pytest.mark.parametrize("case", CASES)
def test_a_block_is_the_formula_of_its_paper(tmp_path: Path, case: str) -> None:
    block, fields, data, formula = CASES[case]
    exact = {name: torch.from_numpy(each.copy()) for name, each in data.items()}
    exact = {name: each.double().requires_grad_() if each.is_floating_point() else each for name, each in exact.items()}
    wanted = formula(**exact)
    found, given = run_block(tmp_path, block, fields, data, wanted)
    for name, value in wanted.items():
        torch.testing.assert_close(found[name].double(), value, rtol=2e-6, atol=2e-6)
    sum(value.sum() for value in wanted.values()).backward()  # type: ignore[union-attr]
    sum(value.sum() for value in found.values()).backward()  # type: ignore[union-attr]
    for name, value in exact.items():
        if value.grad is not None:
            torch.testing.assert_close(given[name].grad, value.grad.float(), rtol=1e-5, atol=1e-6)


def test_the_margins_and_what_is_preferred(tmp_path: Path) -> None:
    found, given = run_block(tmp_path, "dpo", {}, FOUR, ["loss", "margin", "preferred"])
    rewards = [0.1 * (given[name] - given[f"{name}_reference"]) for name in ("chosen", "rejected")]
    torch.testing.assert_close(found["margin"], rewards[0] - rewards[1])
    assert found["preferred"].tolist() == (rewards[0] > rewards[1]).float().tolist()
    assert 0 < found["preferred"].sum() < ROWS


@pytest.mark.long  # importing its trainers takes 20 s
def test_blocks_are_the_functions_of_trl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    orpo_trainer = pytest.importorskip("trl.experimental.orpo.orpo_trainer")
    cpo_trainer = pytest.importorskip("trl.experimental.cpo.cpo_trainer")
    gkd_trainer = pytest.importorskip("trl.experimental.gkd.gkd_trainer")
    cpu = SimpleNamespace(device="cpu")
    chosen, rejected = (torch.from_numpy(MEANS[name]) for name in ("chosen", "rejected"))

    found, _ = run_block(tmp_path, "orpo", {"beta": 1.0}, MEANS, ["ratio"])
    trainer = SimpleNamespace(beta=1.0, accelerator=cpu)
    theirs = orpo_trainer.ORPOTrainer.odds_ratio_loss(trainer, chosen, rejected)[0]
    torch.testing.assert_close(found["ratio"], -theirs, rtol=0, atol=1e-6)

    found, _ = run_block(tmp_path, "simpo", {"beta": 2.5, "gamma": 0.7}, MEANS, ["loss"])
    keys = {"beta": 2.5, "simpo_gamma": 0.7, "alpha": 0.0, "label_smoothing": 0.0, "loss_type": "simpo"}
    trainer = SimpleNamespace(accelerator=cpu, **keys)
    theirs = cpo_trainer.CPOTrainer.cpo_loss(trainer, chosen, rejected)[0]
    torch.testing.assert_close(found["loss"], theirs, rtol=0, atol=1e-6)

    student, teacher = (torch.from_numpy(CLASSES[name]) for name in ("student", "teacher"))
    for beta in (0, 0.3, 1):
        found, _ = run_block(tmp_path, "distillation", {"beta": beta, "temperature": 1.5}, CLASSES, ["output"])
        theirs = gkd_trainer.GKDTrainer.generalized_jsd_loss(
            student, teacher, beta=beta, temperature=1.5, reduction="none"
        )
        torch.testing.assert_close(found["output"], theirs.sum(-1), rtol=0, atol=2e-6)


@pytest.mark.long
@pytest.mark.parametrize("shift", [-30.0, 30.0])  # of the divergence, which is negative, and counts as 0, or positive
def test_kto_is_the_loss_of_trl(tmp_path: Path, shift: float) -> None:
    trainer = pytest.importorskip("trl.trainer.kto_trainer")
    data = SINGLE | {"other_policy": SINGLE["other_policy"] + np.float32(shift)}
    fields = {"beta": 0.2, "good_weight": 1.5, "bad_weight": 0.5}
    found, given = run_block(tmp_path, "kto", fields, data, ["loss"])
    theirs = {name: torch.from_numpy(each.copy()) for name, each in data.items()}
    theirs["policy"].requires_grad_()
    one = torch.ones(ROWS, 2, dtype=torch.int64)
    batch = {"input_ids": 0 * one, "KL_input_ids": one, "completion_mask": one, "KL_completion_mask": one}
    batch |= {"attention_mask": one, "KL_attention_mask": one, "label": theirs["good"]}
    batch |= {"ref_logps": theirs["reference"], "ref_KL_logps": theirs["other_reference"]}

    def model(input_ids: Tensor, **_: Any) -> SimpleNamespace:
        """The log-likelihoods of the answers, or of the answers to other questions, as if each had one token."""
        logs = theirs["other_policy" if input_ids[0, 0] else "policy"][:, None]
        return SimpleNamespace(log_probs=logs, entropy=0 * logs.detach(), mean_logits=0 * logs.detach())

    cpu = SimpleNamespace(device=torch.device("cpu"), gather_for_metrics=lambda x: x)
    keys = {"beta": 0.2, "desirable_weight": 1.5, "undesirable_weight": 0.5, "loss_type": "kto", "_tp_size": 1}
    keys |= {"calculate_KL": True, "aux_loss_enabled": False, "precompute_ref_logps": True, "_total_train_tokens": 0}
    itself = SimpleNamespace(accelerator=cpu, model=SimpleNamespace(training=True), **keys)
    itself._metrics = {"train": defaultdict(list)}
    itself._compute_kl_logps = lambda model, batch: trainer.KTOTrainer._compute_kl_logps(itself, model, batch)
    loss = trainer.KTOTrainer._compute_loss(itself, model, batch, return_outputs=False)
    torch.testing.assert_close(found["loss"].mean(), loss, rtol=0, atol=1e-6)
    found["loss"].mean().backward(), loss.backward()
    torch.testing.assert_close(given["policy"].grad, theirs["policy"].grad, rtol=0, atol=1e-6)
    assert all(given[name].grad is None or not given[name].grad.any() for name in ("other_policy", "other_reference"))


def test_info_nce_is_the_loss_of_multiple_negatives(tmp_path: Path) -> None:
    """Henderson et al., Efficient natural language response suggestion, 2017; cosines times 20."""
    from declarative_train.components.losses import LOSSES

    a, b = torch.from_numpy(draw(7)), torch.from_numpy(draw(7))
    keys = {"type": "info_nce", "temperature": 0.05, "symmetric": False}
    module = LOSSES["info_nce"].model_validate(keys).build(TensorSpec((7,)), TensorSpec((7,)), None)
    scores = 20 * F.cosine_similarity(a[:, None], b[None], dim=-1)
    torch.testing.assert_close(module.sum(a, b, None, None) / ROWS, F.cross_entropy(scores, torch.arange(ROWS)))
