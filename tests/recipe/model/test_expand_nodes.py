"""repeat, when, reuse, templates, expressions, fields: how a node opens, and what is said when it does not."""

from __future__ import annotations

import pytest

from declarative_train.recipe.model.tree import ExpressionNode

FIRST = "hidden: {type: linear, out_features: 8, input: pixels}"
LAST = "logits: {type: linear, out_features: 10}"


def graph(*lines: str) -> str:
    return "graph:\n" + "".join(f"  {line}\n" for line in lines)


def test_copies_know_their_index(open_model) -> None:
    text = graph(FIRST, 'layers: {type: linear, out_features: "{{ 8 * 2 ** index }}", repeat: 3}', LAST)
    opened = open_model(text)
    assert [opened.node(f"layers.{i}").layer.out_features for i in range(3)] == [8, 16, 32]
    assert [opened.node(f"layers.{i}").inputs["x"] for i in range(3)] == [
        "hidden:output",
        "layers.0:output",
        "layers.1:output",
    ]
    assert opened.node("logits").inputs == {"x": "layers.2:output"}
    assert opened.scope.units == ("layers.0", "layers.1", "layers.2")


def test_a_copy_and_its_output_can_be_named(open_model) -> None:
    text = graph(
        "rnn: {type: lstm, hidden_size: 8, repeat: 3, input: pixels}",
        "state: rnn.1.hidden[:, -1]",
        "logits: {type: linear, out_features: 10, input: rnn.0}",
    )
    opened = open_model(text, objective=["logits", "state", "rnn", "rnn.2.hidden"])
    assert opened.node("state").inputs == {"rnn.1.hidden": "rnn.1:hidden"}
    assert opened.node("logits").inputs == {"x": "rnn.0:output"}
    assert opened.scope.outputs["rnn"] == "rnn.2:output"
    assert opened.scope.outputs["rnn.2.hidden"] == "rnn.2:hidden"


def test_repeat_may_come_from_a_template(open_model) -> None:
    text = graph('hidden: {type: linear, out_features: 8, input: pixels, repeat: "{{ vars.depth }}"}', LAST)
    assert len(open_model(text, vars={"depth": 5}).scope.nodes) == 6
    assert open_model(text, vars={"depth": "5"}).said() == [("B005", '"{{ vars.depth }}"')]


@pytest.mark.parametrize(
    ("repeat", "code"),
    [("0", "B005"), ("-1", "B005"), ("true", "B005"), ("two", "B005"), ("1.5", "B005"), ("1000000000", "B008")],
)
def test_repeat_is_a_number_of_copies(open_model, repeat: str, code: str) -> None:
    opened = open_model(graph(FIRST, f"layers: {{type: linear, out_features: 8, repeat: {repeat}}}", LAST))
    assert opened.said() == [(code, repeat)]


def test_a_mistake_in_every_copy_is_said_once(open_model) -> None:
    opened = open_model(graph(FIRST, "layers: {type: linear, out_features: -8, repeat: 30}", LAST))
    assert opened.said() == [("S004", "-8")]


def test_when_false_stands_for_the_first_input(open_model) -> None:
    text = graph(FIRST, 'act: {type: relu, when: "{{ vars.deep }}"}', "twice: act + act.output", LAST)
    assert open_model(text, vars={"deep": True}).node("twice").inputs["act"] == "act:output"
    off = open_model(text, vars={"deep": False})
    assert off.node("twice").inputs == {"act": "hidden:output", "act.output": "hidden:output"}
    assert [node.name for node in off.scope.nodes] == ["hidden", "twice", "logits"]


def test_nodes_that_are_off_stand_for_each_other(open_model) -> None:
    text = graph(FIRST, "a: {type: relu, when: false}", "b: {type: relu, when: false}", LAST)
    opened = open_model(text, objective=["logits", "b"])
    assert opened.node("logits").inputs == {"x": "hidden:output"}
    assert opened.scope.outputs["b"] == "hidden:output"


