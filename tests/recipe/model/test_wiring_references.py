"""Wires: references and default wires (decisions, Q1 to Q9), and what is said when they lead nowhere."""

from __future__ import annotations

import pytest

FIRST = "hidden: {type: linear, out_features: 8, input: pixels}"
LAST = "logits: {type: linear, out_features: 10}"


def graph(*lines: str) -> str:
    return "graph:\n" + "".join(f"  {line}\n" for line in lines)


def test_input_is_inputs_with_one_entry_and_a_list_binds_in_order(open_model) -> None:  # decisions, Q1
    one = open_model(graph(FIRST, "logits: {type: linear, out_features: 10, input: hidden}"))
    two = open_model(graph(FIRST, "logits: {type: linear, out_features: 10, inputs: [hidden]}"))
    assert one.node("logits").inputs == two.node("logits").inputs == {"x": "hidden:output"}
    ports = open_model(graph("logits: {type: cross_attention, heads: 2, inputs: [a, b, c]}"), fields=["a", "b", "c"])
    assert ports.node("logits").inputs == {"query": "a", "context": "b", "mask": "c"}


def test_input_beside_inputs_is_an_error(open_model) -> None:  # decisions, Q1
    opened = open_model(graph(FIRST, "logits: {type: linear, out_features: 10, input: hidden, inputs: [hidden]}"))
    assert opened.said() == [("W004", "inputs")]
    assert opened.under(opened.only.related[0].span) == "input"


def test_the_node_above_is_the_entry_above_expressions_included(open_model) -> None:  # decisions, Q2
    opened = open_model(graph(FIRST, "double: hidden * 2", LAST))
    assert opened.node("logits").inputs == {"x": "double:output"}


def test_the_node_above_fills_only_the_first_port(open_model) -> None:  # decisions, Q2
    opened = open_model(graph(FIRST, "logits: {type: cross_attention, heads: 2}"))
    assert opened.said() == [("W005", "cross_attention")]
    assert "`context`" in opened.only.message
    named = open_model(graph(FIRST, "logits: {type: cross_attention, heads: 2, inputs: {context: pixels}}"))
    assert named.node("logits").inputs == {"query": "hidden:output", "context": "pixels"}


def test_the_first_node_of_the_main_graph_names_its_input(open_model) -> None:  # decisions, Q2
    opened = open_model(graph("hidden: {type: linear, out_features: 8}", LAST))
    assert opened.said() == [("W005", "linear")]
    assert "first node" in opened.only.message
    assert "pixels" in opened.only.help


def test_references_point_down_as_well_as_up(open_model) -> None:  # decisions, Q3
    opened = open_model(graph("logits: {type: linear, out_features: 10, input: hidden}", FIRST))
    assert [node.name for node in opened.scope.nodes] == ["hidden", "logits"]


def test_a_cycle_is_shown_with_the_way_round(open_model) -> None:  # decisions, Q3
    text = graph(
        "a: {type: linear, out_features: 8, inputs: [c]}",
        "b: {type: relu}",
        "c: b + pixels",
        "logits: {type: linear, out_features: 10, input: a}",
    )
    opened = open_model(text)
    assert opened.codes == ["W006"]
    assert "`a` <- `c` <- `b` <- `a`" in opened.only.message
    assert [opened.under(each.span) for each in opened.only.related] == ["b", "relu"]


def test_fields_and_nodes_share_one_namespace(open_model) -> None:  # decisions, Q4
    opened = open_model(graph("pixels: {type: relu}", "logits: {type: linear, out_features: 10, input: pixels}"))
    assert ("W010", "pixels") in opened.said()


