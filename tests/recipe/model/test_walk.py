"""What a value depends on: into blocks, out of them, and through nodes that are called again."""

from __future__ import annotations

from declarative_train.recipe.model.walk import Frame, all_layers, inputs_before, operation_of, walk

FIELDS = ("pixels", "words", "left", "right")
NESTED = """
blocks:
  inner:
    inputs: [x, mask]
    graph: {dense: {type: linear, out_features: 10, input: x}, kept: dense * mask}
    outputs: {value: kept, given: mask}
  outer:
    inputs: [x, mask]
    graph: {deep: {type: inner, inputs: {x: x, mask: mask}}}
    outputs: {value: deep.value, given: deep.given}
graph:
  shares: softmax(right, dim=1)
  one: {type: outer, inputs: {x: pixels, mask: left}}
  two: {type: reuse, node: one, inputs: {x: words, mask: shares}}
  logits: one.value + two.value + two.given
"""


def test_each_call_of_a_block_has_inputs_of_its_own(open_model) -> None:
    scope = open_model(NESTED, fields=FIELDS).scope
    frame = Frame(scope)
    assert inputs_before(frame, ["one:value"]) == {"pixels", "left"}
    assert inputs_before(frame, ["two:value"]) == {"words", "right"}
    assert inputs_before(frame, ["two:given"]) == {"right"}
    assert inputs_before(frame, ["logits:output"]) == set(FIELDS)
    found = [each.node.path for each in walk(frame, ["logits:output"]) if each.node is not None]
    assert sorted(found) == ["logits", *["one.deep.dense"] * 2, *["one.deep.kept"] * 2, "shares"]
    assert [node.path for node in all_layers(scope)] == ["one.deep.dense"]


def test_the_operation_before_a_block_is_that_of_an_output_that_passes_it_on(open_model) -> None:
    scope = open_model(NESTED, fields=FIELDS).scope
    assert operation_of(scope, "two:given") == "softmax"
    assert operation_of(scope, "one:given") is None
    assert operation_of(scope, "one:value") == "*"