def test_what_only_a_node_that_is_off_would_read_is_left_out(open_model) -> None:
    text = graph(
        "memory: {type: linear, out_features: 8, input: pixels}",
        FIRST,
        "cross: {type: cross_attention, heads: 2, inputs: {context: memory}, when: false}",
        LAST,
    )
    opened = open_model(text)
    assert opened.codes == []
    assert [node.name for node in opened.scope.nodes] == ["hidden", "logits"]


def test_a_node_that_is_off_has_no_other_outputs_nor_copies(open_model) -> None:
    opened = open_model(graph("rnn: {type: lstm, hidden_size: 8, input: pixels, when: false}", "logits: rnn.hidden"))
    assert opened.said() == [("W003", "rnn.hidden")]
    copies = open_model(graph("rnn: {type: relu, repeat: 2, input: pixels, when: false}", "logits: rnn.1 + rnn"))
    assert copies.said() == [("W003", "rnn.1")]


def test_when_is_true_or_false(open_model) -> None:
    assert open_model(graph(FIRST, "act: {type: relu, when: no}", LAST)).said() == [("B006", "no")]


def test_reuse_calls_a_node_again(open_model) -> None:
    text = graph(
        "left: {type: linear, out_features: 8, input: a}",
        "right: {type: reuse, node: left, input: b}",
        "again: {type: reuse, node: right}",
        "logits: left * again",
    )
    opened = open_model(text, fields=["a", "b"])
    assert (opened.node("right").target, opened.node("again").target) == ("left", "left")
    assert opened.node("again").inputs == {"x": "right:output"}
    assert opened.scope.units == ("left",)


def test_a_parameter_that_is_called_again_counts_the_same_samples(open_model) -> None:
    own, again = "own: {type: parameter, shape: [10]}", "again: {type: reuse, node: own}"
    opened = open_model(graph(FIRST, own, again, "scores: hidden + own * again", LAST))
    assert opened.node("again").inputs == opened.node("own").inputs == {"x": "pixels"}


def test_a_repeated_reuse_shares_its_parameters(open_model) -> None:
    opened = open_model(graph(FIRST, "more: {type: reuse, node: hidden, repeat: 2}", LAST))
    assert opened.node("more.1").target == "hidden"
    assert opened.node("more.1").inputs == {"x": "more.0:output"}


def test_reuse_of_one_copy(open_model) -> None:
    text = graph(FIRST, "layers: {type: relu, repeat: 3}", "again: {type: reuse, node: layers.1}", LAST)
    assert open_model(text).node("again").target == "layers.1"


@pytest.mark.parametrize(
    ("line", "code", "caret", "words"),
    [
        ("again: {type: reuse, node: hiden}", "B007", "hiden", "no node `hiden`"),
        ("again: {type: reuse, node: pixels}", "B007", "pixels", "no node `pixels`"),
        ("again: {type: reuse, node: double}", "B007", "double", "is an expression"),
        ("again: {type: reuse, node: hidden.output}", "B007", "hidden.output", "not a node"),
        ("again: {type: reuse, node: many}", "B007", "many", "2 nodes in a chain"),
        ("again: {type: reuse, node: many.2}", "W013", "many.2", "2 copies"),
        ("again: {type: reuse, node: hidden.0}", "W013", "hidden.0", "not repeated"),
        ("again: {type: reuse, node: again}", "B007", "again", "refer to each other"),
        ("again: {type: reuse}", "S002", "reuse", "`reuse` needs `node`"),
        ("again: {type: reuse, node: hidden, out_features: 3}", "S001", "out_features", "`reuse` has no key"),
    ],
)
def test_what_cannot_be_reused(open_model, line: str, code: str, caret: str, words: str) -> None:
    text = graph(FIRST, "double: hidden * 2", "many: {type: relu, repeat: 2}", line, LAST)
    opened = open_model(text)
    assert opened.said() == [(code, caret)]
    assert words in opened.only.message


