"""Recipes -> graphs: shapes, dtypes and ranges on every edge, and what does not fit."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from declarative_train.core.diagnostics.diagnostic import Diagnostic
from declarative_train.core.tensor_spec import TensorSpec
from declarative_train.graph.build import build
from declarative_train.graph.graph import Graph, Node, above
from declarative_train.graph.lower import Lowered, lower
from declarative_train.graph.partition import open_blocks, split_batch_graph
from declarative_train.recipe import load

FIELDS = {
    "pixels": TensorSpec((64,)),
    "digit": TensorSpec((), "int64", 10),
    "tokens": TensorSpec((12,), "int64", 50),
    "image": TensorSpec((3, 8, 8)),
}
REST = """
training: {epochs: 1, global_batch_size: 8, optimizer: {type: sgd, lr: 0.1}}
"""


def lowered(
    graph: str,
    objective: str = "loss: {type: cross_entropy, input: logits, target: digit}",
    more: str = "",
    blocks: str = "",
    fields: Mapping[str, TensorSpec] = FIELDS,
    training: str = REST,
) -> tuple[Lowered | None, list[Diagnostic], str]:
    used = {name: spec for name, spec in fields.items() if name in graph + objective}
    text = "name: test\ndata:\n  source: {type: csv, path: none.csv}\n  fields:\n"
    text += "".join(f"    {name}: {{columns: [{name}]}}\n" for name in used)
    text += "model:\n"
    if blocks:
        text += "  blocks:\n" + textwrap.indent(textwrap.dedent(blocks).strip("\n"), "    ") + "\n"
    text += "  graph:\n" + textwrap.indent(textwrap.dedent(graph).strip("\n"), "    ") + "\n"
    text += textwrap.dedent(more)
    text += "objective:\n" + textwrap.indent(textwrap.dedent(objective).strip("\n"), "  ") + "\n" + training
    loaded = load("test.yaml", text=text)
    assert loaded.recipe is not None, loaded.diagnostics
    found, diagnostics = lower(loaded.recipe, used)
    return found, diagnostics, text


def good(graph: str, *args: str, **more: str) -> Lowered:
    found, diagnostics, _ = lowered(graph, *args, **more)
    assert found is not None, diagnostics
    assert not diagnostics
    return found


def one(graph: str, *args: str, **more: str) -> tuple[Diagnostic, str]:
    """The only diagnostic, and the text under its caret."""
    _, diagnostics, text = lowered(graph, *args, **more)
    assert len(diagnostics) == 1, diagnostics
    return diagnostics[0], under(text, diagnostics[0])


def under(text: str, diagnostic: Diagnostic) -> str:
    span = diagnostic.span
    lines = text.split("\n")
    assert span.line == span.end_line
    return lines[span.line - 1][span.column - 1 : span.end_column - 1]


MLP = """
hidden: {type: linear, out_features: 32, input: pixels}
act: {type: relu}
logits: {type: linear, out_features: 10}
"""


def test_every_edge_has_a_spec() -> None:
    found = good(MLP)
    specs = {node.name: node.outputs["output"] for node in found.graph.nodes}
    assert specs == {"hidden": TensorSpec((32,)), "act": TensorSpec((32,)), "logits": TensorSpec((10,))}
    assert found.graph.inputs == {"pixels": TensorSpec((64,))}
    assert found.graph.outputs == {"logits": "logits:output"}
    assert found.sources == {"logits": "logits", "digit": "digit"}
    assert found.parameters == {
        "hidden.weight": (32, 64),
        "hidden.bias": (32,),
        "logits.weight": (10, 32),
        "logits.bias": (10,),
    }
    assert found.units == ("hidden", "act", "logits")


def test_what_comes_from_fields_alone_joins_the_batch() -> None:
    found = good(
        """
        given: tokens[:, :-1]
        next: tokens[:, 1:]
        keep: next != 0
        embed: {type: embedding, embedding_dim: 8, input: given}
        logits: {type: linear, out_features: 50}
        """,
        "loss: {type: cross_entropy, input: logits, target: next, mask: keep}",
    )
    assert [node.name for node in found.batch_graph.nodes] == ["given", "next", "keep"]
    assert found.batch_graph.inputs == {"tokens": FIELDS["tokens"]}
    assert found.batch_graph.outputs == {"given": "given:output", "next": "next:output", "keep": "keep:output"}
    assert found.graph.inputs == {"given": TensorSpec((11,), "int64", 50)}
    assert [node.name for node in found.graph.nodes] == ["embed", "logits"]
    assert found.graph.outputs == {"logits": "logits:output"}
    assert found.parameters["embed.weight"] == (50, 8), "the range of the tokens is the size of the table"
    assert found.specs["keep"] == TensorSpec((11,), "bool")


def test_layers_that_draw_reuses_and_parameters_stay_in_the_model() -> None:
    found = good(
        """
        noisy: {type: dropout, input: pixels}
        scaled: pixels * 2
        flat: {type: flatten, input: scaled}
        again: {type: reuse, node: flat, input: noisy}
        hidden: again + flat
        logits: {type: linear, out_features: 10}
        """
    )
    assert [node.name for node in found.batch_graph.nodes] == ["scaled"]
    assert [node.name for node in found.graph.nodes] == ["noisy", "flat", "again", "hidden", "logits"]
    assert [(fact.path, fact.kind) for fact in found.facts] == [("noisy", "random")]


def test_several_outputs_and_a_named_one_as_loss_input() -> None:
    found = good(
        """
        lstm: {type: lstm, hidden_size: 6, input: image_rows}
        image_rows: reshape(image, [B, 24, 8])
        last: lstm.hidden[:, -1]
        logits: {type: linear, out_features: 10}
        """,
        """
        losses:
          kind: {type: cross_entropy, input: logits, target: digit}
          size: {type: mean, input: lstm.cell, weight: 0.1}
        """,
    )
    assert found.graph.outputs == {"logits": "logits:output", "lstm.cell": "lstm:cell"}
    assert found.specs["lstm.cell"] == TensorSpec((1, 6))


def test_blocks_copies_and_their_parameters() -> None:
    found = good(
        """
        stem: {type: linear, out_features: 16, input: pixels}
        layers: {type: residual, repeat: 3}
        logits: {type: linear, out_features: 10}
        """,
        blocks="""
        residual:
          inputs: [x]
          graph:
            norm: {type: layer_norm}
            fc: {type: linear, out_features: 16}
            out: x + fc
          output: out
        """,
    )
    assert [node.name for node in found.graph.nodes] == ["stem", "layers.0", "layers.1", "layers.2", "logits"]
    assert found.parameters["layers.1.fc.weight"] == (16, 16)
    assert found.units == ("layers.0", "layers.1", "layers.2")
    body = found.graph.node("layers.2").graph
    assert body is not None
    assert body.outputs == {"output": "out:output"}


def test_equal_layers_are_run_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from declarative_train.graph import infer

    runs: list[str] = []
    probe = infer.probe_layer
    monkeypatch.setattr(infer, "probe_layer", lambda layer, *a: runs.append(layer.type) or probe(layer, *a))
    good(
        """
        stem: {type: linear, out_features: 16, input: pixels}
        layers: {type: linear, out_features: 16, repeat: 30}
        logits: {type: linear, out_features: 10}
        """
    )
    assert runs == ["linear"] * 3


def test_a_shape_error_stands_under_the_reference_and_names_what_made_it() -> None:
    found, under_it = one(
        """
        hidden: {type: linear, out_features: 32, input: pixels}
        conv: {type: conv2d, out_channels: 8, kernel_size: 3, input: hidden}
        flat: {type: flatten}
        logits: {type: linear, out_features: 10}
        """
    )
    assert found.code == "G001"
    assert under_it == "hidden"
    assert "`conv2d` takes (B, C, H, W)" in found.message
    assert [item.message for item in found.related] == ["`hidden` gives (B, 32) float32"]


def test_a_shape_error_of_a_field_stands_under_the_field() -> None:
    found, under_it = one(
        """
        embed: {type: embedding, num_embeddings: 20, embedding_dim: 4, input: tokens}
        flat: {type: flatten}
        logits: {type: linear, out_features: 10}
        """
    )
    assert found.code == "G001"
    assert under_it == "20"
    assert "0 to 49" in found.message


def test_what_stands_behind_a_mistake_is_not_reported() -> None:
    _, diagnostics, _ = lowered(
        """
        wrong: {type: conv2d, out_channels: 8, kernel_size: 3, input: pixels}
        behind: {type: conv2d, out_channels: 8, kernel_size: 3}
        flat: {type: flatten}
        logits: {type: linear, out_features: 10}
        also: {type: max_pool2d, kernel_size: 2, input: tokens}
        """,
        """
        losses:
          a: {type: cross_entropy, input: logits, target: digit}
          b: {type: mean, input: also}
        """,
    )
    assert [item.code for item in diagnostics] == ["G001", "G001"]


def test_an_expression_points_at_the_operation() -> None:
    found, under_it = one(
        """
        hidden: {type: linear, out_features: 32, input: pixels}
        mixed: 2 * (hidden + pixels)
        logits: {type: linear, out_features: 10}
        """
    )
    assert found.code == "G004"
    assert under_it == "hidden + pixels"
    assert {item.message for item in found.related} == {
        "`hidden` gives (B, 32) float32",
        "`pixels` gives (B, 64) float32",
    }


def test_a_batch_that_leaves_its_place() -> None:
    found, under_it = one(
        """
        pairs: pixels + unsqueeze(pixels, 1)
        logits: {type: linear, out_features: 10}
        """
    )
    assert found.code == "G003"
    assert under_it == "pixels + unsqueeze(pixels, 1)"
    assert (
        "a dimension other than 0 depends on the batch: the shape is (3, 3, 64) for 3 and (5, 5, 64) for 5"
        in found.message
    )


def test_a_layer_that_torch_refuses_says_so_in_one_line() -> None:
    found, _ = one(MLP.replace("32", "1000000000000000000"))
    assert found.code == "G002"
    assert "\n" not in found.message


PLUGIN = """
import torch
from torch import Tensor, nn


