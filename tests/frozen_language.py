"""`language: 1` as facts, each by a name of its own: words, defaults, and what the grammars make of fixed texts.

A fact of a grammar is an example: the text is its name, what it means is its value. So a grammar may be rewritten, and
a fact moves only where a recipe would mean something else.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from declarative_train import plan as plan_room
from declarative_train import recipe as recipe_room
from declarative_train.components.durations import PROGRESS
from declarative_train.components.expressions.functions import FUNCTIONS, OPERATORS
from declarative_train.components.expressions.grammar import parse
from declarative_train.components.expressions.tree import (
    Constant,
    ExpressionError,
    Operation,
    Reference,
    Term,
    Vector,
)
from declarative_train.components.fields.columns import parse_cut
from declarative_train.components.inits import INITS
from declarative_train.components.inits.draws import Draws
from declarative_train.components.lr_schedules import LR_SCHEDULES
from declarative_train.data.order import sample_index
from declarative_train.data.rolling import RolledOrder, chosen
from declarative_train.graph.initialise import own_rule
from declarative_train.recipe.batch import accumulation, data_parallel_size, num_microbatches
from declarative_train.recipe.merge_rules import DEFAULT_TYPES, EXCLUSIVE, MERGE_RULES
from declarative_train.recipe.metric_names import evaluated_sets, watched_names
from declarative_train.recipe.model.blocks import shipped_block, shipped_names
from declarative_train.recipe.model.references import read_reference
from declarative_train.recipe.model.selectors import compile_selector
from declarative_train.recipe.recipe import Recipe
from declarative_train.recipe.sections.parallelism import AXES_OF_WORDS, WORDS
from declarative_train.recipe.sections.section import Section
from declarative_train.recipe.sections.top import SECTIONS, Top, models_in
from declarative_train.recipe.validate import KINDS, table
from declarative_train.source.merge import Merger
from declarative_train.source.node import Mapping, Node, Scalar, to_value
from declarative_train.source.reader import read_text
from declarative_train.source.template import Templates
from declarative_train.terms.duration import UNITS, parse_duration
from declarative_train.terms.names import NAME, RESERVED
from declarative_train.terms.span import Span

Facts = Iterator[tuple[str, str]]

HERE = Span("", 1, 1, 1, 1)
REFERENCES = (
    "mu", "lstm.hidden", "layers.3", "layers.3.hidden", "layers.hidden.3", "Mu", "3", "a.b.c", "a b", "a.", "_a",
)  # fmt: skip
PARAMETERS = (
    "embed.weight", "layers.0.norm.weight", "layers.0.norm.bias", "layers.11.attn.query.weight", "norm.bias",
    "vit.layers.2.norm1.weight", "logits.weight",
)  # fmt: skip
SELECTORS = (
    "*", "norm", "norm*", "bias", "layers.0", "layers.*", "layers.{0..7}", "layers.*.norm.bias", "logits.weight",
    "{norm,logits}", "vit.*", "*.weight", "layers", "weight", "lay*.1*", "", "a..b", "{3..1}", "a/b",
)  # fmt: skip
DURATIONS = (
    "100 steps", "1 step", "2 epochs", "0.5 epochs", "1e6 tokens", "10000 samples", "30 minutes", "2 hours", "5%",
    "5 %", "12.5%", "101%", "10", "ten steps", "3 days", "3 Steps", "-1 steps", "1_000 steps",
)  # fmt: skip
CUTS = (
    ":-1", "1:", ":168", "168:", "3", "3:5", "::2", ":", "a",
)  # fmt: skip
EXPRESSIONS = (
    "a + b * 2", "-a ** 2", "a @ b", "~(a == 1) & (b != 0) | (a < b)", "a // 2 % 3", "a[:, 1:, -1]", "a[0]",
    "a[..., 0]", "a[:, ::2]", "a[:, None]", "lstm.hidden[:, -1]", "layers.3 + 1", "mean(a, dim=1)", "mean(a)",
    "mean(a, dim=0)", "softmax(a, dim=-1)", "max(a, dim=1)", "maximum(a, 0)", "where(a > 0, a, 0)", "concat(a, b)",
    "stack(a, b, dim=1)", "a / sqrt(32)", "a - [0.1, 0.2, 0.3]", "[1, 2]", "1 + 2", "sum(a, dim=[1, 2])",
    "transpose(a, 1, 2)", "transpose(a, 0, 1)", "flatten(a)", "one_hot(a, 5)", "a.shape", "f(a)", "a if b else a",
    "lambda x: x", "'a'", "a and b", "not a", "a < b < a", "a +", "a; b", "x := a", "mean(a, 1)", "norm(a, dim=-1)",
    "detach(a)", "A + b", "softmax(a)", "log_softmax(a)", "stack(a, b)", "squeeze(a)", "unsqueeze(a)", "one_hot(a)",
    "reshape(a, B, 8, -1)", "reshape(a, shape=[B, 8])", "reshape(a, 8, -1)", "reshape(a, 8, B)", "reshape(B, B, 8)",
    "expand(a, B, -1, 4)", "expand(a, -1, 4)", "permute(a, 0, 2, 1)", "permute(a, 2, 1)", "permute(a, 1, 0)",
    "permute(a, B, 1)", "mean(a, dim=B)",
)  # fmt: skip
SHAPES = (
    "x", "x[:, 1]", "x[:, 1:]", "x[:, -1, :2]", "x[:, None]", "mean(x, dim=1)", "sum(x, dim=-1)",
    "sum(x, dim=[1, 2])", "flatten(x)", "unsqueeze(x, 1)", "transpose(x, 1, 2)", "softmax(x, dim=-1)",
    "cumsum(x, dim=1)", "concat(x, x)", "concat(x, x, dim=1)", "stack(x, x, dim=1)", "one_hot(int(x), 5)",
    "amax(x, dim=1, keepdim=true)", "norm(x, dim=-1)", "x @ transpose(x, 1, 2)", "x - [1, 2, 3, 4]",
    "where(x > 0, x, 0)", "argmax(x, dim=-1)", "flip(x, 1)", "mean(x, dim=0)", "mean(x, dim=-3)",
    "repeat_interleave(x, 2, dim=1)", "softmax(x)", "stack(x, x)", "unsqueeze(x)", "squeeze(unsqueeze(x))",
    "squeeze(x)", "flatten(x[:, 0, 0])", "reshape(x, B, -1, 2)", "reshape(x, B, -1)", "reshape(x, -1, 2)",
    "expand(x[:, :1], B, 5, -1)", "expand(x[:, :1], 5, 4)", "permute(x, 0, 2, 1)", "permute(x, 0, -1, 1)",
    "permute(x, 2, 1)", "permute(x, 0, -3, 1)",
)  # fmt: skip
BASE = """
training: {epochs: 3, gradient_accumulation_steps: 2, optimizer: {type: adamw, lr: 0.1, betas: [0.9, 0.99]}}
objective: {loss: {type: mse, input: a, target: b}, metrics: [mae]}
data: {split: {validation: 0.2}, fields: {x: {column: x, scale: 2.0}}}
model: {graph: {a: {type: linear, out_features: 3, input: x}, b: a + 1}, weights: {a: {path: w, rename: {k.: l.}}}}
layout: {gpus: 2}
meta: {who: me}
"""
MERGES = (
    "training: {optimizer: {lr: 0.2}}", "training: {optimizer: {type: sgd, lr: 0.2}}",
    "training: {optimizer: {type: adamw}}", "training: {steps: 5}", "training: {microbatch_size: 4}",
    "training: {epochs: null}", "training: {steps: null}", "training: {optimizer: {betas: [0.5]}}",
    "training: {optimizer: {betas: null}}", "objective: {losses: {other: {type: mse, input: a, target: b}}}",
    "objective: {losses: {loss: {}, other: {type: mse, input: a, target: b}}}", "objective: {loss: {type: l1}}",
    "objective: {loss: null, losses: {other: {type: mse, input: a, target: b}}}", "objective: {metrics: [rmse]}",
    "objective: {metrics: {rmse: {of: loss}}}", "objective: {metrics: null}", "data: {split: {validation: 0.3}}",
    "data: {split: {test: {type: last, fraction: 0.1}}}", "data: {split: {validation: {type: last, fraction: 0.1}}}",
    "data: {split: {validation: {source: {type: csv}}}}", "data: {fields: {x: {columns: [x]}}}",
    "data: {fields: {x: {type: category}}}", "model: {graph: {c: b + 1}}", "model: {graph: {a: {inputs: [x]}}}",
    "model: {graph: {b: {type: relu}}}", "layout: {nodes: 2, gpus_per_node: 4}", "meta: {who: null}",
    "meta: {what: 1}", "{}",
)  # fmt: skip
FORMS = (
    "training: {precision: bf16}", "training: {activation_checkpointing: blocks}",
    "objective: {loss: {type: mse}}", "objective: {metrics: [mae, rmse]}",
    "data: {split: {v: 0.1}}", "data: {split: {v: {source: {type: csv}}}}", "model: {weights: runs/a}",
    "model: {weights: {path: runs/a}}", "model: {weights: {net: runs/a}}",
)  # fmt: skip
TEMPLATES = (
    "{{ vars.a }}", "{{ vars.a * 2 }}", "x{{ vars.a }}", "{{ vars.list[1] }}", "{{ vars.list | length }}",
    "{{ 'y' if vars.a > 2 else 'n' }}", "{{ env.HOME_OF_NOBODY }}", "{{ vars.none }}", "{{ none }}", "{{ index }}",
    "{{ vars.list | join('-') }}", "{{ range(3) }}", "{% if true %}a{% endif %}",
)  # fmt: skip
BATCHES = (  # words of training -> what a step is made of, by the mode
    ("ddp", "layout: {gpus: 4}", "global_batch_size: 96"),
    ("ddp", "layout: {gpus: 4}", "global_batch_size: 96, gradient_accumulation_steps: 3"),
    ("ddp", "layout: {gpus: 4}", "global_batch_size: 96, microbatch_size: 6"),
    ("fsdp", "layout: {nodes: 2, gpus_per_node: 4}", "global_batch_size: 96, microbatch_size: 6"),
    ("dp", "layout: {gpus: 4}", "global_batch_size: 96"),
    ("{data: {replicate: 2, shard: all}}", "layout: {gpus: 4}", "global_batch_size: 96"),
    ("{pipeline: {stages: 2, microbatches: 4}}", "layout: {gpus: 2}", "global_batch_size: 96"),
    (
        "{pipeline: {stages: 2, microbatches: 4}, data: {replicate: 2}}",
        "layout: {gpus: 4}",
        "global_batch_size: 96",
    ),
    ("single", "layout: {gpus: 1}", "global_batch_size: 96, microbatch_size: 32"),
)
SMALL = """
data:
  source: {type: synthetic, kind: classification, rows: 192, features: 8, classes: 3}
  fields: {x: {column: x}, "y": {column: "y"}}
  split: {validation: 0.2, late: {type: last, fraction: 0.1}, test: 0.1}
