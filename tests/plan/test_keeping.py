"""Plans as files: the same to the bit, refused when they are of another version, stale when files change."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from declarative_train import planner
from declarative_train.plan import PlanError, from_json, staleness, to_json
from declarative_train.plan.codec import sign
from declarative_train.recipe import load


def test_a_plan_comes_back_as_it_was(planned) -> None:
    plan = planned(
        """
        model: {graph: {target: y + 0, lstm: {type: lstm, hidden_size: 4, input: wide}, wide: "reshape(x, [B, 4, 5])",
                        hidden: {input: last}, last: "lstm.hidden[:, -1]"}}
        objective: {loss: {target: target}}
        training: {lr_schedule: {type: one_cycle}, clip_grad_norm: 1.0}
        meta: {nested: {list: [1, 2.5, null, text]}}
        parallelism: {pipeline: {stages: 2, microbatches: 2}}
        layout: {gpus: 2}
        """
    )
    assert from_json(to_json(plan)) == plan
    assert to_json(from_json(to_json(plan))) == to_json(plan)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "it is not JSON"),
        ("[]", "no `version`"),
        ("{}", "no `version`"),
        ('{"version": 0}', "plan version 0"),
        ('{"version": 4}', "`dtrain_version`"),
    ],
)
def test_what_is_no_plan_is_refused_in_one_line(text: str, says: str) -> None:
    with pytest.raises(PlanError, match=says) as caught:
        from_json(text)
    assert "\n" not in str(caught.value)


def test_a_key_of_the_wrong_kind_is_named(planned) -> None:
    data = json.loads(to_json(planned()))
    data["training"]["num_steps"] = "many"
    with pytest.raises(PlanError, match=r"`training.num_steps`"):
        from_json(json.dumps(data))


def test_the_fingerprint_knows_the_model_on_another_layout(planned) -> None:
    one, two = planned(), planned("parallelism: ddp\nlayout: {gpus: 2}\nlogging: {dir: elsewhere}")
    assert one.fingerprint == two.fingerprint
    assert one.identity != two.identity
    for change in (
        "seed=1",
        "training.optimizer.lr=0.5",
        "training.global_batch_size=48",
        "model.graph.hidden.bias=false",
    ):
        assert planned("", change).fingerprint != one.fingerprint, change


def test_signing_twice_changes_nothing(planned) -> None:
    plan = planned()
    assert sign(plan) == plan
    assert sign(replace(plan, seed=9)).identity != plan.identity


@pytest.fixture
def on_disk(tmp_path: Path) -> Path:
    (tmp_path / "rows.csv").write_text("a,b,c\n" + "".join(f"{i},{i * 2},{i % 3}\n" for i in range(50)))
    (tmp_path / "base.yaml").write_text("training: {optimizer: {type: sgd, lr: 0.1}}\nfragment: true\n")
    (tmp_path / "recipe.yaml").write_text(
        """
extends: base.yaml
fragment: false
data:
  source: {type: csv, path: rows.csv}
  fields:
    x: {columns: [a, b]}
    y: {type: category, column: c, num_classes: 3}
model: {graph: {logits: {type: linear, out_features: 3, input: x}}}
objective: {loss: {type: cross_entropy, input: logits, target: y}}
training: {epochs: 1, global_batch_size: 5}
"""
    )
    return tmp_path


def test_a_plan_is_stale_when_a_file_changes(on_disk: Path) -> None:
    loaded = load(str(on_disk / "recipe.yaml"))
    assert loaded.recipe is not None, loaded.diagnostics
    plan, diagnostics = planner.compile(loaded.recipe)
    assert plan is not None, diagnostics
    assert staleness(plan) == []
    assert {Path(record.path).name for record in plan.files} == {"recipe.yaml", "base.yaml"}

    base = on_disk / "base.yaml"
    base.write_text(base.read_text().replace("0.1", "0.2"))
    (on_disk / "rows.csv").write_text((on_disk / "rows.csv").read_text() + "1,2,0\n")
    found = staleness(plan)
    assert len(found) == 2
    assert "base.yaml has changed since the plan was made" in found[0]
    assert "rows.csv has" in found[1]
    assert "bytes now, but had" in found[1]

    (on_disk / "recipe.yaml").unlink()
    (on_disk / "rows.csv").unlink()
    found = staleness(plan)
    assert "recipe.yaml can no longer be read: no such file" in found[0] + found[1]
    assert "rows.csv can no longer be read" in found[2]


def test_the_same_size_and_another_content(on_disk: Path) -> None:
    loaded = load(str(on_disk / "recipe.yaml"))
    assert loaded.recipe is not None
    plan, _ = planner.compile(loaded.recipe)
    assert plan is not None
    rows = on_disk / "rows.csv"
    rows.write_text(rows.read_text().replace("\n49,", "\n48,"))
    (found,) = staleness(plan)
    assert found.endswith("rows.csv has the same size, but other content")


def test_a_saved_plan_with_a_password_is_for_its_owner_alone(planned, tmp_path: Path) -> None:
    from declarative_train.plan.codec import save

    plan, path = planned(), tmp_path / "plan.json"
    save(plan, path)
    assert path.stat().st_mode & 0o044
    source = plan.data.source | {"path": ["https://me:s3cret@host/x.csv"]}
    secret = sign(replace(plan, data=replace(plan.data, source=source)))
    save(secret, path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert from_json(path.read_text()) == secret