def test_a_block_sees_neither_fields_nor_outer_nodes_nor_vars(open_model) -> None:  # decisions, Q4
    text = """
blocks:
  inner:
    inputs: [x]
    graph:
      a: x + pixels
      b: a + hidden
      c: {type: linear, out_features: "{{ vars.width }}"}
    output: c
graph:
  hidden: {type: linear, out_features: 8, input: pixels}
  logits: {type: inner}
"""
    opened = open_model(text, vars={"width": 4})
    assert [(code, word) for code, word in opened.said() if code == "W001"] == [("W001", "pixels"), ("W001", "hidden")]
    assert "add an input" in opened.diagnostics[0].help or "sees only its nodes" in opened.diagnostics[0].help
    assert any(code.startswith("T") for code in opened.codes)


@pytest.mark.parametrize("name", ["Hidden", "hid-den", "2nd", "_x", "h.x"])
def test_names_are_lower_case_letters_digits_and_underscores(open_model, name: str) -> None:  # decisions, Q5
    opened = open_model(graph(FIRST, f"{name}: {{type: relu}}", LAST))
    assert ("B003", name) in opened.said()


def test_every_name_is_legal_in_an_expression(open_model) -> None:  # decisions, Q5
    text = graph("class: {type: relu, input: pixels}", "lambda: class * 2", "logits: lambda - mean")
    opened = open_model(text, fields=["pixels", "mean"])
    assert opened.node("logits").inputs == {"lambda": "lambda:output", "mean": "mean"}


def test_a_node_that_nobody_uses_is_an_error(open_model) -> None:  # decisions, Q7
    text = graph(FIRST, "spare: {type: relu}", "logits: {type: linear, out_features: 10, input: hidden}")
    assert open_model(text).said() == [("W007", "spare")]
    assert open_model(text, objective=["logits", "spare"]).codes == []


def test_only_the_end_of_a_dead_chain_is_told(open_model) -> None:
    last = "logits: {type: linear, out_features: 10, input: hidden}"
    opened = open_model(graph(FIRST, "a: {type: relu}", "b: {type: relu}", last))
    assert opened.said() == [("W007", "b")]


def test_nothing_is_dead_where_the_objective_or_a_node_could_not_be_read(open_model) -> None:
    assert open_model(graph(FIRST, LAST, "spare: {type: relu}"), objective=None).codes == []
    assert open_model(graph(FIRST, LAST), objective=["logit"]).codes == ["W001"]
    assert open_model(graph(FIRST, "a: {type: relu}", "b: {type: relou}", LAST)).codes == ["S005"]
    assert open_model(graph(FIRST, "a: {type: relu}", "logits: a +")).codes == ["E001"]


def test_an_unused_field_is_a_warning_and_an_unused_output_nothing(open_model) -> None:  # decisions, Q7
    from declarative_train.core.span import Span

    spans = {name: Span("model.yaml", 2, 3, 2, 9) for name in ("pixels", "spare")}
    opened = open_model(graph("lstm: {type: lstm, hidden_size: 4, input: pixels}", LAST), fields=spans)
    assert opened.codes == ["W008"]
    assert "`spare`" in opened.only.message
    assert opened.scope.inputs == ("pixels",)
    used_by_objective = open_model(graph(FIRST, LAST), fields=spans, objective=["logits", "spare"])
    assert used_by_objective.codes == []


def test_repeat_of_one_still_names_its_copy(open_model) -> None:  # decisions, Q8
    opened = open_model(graph(FIRST, "layers: {type: linear, out_features: 8, repeat: 1}", LAST))
    assert [node.name for node in opened.scope.nodes] == ["hidden", "layers.0", "logits"]
    assert opened.node("logits").inputs == {"x": "layers.0:output"}