def test_all_mistakes_of_a_graph_are_said_at_once(open_model) -> None:
    text = graph(
        "a: {type: linear, out_featurs: 8, input: pixels}",
        "b: {type: rely}",
        "c: 3",
        'd: {type: dropout, p: "{{ vars.rate }}"}',
        "e: exp(a, 2) + b",
        "f: {type: linear, out_features: many, input: nowhere}",
        "logits: f",
    )
    opened = open_model(text)
    assert sorted(opened.said()) == [
        ("B010", "3"),
        ("E004", "2"),
        ("S001", "out_featurs"),
        ("S003", "many"),
        ("S005", "rely"),
        ("T002", "rate"),
        ("W001", "nowhere"),
    ]


@pytest.mark.parametrize(
    ("line", "code", "caret"),
    [
        ("logits: hidden +", "E001", None),
        ("logits: exp(hidden", "E001", "("),
        ("logits: 3 + 4", "E002", None),
        ("logits: hidden[:, i]", "E002", "i"),
        ("logits: softmx(hidden, dim=-1)", "E003", "softmx"),
        ("logits: cumsum(hidden)", "E004", "cumsum(hidden)"),
        ("logits: mean(hidden, dim=0)", "E005", "0"),
        ("logits: '  hidden[0]'", "E005", "0"),
    ],
)
def test_mistakes_in_expressions_have_their_place(open_model, line: str, code: str, caret: str | None) -> None:
    opened = open_model(graph(FIRST, line))
    assert [c for c in opened.codes if c != "W007"] == [code]
    if caret is not None:
        assert opened.said()[0] == (code, caret)


def test_templates_come_first_in_an_expression(open_model) -> None:
    opened = open_model(graph(FIRST, 'logits: "{{ vars.alpha }} * hidden / 4"'), vars={"alpha": 0.5})
    node = opened.node("logits")
    assert isinstance(node, ExpressionNode)
    assert node.expression.text == "0.5 * hidden / 4"
    assert opened.under(node.place(6, 6)) == '"{{ vars.alpha }} * hidden / 4"'
    wrong = open_model(graph(FIRST, 'logits: "{{ vars.alpha }} * hiden / 4"'), vars={"alpha": 0.5})
    assert wrong.said()[0] == ("W001", '"{{ vars.alpha }} * hiden / 4"')


def test_a_template_that_is_no_text_is_no_expression(open_model) -> None:
    opened = open_model(graph(FIRST, 'logits: "{{ vars.alpha }}"'), vars={"alpha": 3})
    assert "B010" in opened.codes


def test_the_type_may_be_a_template(open_model) -> None:  # decisions, Q21
    text = graph(FIRST, 'act: {type: "{{ vars.act }}"}', LAST)
    assert open_model(text, vars={"act": "gelu"}).node("act").layer.type == "gelu"
    opened = open_model(text, vars={"act": "gelo"})
    assert opened.codes == ["S005"]
    assert "did you mean `gelu`" in opened.only.help


def test_a_node_is_a_mapping_or_an_expression(open_model) -> None:
    opened = open_model(graph(FIRST, "a: 3", "b: [hidden]", "c: {out_features: 3}", "d: {type: 3}", LAST))
    assert opened.said() == [("B010", "3"), ("B010", "[hidden]"), ("S002", "c"), ("S003", "3")]


def test_one_lone_layer_has_itself_as_unit(open_model) -> None:
    opened = open_model(graph("logits: {type: linear, out_features: 10, input: pixels}"))
    assert opened.scope.units == ("logits",)


def test_a_model_of_many_nodes_opens_quickly(open_model) -> None:
    from time import perf_counter

    begin = perf_counter()
    opened = open_model(graph("gpt: {type: gpt, vocabulary: 50257, layers: 200, input: pixels}"), objective=["gpt"])
    assert len(list(opened.nodes())) == 200 * 9 + 5
    assert perf_counter() - begin < 3
