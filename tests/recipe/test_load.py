"""From files to a recipe: short forms, paths, provenance, weights, fragments, moved wires."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from declarative_train.core.diagnostics.diagnostic import Diagnostic, Severity
from declarative_train.recipe.load import Loaded, load
from declarative_train.recipe.model.selectors import settings_of
from declarative_train.recipe.recipe import Recipe

Laid = Callable[..., Loaded]
Wrong = Callable[..., list[Diagnostic]]


def recipe_of(loaded: Loaded) -> Recipe:
    assert loaded.diagnostics == []
    assert loaded.recipe is not None
    return loaded.recipe


def test_short_forms(laid: Laid) -> None:
    recipe = recipe_of(laid("parallelism: fsdp\nlayout: {gpus: [0, 3]}\nmodel: {weights: w.safetensors}\n"))
    assert recipe.parallelism.mode == "fsdp"
    assert recipe.layout.devices == (0, 3)
    assert recipe.span("parallelism.data.shard").line == 2
    assert [(each.node, Path(each.path).name) for each in recipe.model.weights] == [("", "w.safetensors")]
    assert recipe.span("objective.losses.loss.input").column > 1


def test_partial_changes_of_a_base_keep_its_types(laid: Laid) -> None:
    recipe = recipe_of(
        laid("objective: {loss: {weight: 2}, metrics: {accuracy: {of: loss}}}\ntraining: {optimizer: {lr: 0.05}}\n")
    )
    assert recipe.objective.losses["loss"].weight == 2
    assert recipe.objective.losses["loss"].component.type == "cross_entropy"
    assert recipe.objective.metrics["accuracy"].of == "loss"
    assert recipe.training.optimizer.type == "adam"


def test_another_type_leaves_nothing_of_the_base(laid: Laid) -> None:
    over = "training: {optimizer: {betas: [0.5, 0.9]}}\n"
    recipe = recipe_of(laid(over, set_=("training.optimizer={type: sgd, lr: 0.1}",)))
    assert recipe.training.optimizer.type == "sgd"


def test_exclusive_keys_of_fields_nodes_and_metrics(laid: Laid) -> None:
    recipe = recipe_of(
        laid(
            "data: {fields: {x: {column: x}}}\nmodel: {graph: {hidden: {inputs: [x]}}}\n"
            "objective: {metrics: {accuracy: {input: logits, target: y}}}\n"
        )
    )
    assert recipe.objective.metrics["accuracy"].input == "logits"


def test_paths_are_relative_to_the_file_that_wrote_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "base.yaml").write_text(
        "data:\n  source: {type: csv, path: [a.csv, 's3://bucket/b.csv']}\n"
        "  fields: {x: {column: x}}\n  split: {validation: {source: {type: csv, path: v.csv}}}\n"
        "model: {graph: {h: {type: linear, out_features: 1, input: x}}}\n"
        "objective: {loss: {type: mean, input: h}}\n"
        "training: {epochs: 1, global_batch_size: 1, optimizer: {type: sgd, lr: 0.1}}\n"
    )
    (tmp_path / "over.yaml").write_text("extends: deep/base.yaml\nmodel: {weights: {h: {path: w.safetensors}}}\n")
    monkeypatch.chdir(tmp_path)
    recipe = recipe_of(load("over.yaml"))
    assert recipe.data.source.paths == (str(tmp_path / "deep" / "a.csv"), "s3://bucket/b.csv")
    own = recipe.data.split["validation"].own_source
    assert own is not None
    assert own.paths == (str(tmp_path / "deep" / "v.csv"),)
    assert recipe.model.weights[0].path == str(tmp_path / "w.safetensors")
    recipe = recipe_of(load("over.yaml", set_=("data.source.path=c.csv",)))
    assert recipe.data.source.paths == (str(tmp_path / "c.csv"),)
    recipe = recipe_of(load("over.yaml", set_=("data.source.path=[zip://*.csv::c.zip, zip://a::s3://b/c.zip]",)))
    assert recipe.data.source.paths == (f"zip://*.csv::{tmp_path}/c.zip", "zip://a::s3://b/c.zip")


def test_provenance_of_every_value(laid: Laid) -> None:
    recipe = recipe_of(laid("vars: {n: 48}\ntraining: {global_batch_size: '{{ vars.n }}'}\n", set_=("seed=7",)))
    leaves = {".".join(map(str, leaf.path)): leaf for leaf in recipe.leaves()}
    batch = leaves["training.global_batch_size"]
    assert (batch.value, batch.span.line if batch.span else 0) == (48, 3)
    assert leaves["seed"].value == 7
    assert leaves["seed"].span is not None
    assert "seed=7" in leaves["seed"].span.path
    compute = ("training", "precision", "compute")
    assert leaves["training.precision.compute"] == type(batch)(compute, "fp32", None)
    assert leaves["data.fields.x.type"].span is None
    assert leaves["training.optimizer.lr"].span is not None
    assert leaves["training.optimizer.lr"].span.path.endswith("base.yaml")
    assert leaves["logging.every"].value == "10 steps"
    assert leaves["parallelism"].value == "single"
    assert leaves["model.graph.hidden.out_features"].value == 8
    assert all(leaf.value is not None for leaf in leaves.values())


def test_spans_of_what_was_not_written(laid: Laid) -> None:
    recipe = recipe_of(laid())
    training = recipe.key_span("training")
    assert recipe.span("training.clip_grad_norm") == training
    assert recipe.span("layout.gpus").line == 1
    assert recipe.span("objective.losses.loss.target").line == 14


def test_weights(wrong: Wrong, laid: Laid) -> None:
    (problem,) = wrong("model: {weights: {hiden: {path: w.pt}}}\n")
    assert (problem.code, problem.message) == ("U004", "there is no node `hiden` to load weights into")
    assert problem.help is not None
    assert "did you mean `hidden`?" in problem.help
    loaded = laid("model: {weights: runs/small}\n")  # which is not there: that is for the plan to say
    assert loaded.recipe is not None
    assert loaded.diagnostics == []
    loaded = laid("model: {weights: s3://bucket/runs/small}\n")
    assert loaded.recipe is not None
    assert [(d.code, d.severity) for d in loaded.diagnostics] == [("U003", Severity.UNVERIFIED)]
    (problem,) = wrong("model: {weights: {hidden: {rename: {a: b}}}}\n")
    assert problem.code == "S002"


def test_parameters_of_the_recipe_come_after_those_of_its_blocks(laid: Laid) -> None:
    recipe = recipe_of(
        laid(
            "model:\n  blocks:\n    wide:\n      inputs: [x]\n"
            "      graph: {inner: {type: linear, out_features: 8}, act2: {type: relu}}\n      output: act2\n"
            "      parameters: {bias: {weight_decay: 0.5}, weight: {weight_decay: 0.25}}\n"
            "  graph: {hidden: {type: wide, input: x}}\n"
            "  parameters: {hidden.inner.bias: {weight_decay: 0}}\n"
        )
    )
    assert settings_of(recipe.model.rules, "hidden.inner.bias").weight_decay == 0
    assert settings_of(recipe.model.rules, "hidden.inner.weight").weight_decay == 0.25
    assert settings_of(recipe.model.rules, "logits.weight").weight_decay is None


def test_a_moved_default_wire_is_told(wrong: Wrong) -> None:
    (problem,) = wrong("model: {graph: {act: null}}\n")
    assert (problem.code, problem.severity) == ("W009", Severity.WARNING)
    assert "is `act` in the base but `hidden` here" in problem.message
    assert wrong("model: {graph: {act: null, logits: {input: hidden}}}\n") == []


@pytest.mark.parametrize(
    "text",
    [
        "layout: {nodes: 4, gpus_per_node: 8}\nparallelism: ddp\n",
        "layout: {nodes: 4}\n",
        "training: {global_batch_size: 64}\n",
        "training: {optimizer: {lr: 0.1}}\nobjective: {metrics: [accuracy]}\n",
        "model: {graph: {hidden: {out_features: 4}, act: {type: gelu}, z: mu + 1}}\n",
    ],
)
def test_a_fragment_is_not_asked_for_what_is_not_its_own(text: str) -> None:
    loaded = load("part.yaml", text=f"fragment: true\n{text}")
    assert loaded.diagnostics == []
    assert loaded.recipe is None


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("layout: {gpu: 4}", "S001"),
        ("parallelism: {data: {shard: all, replicate: 3}}\nlayout: {gpus: 4}", "P001"),
        ("training: {epochs: ten}", "S003"),
        ("model: {graph: {hidden: {type: linear, out_feature: 4}}}", "S001"),
        ("model: {graph: {hidden: {type: linear, out_features: four}}}", "S003"),
    ],
)
def test_a_fragment_is_linted_as_a_part(text: str, code: str) -> None:
    (problem,) = load("part.yaml", text=f"fragment: true\n{text}\n").diagnostics
    assert problem.code == code


def test_a_text_instead_of_the_file(tmp_path: Path) -> None:
    loaded = load("-", text="seed: one\n")
    assert loaded.recipe is None
    assert "S003" in {d.code for d in loaded.diagnostics}
    assert load(str(tmp_path / "none.yaml")).document is None


OWN = "{source: {type: csv, path: new.csv}}"


@pytest.mark.parametrize(
    ("first", "second", "kind"),
    [
        (OWN, "{type: random, fraction: 0.1}", "random"),
        (OWN, "0.1", "random"),
        ("0.1", OWN, "source"),
        ("{type: last, fraction: 0.1}", OWN, "source"),
        (OWN, "{source: {path: newer.csv}}", "source"),
        ("{type: last, fraction: 0.1}", "{fraction: 0.2}", "last"),
    ],
)
def test_a_set_of_another_kind_replaces_that_of_the_base(
    laid: Laid, small: str, first: str, second: str, kind: str
) -> None:
    """A set with a `source` need not say its type."""
    base = small.replace("{validation: 0.2}", f"{{validation: {first}}}")
    loaded = laid(f"data: {{split: {{validation: {second}}}}}\n", base=base)
    assert loaded.diagnostics == []
    assert recipe_of(loaded).data.split["validation"].type == kind


@pytest.mark.parametrize(
    ("first", "second", "columns"),
    [('{columns: "x*"}', "{column: x0}", "x0"), ("{type: tensor, column: x0}", "{columns: [x1]}", "x1")],
)
def test_column_and_columns_displace_each_other(laid: Laid, small: str, first: str, second: str, columns: str) -> None:
    base = small.replace('{columns: "x*"}', first)
    loaded = laid(f"data: {{fields: {{x: {second}}}}}\n", base=base)
    assert loaded.diagnostics == []
    assert recipe_of(loaded).data.fields["x"].wanted == (columns,)


def test_a_field_of_another_type_replaces_that_of_the_base_also_where_it_says_none(laid: Laid) -> None:
    loaded = laid("data: {fields: {x: {type: category, column: y, num_classes: 3}}}\n")
    assert recipe_of(loaded).data.fields["x"].wanted == ("y",)


def test_input_and_inputs_displace_each_other(laid: Laid) -> None:
    loaded = laid("model: {graph: {hidden: {inputs: [x]}}}\n")
    assert loaded.diagnostics == []


SIZE = 'model: {graph: {size: "mean(act ** 2, dim=-1)", logits: {input: act}}}\n'
TWO = "{a: {type: cross_entropy, input: logits, target: y}, b: {type: mean, input: logits}}"


def test_a_loss_has_a_name_by_which_a_derived_recipe_adds_another(laid: Laid) -> None:
    more = "objective: {losses: {loss: {}, small: {type: mean, input: size}}, metrics: {accuracy: {of: loss}}}\n"
    loaded = laid(more + SIZE)
    assert loaded.diagnostics == []
    assert list(recipe_of(loaded).objective.losses) == ["loss", "small"]


def dropped_of(loaded: Loaded) -> list[tuple[str, str]]:
    assert loaded.document is not None
    return [(".".join(map(str, each.path)), each.reason) for each in loaded.document.dropped]


def test_losses_displace_the_loss_of_a_base(laid: Laid) -> None:
    """Both were minimised, and nobody was told; now the change is."""
    loaded = laid("objective: {losses: {small: {type: mse, input: logits, target: y}}, metrics: null}\n")
    assert [each.code for each in loaded.diagnostics] == ["W017"]
    assert loaded.recipe is not None
    assert list(loaded.recipe.objective.losses) == ["small"]
    assert ("objective.losses", "alternative") in dropped_of(loaded)


@pytest.mark.parametrize(
    "over",
    [
        "loss: {type: mse, input: logits, target: y}",
        "losses: null, loss: {type: mse, input: logits, target: y}",
        "loss: {type: mse, input: logits, target: y}, losses: null",
        "losses: {a: null, b: null}, loss: {type: mse, input: logits, target: y}",
    ],
)
def test_a_loss_displaces_the_losses_of_a_base(laid: Laid, over: str) -> None:
    loaded = laid(
        f"objective: {{losses: {TWO}, metrics: null}}\n",
        set_=(f"objective={{{over}}}",),
    )
    assert list(recipe_of(loaded).objective.losses) == ["loss"]
    assert any(path.startswith("objective.losses") for path, _ in dropped_of(loaded)[2:])


def test_losses_set_to_null_leave_nothing_of_the_one_loss_before_them(laid: Laid) -> None:
    loaded = laid("objective: {losses: null, loss: {type: mse, input: logits, target: y}, metrics: null}\n")
    assert recipe_of(loaded).objective.losses["loss"].component.type == "mse"


def test_a_term_called_loss_among_others_is_set_by_its_path(laid: Laid) -> None:
    both = "objective: {losses: {loss: {}, b: {type: mean, input: logits}}, metrics: null}\n"
    recipe = recipe_of(laid(both, set_=("objective.losses.loss.weight=2", "objective.losses.b.weight=3")))
    assert [term.weight for term in recipe.objective.losses.values()] == [2, 3]


def test_the_one_loss_is_set_by_its_short_and_its_long_path(laid: Laid) -> None:
    recipe = recipe_of(laid("", set_=("objective.losses.loss.weight=2", "objective.loss.label_smoothing=0.1")))
    assert recipe.objective.losses["loss"].weight == 2
    assert list(recipe.objective.losses) == ["loss"]


def test_a_null_in_losses_finds_nothing_in_a_base_with_one_loss(laid: Laid) -> None:
    assert [d.code for d in laid("objective: {losses: {a: null}}\n").diagnostics] == ["M005"]


def test_a_reference_of_the_objective_that_leads_nowhere(wrong: Wrong) -> None:
    (problem,) = wrong("objective: {loss: {input: logit}}\n")
    assert problem.code == "W001"
    assert (problem.span.line, problem.span.column) == (2, 27)


def test_the_shipped_recipe_loads() -> None:
    recipe_of(load(str(Path(__file__).parents[2] / "recipes" / "digits_mlp_ddp2.yaml")))