class Scaled(nn.Module):
    def __init__(self, in_features: int, factor: float = 2.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((in_features,), factor))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


class Turned(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if x.ndim > 2:
            raise RuntimeError("Only vectors here\\nand a second line")
        return x.mT
"""


def test_a_metric_of_a_loss_that_does_not_fit_is_no_second_mistake() -> None:
    graph = MLP + "off: {type: linear, out_features: 7, input: hidden}\n"
    loss = "losses: {kind: {type: cross_entropy, input: off, target: digit}, "
    rest = "right: {type: cross_entropy, input: logits, target: digit}}\n"
    found, _ = one(graph, loss + rest + "metrics: {accuracy: {of: kind}}")
    assert "7" in found.message
    one(graph, loss + rest + "metrics: {accuracy: {input: off, target: digit}}")  # nor when it names the same edges


def with_plugin(tmp_path: Path, graph: str, *, plugins: bool) -> tuple[Lowered | None, list[Diagnostic]]:
    (tmp_path / "mine.py").write_text(PLUGIN)
    text = f"""
plugins: [mine.py]
data:
  source: {{type: csv, path: none.csv}}
  fields: {{pixels: {{columns: [p]}}, digit: {{column: d}}}}
model:
  graph:
{textwrap.indent(textwrap.dedent(graph), "    ")}
objective:
  loss: {{type: cross_entropy, input: logits, target: digit}}
{REST}"""
    (tmp_path / "recipe.yaml").write_text(text)
    loaded = load(str(tmp_path / "recipe.yaml"), plugins=plugins)
    assert loaded.recipe is not None, loaded.diagnostics
    return lower(loaded.recipe, FIELDS)


SCALED = """
one: {type: scaled, input: pixels}
two: {type: scaled, input: pixels}
sum: one + two
logits: {type: linear, out_features: 10}
"""


def test_shapes_behind_a_plugin_are_unknown_and_that_is_said_once(tmp_path: Path) -> None:
    found, diagnostics = with_plugin(tmp_path, SCALED, plugins=False)
    assert found is None
    assert [item.code for item in diagnostics] == ["G005"]
    assert not diagnostics[0].is_error


def test_a_plugin_that_may_run_is_a_layer_like_others(tmp_path: Path) -> None:
    found, diagnostics = with_plugin(tmp_path, SCALED, plugins=True)
    assert found is not None
    assert not diagnostics
    assert found.parameters["one.weight"] == (64,)
    module = build(found.graph, [str(tmp_path / "mine.py")])
    assert module.get_parameter("two.weight").tolist() == [2.0] * 64


def test_what_a_plugin_does_wrong_is_told_in_one_line(tmp_path: Path) -> None:
    graph = """
    wide: reshape(pixels, [B, 8, 8])
    cube: {type: turned, input: wide}
    flat: {type: flatten, input: cube}
    turned: {type: turned, input: pixels}
    sum: flat + turned
    logits: {type: linear, out_features: 10}
    """
    _, diagnostics = with_plugin(tmp_path, graph, plugins=True)
    assert [item.code for item in diagnostics] == ["G002", "G003"]
    assert "only vectors here" in diagnostics[0].message
    assert "second line" not in diagnostics[0].message


@pytest.mark.parametrize(("name", "says"), [("lambda", "a keyword of Python"), ("in", "a keyword of Python")])
def test_a_node_may_not_be_called_by_a_word_of_python(name: str, says: str) -> None:
    found, under_it = one(
        f"""
        {name}: {{type: linear, out_features: 32, input: pixels}}
        logits: {{type: linear, out_features: 10}}
        """
    )
    assert (found.code, under_it) == ("G006", name)
    assert says in found.message


def test_a_mistake_in_a_block_is_told_once_for_all_copies() -> None:
    found, under_it = one(
        """
        flat: {type: linear, out_features: 16, input: pixels}
        layers: {type: both, repeat: 3, inputs: {x: flat, memory: pixels}}
        logits: {type: linear, out_features: 10}
        """,
        blocks="""
        both:
          inputs: [x, memory]
          graph:
            conv: {type: conv2d, out_channels: 4, kernel_size: 3, input: memory}
            pooled: mean(conv, dim=[1, 2, 3])
            out: x + unsqueeze(pooled, -1)
          output: out
        """,
    )
    assert (found.code, under_it) == ("G001", "memory")


def test_a_reuse_keeps_the_sizes_of_its_node() -> None:
    found, _ = one(
        """
        hidden: {type: linear, out_features: 32, input: pixels}
        again: {type: reuse, node: hidden, input: hidden}
        logits: {type: linear, out_features: 10}
        """
    )
    assert found.code == "G007"
    assert "built for x (B, 64), but gets x (B, 32) here" in found.message


def test_a_block_called_again_keeps_its_sizes_too() -> None:
    blocks = """
    tower:
      inputs: [x]
      graph:
        norm: {type: layer_norm}
        fc: {type: linear, out_features: 64}
      output: fc
    """
    good(
        """
        left: {type: tower, input: pixels}
        right: {type: reuse, node: left, input: left}
        logits: {type: linear, out_features: 10}
        """,
        blocks=blocks,
    )
    found, _ = one(
        """
        left: {type: tower, input: pixels}
        short: left[:, :20]
        right: {type: reuse, node: left, input: short}
        logits: {type: linear, out_features: 10}
        """,
        blocks=blocks,
    )
    assert found.code == "G007"


def test_a_float64_field_needs_fp64() -> None:
    fields = FIELDS | {"pixels": TensorSpec((64,), "float64")}
    _, diagnostics, text = lowered(MLP, fields=fields)
    assert [item.code for item in diagnostics] == ["G008"]
    assert under(text, diagnostics[0]) == "pixels"
    training = REST.replace("epochs", "precision: fp64, epochs")
    found, diagnostics, _ = lowered(MLP, fields=fields, training=training)
    assert found is not None
    assert not diagnostics
    assert found.graph.inputs["pixels"].dtype == "float32", "float32 stands for what the run computes in"


@pytest.mark.parametrize(("precision", "dtype"), [("fp32", "float32"), ("fp64", "float64")])
def test_a_note_has_the_dtype_that_the_run_computes_in(precision: str, dtype: str) -> None:
    """A field of float64 was said to be float32."""
    fields = FIELDS | {"pixels": TensorSpec((64,), "float64" if precision == "fp64" else "float32")}
    training = REST.replace("epochs", f"precision: {precision}, epochs")
    graph = "left: pixels[:, :32]\nboth: {type: linear, out_features: 10, input: pixels}\nlogits: left + both"
    _, (in_graph,), _ = lowered(graph, fields=fields, training=training)
    assert [item.message for item in in_graph.related] == [
        f"`left` gives (B, 32) {dtype}",
        f"`both` gives (B, 10) {dtype}",
    ]
    loss = "loss: {type: mse, input: logits, target: pixels}"
    _, (in_objective,), _ = lowered(MLP, loss, fields=fields, training=training)
    assert [item.message for item in in_objective.related] == [
        f"`logits` is (B, 10) {dtype}",
        f"`pixels` is (B, 64) {dtype}",
    ]


def test_a_loss_that_does_not_take_its_target() -> None:
    found, under_it = one(MLP, "loss: {type: mse, input: logits, target: pixels}")
    assert found.code == "O101"
    assert under_it == "pixels"
    assert len(found.related) == 2


def test_classes_against_the_range_of_the_target() -> None:
    found, under_it = one(MLP.replace("out_features: 10", "out_features: 9"))
    assert found.code == "O101"
    assert under_it == "logits"
    assert "0 to 9" in found.message


def test_a_mask_must_come_from_fields() -> None:
    graph = MLP + "sure: amax(logits, dim=-1) > 0\n"
    found, under_it = one(graph, "loss: {type: cross_entropy, input: logits, target: digit, mask: sure}")
    assert (found.code, under_it) == ("O102", "sure")
    good(
        MLP + "sure: amax(pixels, dim=-1) > 0\n",
        "loss: {type: cross_entropy, input: logits, target: digit, mask: sure}",
    )


def test_what_is_drawn_from_fields_runs_before_the_model() -> None:
    """In a block, too; what is drawn of the model's numbers stays, and so does a layer that rests in evaluation."""
    graph = """
chosen: rand_like(pixels[:, 0]) < 0.15
noisy: {type: noise, input: pixels}
hidden: {type: linear, out_features: 16, input: noisy}
inside: hidden * rand_like(hidden)
drop: {type: dropout, input: pixels}
both: {type: concat, inputs: [inside, drop]}
logits: {type: linear, out_features: 10}
"""
    noise = "noise: {inputs: [x], graph: {out: x + randn_like(x)}, output: out}"
    found = good(graph, "loss: {type: cross_entropy, input: logits, target: digit, mask: chosen}", blocks=noise)
    assert [node.name for node in found.batch_graph.nodes] == ["chosen", "noisy"]
    assert [fact.path for fact in found.facts] == ["inside", "drop"]


def test_a_target_that_sets_the_count_must_come_from_fields() -> None:
    graph = MLP + "guess: argmax(logits, dim=-1)\n"
    good(graph, "loss: {type: cross_entropy, input: logits, target: guess}")
    found, under_it = one(graph, "loss: {type: cross_entropy, input: logits, target: guess, ignore_index: 0}")
    assert (found.code, under_it) == ("O102", "guess")


def test_a_term_without_a_parameter_cannot_change() -> None:
    graph = MLP + "size: mean(pixels ** 2, dim=-1)\n"
    found, under_it = one(
        graph,
        """
        losses:
          kind: {type: cross_entropy, input: logits, target: digit}
          size: {type: mean, input: size}
        """,
    )
    assert (found.code, under_it) == ("O103", "size")


def test_a_model_without_parameters() -> None:
    found, _ = one("logits: pixels[:, :10]")
    assert found.code == "O104"


def test_small_models_do_not_import_dynamo_and_large_ones_are_not_allocated() -> None:
    code = f"""
    import sys, resource
    sys.path.insert(0, {str(__file__).rpartition("/")[0]!r})
    from test_lower import good, MLP
    good(MLP)
    good('''
        embed: {{type: embedding, embedding_dim: 16, input: tokens}}
        pos: {{type: learned_positions}}
        attn: {{type: self_attention, heads: 2, causal: true}}
        norm: {{type: batch_norm, input: image}}
        conv: {{type: conv2d, out_channels: 4, kernel_size: 3}}
        one: mean(conv, dim=[1, 2, 3])
        two: mean(attn, dim=[1, 2])
        both: stack(one, two, dim=-1)
        logits: {{type: linear, out_features: 10}}
    ''')
    assert "torch._dynamo" not in sys.modules
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    good('''
        wide: {{type: linear, out_features: 40000, input: pixels}}
        more: {{type: linear, out_features: 40000}}
        logits: {{type: linear, out_features: 10}}
    ''')
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 1_000_000, grown  # kB: 6.4 GB of parameters, and torch._dynamo
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, timeout=100)


def test_what_is_asked_of_every_node_does_not_look_through_all_others() -> None:
    """4,000 nodes in a row: a look through all nodes or parameters for each of them would take a minute."""
    spec = TensorSpec((20,))
    names = [f"n{number}" for number in range(4000)]
    nodes = tuple(
        Node(
            name, "layer", {"x": f"{before}:output" if number else "x"}, {"output": spec}, component={"type": "linear"}
        )
        for number, (before, name) in enumerate(zip(["", *names], names, strict=False))
    )
    graph = Graph({"x": spec}, nodes, {"y": f"{names[-1]}:output"})
    begin = time.monotonic()
    batch_graph, model = split_batch_graph(graph, {f"{name}.{end}" for name in names for end in ("weight", "bias")})
    assert len(model.nodes) == len(names)
    assert not batch_graph.nodes
    assert open_blocks(graph, names).nodes == nodes
    assert graph.specs().keys() == {"x", *(f"{name}:output" for name in names)}
    assert time.monotonic() - begin < 1.5


def test_above_is_what_a_path_is_below_of() -> None:
    assert above(["gpt.layers.0.attn", "gpt.layers.1", "head"]) == {"gpt", "gpt.layers", "gpt.layers.0"}