@pytest.mark.parametrize(
    ("line", "code", "caret", "words"),
    [
        ("logits: {type: linear, out_features: 10, input: hiden}", "W001", "hiden", "no node or field `hiden`"),
        ("logits: {type: linear, out_features: 10, input: hidden.2}", "W013", "hidden.2", "not repeated"),
        ("logits: {type: linear, out_features: 10, input: hidden.cell}", "W003", "hidden.cell", "no output `cell`"),
        ("logits: {type: linear, out_features: 10, input: pixels.red}", "W003", "pixels.red", "is a field"),
        ("logits: {type: linear, out_features: 10, input: hidden * 2}", "W014", "hidden * 2", "not a reference"),
        ("logits: {type: linear, out_features: 10, input: [hidden]}", "W014", "[hidden]", "not a reference"),
        ("logits: {type: linear, out_features: 10, input: 3}", "W014", "3", "not a reference"),
        ("logits: {type: linear, out_features: 10, inputs: hidden}", "S003", "hidden", "one name"),
        ("logits: {type: linear, out_features: 10, inputs: {y: hidden}}", "W002", "y", "no input `y`"),
        ("logits: {type: linear, out_features: 10, inputs: [hidden, pixels]}", "W011", "pixels", "too many inputs"),
        ("logits: {type: linear, out_features: 10, inputs: {x: [hidden]}}", "ok", "", ""),
        ("logits: {type: linear, out_features: 10, inputs: {x: [hidden, pixels]}}", "S003", "x", "a list"),
        ("logits: hidden + hiden.3", "W001", "hiden.3", "no node or field `hiden`"),
        ("logits: hidden + hidden.mean", "W003", "hidden.mean", "no output `mean`"),
        ("logits: hidden + hidden.a.b.c", "W003", "hidden.a.b.c", "no output `a`"),
        ("logits: relu", "W001", "relu", "no node or field `relu`"),
    ],
)
def test_references_that_lead_nowhere(open_model, line: str, code: str, caret: str, words: str) -> None:
    opened = open_model(graph(FIRST, line))
    if code == "ok":
        assert opened.codes == []
        return
    assert opened.said()[0] == (code, caret)
    assert words in opened.diagnostics[0].message
    assert [c for c in opened.codes if c != "W007"] == [code]


def test_an_expression_in_the_place_of_a_name_is_shown_as_a_node(open_model) -> None:
    line = "logits: {type: linear, out_features: 10, input: 'hidden[:, :4]'}"
    hint = "make the expression a node, `NAME: hidden[:, :4]`, and refer to it"
    assert open_model(graph(FIRST, line)).diagnostics[0].help == hint


def test_a_bare_layer_type_offers_the_mapping(open_model) -> None:
    opened = open_model(graph(FIRST, "act: relu", LAST))
    assert opened.said() == [("W001", "relu")]
    assert opened.only.help == "for the layer write `{type: relu}`"


def test_a_wrong_name_inside_an_expression_has_its_own_caret(open_model) -> None:
    opened = open_model(graph(FIRST, 'logits: "2 * hidden + exp(pixel)"'))
    assert opened.said() == [("W001", "pixel")]


def test_variadic_ports_take_any_number(open_model) -> None:
    opened = open_model(graph(FIRST, "b: {type: relu}", "sum: {type: add, inputs: [hidden, b, pixels]}", LAST))
    assert opened.node("sum").inputs == {"x.0": "hidden:output", "x.1": "b:output", "x.2": "pixels"}
    named = open_model(graph(FIRST, "b: {type: relu}", "sum: {type: add, inputs: {x: [hidden, b]}}", LAST))
    assert named.node("sum").inputs == {"x.0": "hidden:output", "x.1": "b:output"}
    above = open_model(graph(FIRST, "sum: {type: add}", LAST))
    assert above.node("sum").inputs == {"x.0": "hidden:output"}


def test_the_place_of_each_wire_is_kept(open_model) -> None:
    text = graph(FIRST, "logits: {type: cross_attention, heads: 2, inputs: {context: pixels}}")
    opened = open_model(text)
    node = opened.node("logits")
    assert opened.under(node.input_spans["context"]) == "pixels"
    assert opened.under(node.input_spans["query"]) == "cross_attention"
    assert opened.under(node.key_span) == "logits"
    assert opened.under(node.field_spans["heads"]) == "2"


def test_wrong_references_of_the_objective_are_said_with_the_rest(open_model) -> None:
    opened = open_model(graph(FIRST, "b: {type: relou}", LAST), objective=["logits", "hiden", "a b"])
    assert sorted(opened.codes) == ["S005", "W001", "W014"]