model:
  graph:
    a: {type: linear, out_features: 16, input: x}
    b: {type: relu}
    c: {type: linear, out_features: 3}
    d: mean(b, dim=-1)
objective:
  losses: {main: {type: cross_entropy, input: c, target: "y"}, side: {type: mean, input: d}}
  metrics: {accuracy: {of: main}, f1: {of: main}}
"""
TRAINING = "steps: 2, optimizer: {type: sgd, lr: 0.1}"
LAYERS = """
data:
  source: {type: synthetic, kind: images, rows: 32, channels: 3, size: 8}
  fields: {x: {column: image}, "y": {column: label}}
model:
  graph:
    conv: {type: conv2d, out_channels: 8, kernel_size: 3, input: x}
    up: {type: conv_transpose2d, out_channels: 8, kernel_size: 2}
    norms: {type: batch_norm}
    group: {type: group_norm, num_groups: 2}
    act: {type: prelu}
    rows: flatten(act, start_dim=2)
    pos: {type: learned_positions}
    token: {type: class_token}
    attn: {type: self_attention, heads: 1}
    look: {type: cross_attention, heads: 1, inputs: {context: token}}
    norm: {type: layer_norm}
    rms: {type: rms_norm}
    lstm: {type: lstm, hidden_size: 4}
    gru: {type: gru, hidden_size: 4}
    own: {type: parameter, shape: [9, 4]}
    mixed: gru + own
    many: flatten(mixed)
    logits: {type: linear, out_features: 10}
    words: {type: embedding, num_embeddings: 10, embedding_dim: 10, input: "y"}
    whole: logits + words
objective: {loss: {type: cross_entropy, input: whole, target: "y"}}
training: {steps: 2, global_batch_size: 8, optimizer: {type: sgd, lr: 0.1}}
"""


def language() -> dict[str, str]:
    """Every fact by a name of its own."""
    found: dict[str, str] = {}
    for facts in (_words(), _defaults(), _grammars(), _expressions(), _merging(), _batches(), _metrics(), _numbers()):
        for name, value in facts:
            assert name not in found, name
            found[name] = value
    return found


def _words() -> Facts:
    yield "name", NAME
    yield "reserved", " ".join(RESERVED)
    yield "units", " ".join(UNITS)
    yield "units of progress", " ".join(PROGRESS)
    for name, function in (FUNCTIONS | OPERATORS).items():
        target = function.target.removeprefix("declarative_train.components.expressions.samples.")
        yield f"function.{name}", f"{target}({function.signature}) {function.dtype}"
    for pair in EXCLUSIVE:
        yield f"exclusive.{'.'.join(map(str, pair.holder))}.{pair.either}.{pair.other}", "one of them"
    for path, default in DEFAULT_TYPES.items():
        yield f"default type.{'.'.join(map(str, path))}", str(default)


def _defaults() -> Facts:
    for kind, (word, _) in KINDS.items():
        for name, model in table(kind).items():
            yield from _fields(f"{word}.{name}", model)
    yield from _fields("top", Top)
    for section in SECTIONS:
        for model in models_in(Top.model_fields[section].annotation):
            yield from _section(f"section.{model.__name__}", model)
    for word in WORDS:
        yield f"parallelism.{word}", str(AXES_OF_WORDS.get(word, "no product of axes"))
    for name in shipped_names():
        block, _ = shipped_block(name)
        assert block is not None
        for param in block.params.values():
            default = "required" if param.default is None else json.dumps(to_value(param.default))
            yield f"block.{name}.{param.name}", default
        needed = " ".join(port.name for port in block.ports if not port.optional)
        yield f"block.{name}", f"{needed} -> {' '.join(block.outputs)}"
        yield from ((f"block.{name}.inputs.{port.name}", "optional") for port in block.ports if port.optional)


def _section(prefix: str, model: type[BaseModel]) -> Facts:
    """With the sections inside it."""
    yield from _fields(prefix, model)
    for name, field in model.model_fields.items():
        for inner in models_in(field.annotation):
            if issubclass(inner, Section):
                yield from _section(f"{prefix}.{name}", inner)


def _fields(prefix: str, model: type[BaseModel]) -> Facts:
    for name, field in model.model_fields.items():
        if field.default_factory is not None:
            continue  # a section, whose fields stand for themselves
        value = "required" if field.default is PydanticUndefined else _shown(field.default)
        yield f"{prefix}.{field.alias or name}", value


def _shown(value: Any) -> str:
    if isinstance(value, Section) or inspect.isclass(value):
        return type(value).__name__
    return str(value)


def _grammars() -> Facts:
    for text in REFERENCES:
        edge = read_reference(text, HERE)
        means = "refused" if edge is None or edge.below else f"node {edge.name}, copy {edge.copy}, output {edge.output}"
        yield f"reference.{text}", means
    for text in SELECTORS:
        try:
            pattern = compile_selector(text)
            yield f"selector.{text}", " ".join(name for name in PARAMETERS if pattern.match(name)) or "none of them"
        except ValueError:
            yield f"selector.{text}", "refused"
    for text in DURATIONS:
        yield f"duration.{text}", _or_refused(lambda text=text: str(parse_duration(text)))
    for text in CUTS:
        yield f"rows.{text}", _or_refused(lambda text=text: str(parse_cut(text)))
    for text in TEMPLATES:
        scalar = Scalar(text, text, HERE)
        rendered, problems = Templates().render(scalar, {"vars": {"a": 3, "list": [1, 2]}, "env": {}})
        yield f"template.{text}", "refused" if problems else json.dumps(to_value(rendered))


def _or_refused(read: Any) -> str:
    try:
        return str(read())
    except ValueError:
        return "refused"


def _expressions() -> Facts:
    import torch

    from declarative_train.components.expressions.lower import infer

    for text in EXPRESSIONS:
        try:
            yield f"expression.{text}", _tree(parse(text).root)
        except ExpressionError as problem:
            yield f"expression.{text}", f"refused: {problem.rule}"
    x = torch.arange(24.0).reshape(2, 3, 4) % 5
    for text in SHAPES:
        try:
            result = infer(parse(text), {"x": x})
            first = ", ".join(f"{value:.4g}" for value in result.double().flatten()[:5].tolist())
            yield f"shape.{text}", f"{tuple(result.shape)}: {first}"
        except ExpressionError as problem:
            yield f"shape.{text}", f"refused: {problem.rule}"


def _tree(term: Term) -> str:
    if isinstance(term, Constant):
        return json.dumps(term.value)
    if isinstance(term, Vector):
        return f"vector{term.values}"
    if isinstance(term, Reference):
        return term.text
    assert isinstance(term, Operation)
    options = [f"{name}={value}" for name, value in term.options.items()]
    return f"{term.name}({', '.join([*map(_tree, term.operands), *options])})"


def _recipe(text: str) -> Recipe:
    loaded = recipe_room.load("r.yaml", text=text)
    assert loaded.recipe is not None, loaded.diagnostics
    return loaded.recipe


def _read(text: str) -> Mapping:
    root, found = read_text("r.yaml", text)
    assert not found
    expanded = MERGE_RULES.expand(root or Mapping((), HERE))
    assert isinstance(expanded, Mapping)
    return expanded


def _merging() -> Facts:
    for text in FORMS:
        yield f"form.{text}", json.dumps(to_value(_read(text)))
    for over in MERGES:
        merger = Merger(MERGE_RULES)
        merged = merger.merge(_read(BASE), _read(over))
        gone = [f"{'.'.join(map(str, each.path))} {each.reason}" for each in merger.dropped]
        key = next((entry.name for entry in _read(over)), "training")
        node: Node = merged.get(key) or Mapping((), HERE)
        said = [each.code for each in merger.diagnostics]
        yield f"merge.{over}", json.dumps({"is": to_value(node), "gone": gone} | ({"said": said} if said else {}))


def _batches() -> Facts:
    for mode, layout, words in BATCHES:
        recipe = _recipe(f"{SMALL}training: {{{words}, {TRAINING}}}\n{layout}\nparallelism: {mode}\n")
        steps = accumulation(recipe.training, recipe.mode, recipe.layout)
        ranks, parts = data_parallel_size(recipe.mode, recipe.layout), num_microbatches(recipe.mode)
        size = recipe.training.global_batch_size // (ranks * (steps or 1) * parts)
        yield (
            f"batch.{mode}, {layout}, {words}",
            f"{ranks} ranks x {steps} steps x {parts} microbatches x {size} samples",
        )


def _metrics() -> Facts:
    recipe = _recipe(f"{SMALL}training: {{global_batch_size: 8, {TRAINING}}}\n")
    sets = evaluated_sets(recipe.data.split, recipe.evaluation)
    yield "metrics.sets", " ".join(sets)
    for name, is_better in watched_names(sets, recipe.objective).items():
        yield f"metrics.{name}", "more is better" if is_better else "less is better"


def _numbers() -> Facts:
    """Start values, the order of samples, and factors of schedules: each is drawn or computed, and so seen."""
    import torch

    needs = {"constant": {"value": 0.5}}
    for name, kind in INITS.items():
        tensor = torch.empty(4, 6)
        kind.model_validate({"type": name, **needs.get(name, {})}).fill(tensor, Draws(7, "layers.0.weight", (4, 6)))
        yield f"start.{name}", " ".join(f"{value:.5f}" for value in tensor.flatten()[[0, 1, 5, 23]].tolist())
    plan, found = plan_room.compile(_recipe(LAYERS))
    assert plan is not None, found
    for parameter in plan.parameters:
        rule = own_rule(plan.graph, parameter.name).as_data()
        yield f"start of {parameter.name}", json.dumps(rule)
    for seed, epoch, size in ((0, 0, 10), (0, 1, 10), (3, 0, 10), (0, 0, 100_000)):
        order = sample_index(seed, epoch, np.arange(5), size)
        yield f"order.seed {seed}, epoch {epoch}, {size} samples", " ".join(map(str, order.tolist()))
    for size, blocks, window in ((10**9, 20_000, None), (10**8, 100, None), (10**6, 1_000, 32_000)):
        roll = chosen(size, blocks, 64, window, None)
        rolled = RolledOrder(3, np.linspace(0, size, blocks + 1).astype(np.int64), roll, 96).samples(
            1, np.arange(0, 96, 20)
        )
        yield f"rolled.{size} samples of 64 bytes in {blocks} blocks, window {window}", f"{roll} {rolled.tolist()}"
    more: dict[str, dict[str, object]] = {"step": {"every": "20 steps"}}
    for name, schedule in LR_SCHEDULES.items():
        written = schedule.model_validate({"type": name, **more.get(name, {})})
        made = written.resolved(lambda duration: int(duration.value))
        factors = (made.factor(step, 100, 10) for step in (0, 5, 10, 50, 99))
        yield f"factor.{name}", " ".join(f"{factor:.6g}" for factor in factors)
