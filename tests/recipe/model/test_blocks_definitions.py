"""User-defined blocks: params, ports, outputs, nesting, rules, and what is refused where it is declared."""

from __future__ import annotations

import pytest

USE = """
graph:
  hidden: {type: block, input: pixels}
  logits: {type: linear, out_features: 10}
"""


def block(body: str, use: str = USE) -> str:
    lines = "".join(f"    {line}\n" for line in body.strip("\n").splitlines())
    return f"blocks:\n  block:\n{lines}{use.lstrip()}"


BODY = """
inputs: [x]
graph: {inner: {type: relu}}
output: inner
"""
ALL_READ = "relu, when: '{{ params == params }}'"  # a block that reads its params whole has none unread


def test_the_first_node_of_a_block_gets_its_first_input(open_model) -> None:  # decisions, Q2
    opened = open_model(block(BODY))
    assert opened.node("hidden.inner").inputs == {"x": "x"}
    assert opened.node("hidden").scope.inputs == ("x",)
    assert opened.node("hidden").scope.outputs == {"output": "inner:output"}
    assert opened.node("logits").inputs == {"x": "hidden:output"}


def test_the_default_gives_a_param_its_type(open_model) -> None:  # decisions, Q22
    body = "params: {width: 8, rate: 0.1, act: relu, bias: true, sizes: [1, 2]}\n" + BODY.replace("relu", ALL_READ)
    for key, value, words in [
        ("width", "x", "an integer"),
        ("width", "8.5", "an integer"),
        ("width", "true", "an integer"),
        ("rate", "x", "a number"),
        ("act", "3", "text"),
        ("bias", "1", "`true` or `false`"),
        ("sizes", "3", "a list"),
        ("sizes", "[a]", "an integer"),
    ]:
        opened = open_model(block(body, USE.replace("type: block", f"type: block, {key}: {value}")))
        assert opened.codes == ["S003"], (key, value)
        assert words in opened.only.message
        assert opened.under(opened.only.span).strip("[]") == value.strip("[]") or value == "3"
    for key, value in [("rate", "1"), ("sizes", "[]"), ("width", "16")]:
        assert open_model(block(body, USE.replace("type: block", f"type: block, {key}: {value}"))).codes == []


def test_a_param_without_default_is_required(open_model) -> None:  # decisions, Q22
    body = """
params: {width: {type: int, min: 1}}
inputs: [x]
graph: {a: {type: linear, out_features: "{{ params.width }}"}}
output: a
"""
    missing = open_model(block(body))
    assert missing.said() == [("S002", "block")]
    assert "`width`" in missing.only.message
    small = open_model(block(body, USE.replace("type: block", "type: block, width: 0")))
    assert small.said() == [("S004", "0")]
    fine = open_model(block(body, USE.replace("type: block", "type: block, width: 3")))
    assert fine.node("hidden.a").layer.out_features == 3


def test_choices_optional_params_and_defaults_over_other_params(open_model) -> None:
    body = """
params:
  width: 4
  kind: {type: str, choices: [relu, gelu], default: relu}
  last: {type: int, optional: true}
  wide: "{{ params.width * 4 }}"
inputs: [x]
graph:
  act: {type: "{{ params.kind }}"}
  up:  {type: linear, out_features: "{{ params.wide }}"}
  out: {type: linear, out_features: "{{ params.last }}", when: "{{ params.last is not none }}"}
output: out
"""
    opened = open_model(block(body))
    assert opened.node("hidden.up").layer.out_features == 16
    assert opened.node("hidden").scope.outputs == {"output": "up:output"}
    more = open_model(block(body, USE.replace("type: block", "type: block, width: 3, kind: gelu, last: 5")))
    assert more.node("hidden.up").layer.out_features == 12
    assert more.node("hidden.out").layer.out_features == 5
    assert open_model(block(body, USE.replace("type: block", "type: block, kind: silu"))).said() == [("S004", "silu")]


@pytest.mark.parametrize(
    ("params", "code", "words"),
    [
        ("{width: {type: integer}}", "S004", "`type` is `integer`"),
        ("{width: {type: int, mim: 1}}", "S001", "no key `mim`"),
        ("{width: {type: int, min: 3, default: 2}}", "S004", "at least 3"),
        ("{width: {type: int, default: x}}", "S003", "an integer"),
        ("{width: {min: 1, max: 3}}", "B009", "no `type`"),
        ("{width: {type: int, optional: true, default: 3}}", "B009", "is optional, and has a default"),
        ("{repeat: 3}", "B002", "which is reserved"),
        ("{Width: 3}", "B003", "cannot be named"),
        ("[width]", "S003", "a mapping of names"),
    ],
)
def test_params_that_cannot_be_understood(open_model, params: str, code: str, words: str) -> None:
    opened = open_model(block(f"params: {params}{BODY}"))
    assert opened.codes == [code]
    assert words in opened.only.message


@pytest.mark.parametrize(
    ("body", "code", "caret"),
    [
        ("inputs: [x]\ngraph: {a: {type: relu}}", "S002", "block"),
        ("graph: {a: {type: relu}}\noutput: a", "S002", "block"),
        ("inputs: [x]\noutput: a", "S002", "block"),
        ("inputs: [x]\ngraph: {}\noutput: a", "S004", "{}"),
        ("inputs: [x]\ngraph: [a]\noutput: a", "S003", "[a]"),
        ("inputs: []\ngraph: {a: {type: relu}}\noutput: a", "S004", "[]"),
        ("inputs: x\ngraph: {a: {type: relu}}\noutput: a", "S003", "x"),
        ("inputs: {x: needed}\ngraph: {a: {type: relu}}\noutput: a", "S004", "needed"),
        ("inputs: [x, x]\ngraph: {a: {type: relu}}\noutput: a", "S004", "x"),
        ("inputs: [when]\ngraph: {a: {type: relu}}\noutput: a", "B002", "when"),
        ("inputs: [x]\ngraph: {a: {type: relu}}\noutput: [a]", "S003", "[a]"),
        ("inputs: [x]\ngraph: {a: {type: relu}}\noutputs: a", "S003", "a"),
        ("inputs: [x]\ngraph: {a: {type: relu}}\noutputs: {a: a}\noutput: a", "S004", "outputs"),
        ("inputs: [x]\ngraph: {a: {type: relu}}\noutput: b", "W001", "b"),
        ("inputs: [x]\ngraph: {a: {type: relu}, x: {type: relu}}\noutput: a", "W010", "x"),
        ("inputs: [x]\ngraph: {a: {type: relu}, b: {type: relu, input: x}}\noutput: a", "W007", "b"),
        ("inputs: [x]\ngraph: {a: {type: relu}}\noutput: a\nouput: a", "S001", "ouput"),
        ("inputs: [x]\ngraph: {a: {type: relu}}\noutput: a\nparameters: [a]", "S003", "[a]"),
        ("inputs: [x]\nblocks: {}\ngraph: {a: {type: relu}}\noutput: a", "S001", "blocks"),
    ],
)
def test_blocks_that_are_refused_where_they_are_declared(open_model, body: str, code: str, caret: str) -> None:
    opened = open_model(block(body))
    assert opened.said() == [(code, caret)]


@pytest.mark.parametrize(("name", "code"), [("linear", "B001"), ("gpt", "B001"), ("reuse", "B001"), ("Mine", "B003")])
def test_a_block_may_not_shadow_a_type(open_model, name: str, code: str) -> None:  # decisions, Q6
    text = block(BODY).replace("  block:\n", f"  {name}:\n").replace("type: block", "type: relu")
    opened = open_model(text)
    assert opened.said() == [(code, name)]


def test_an_unused_block_is_nothing(open_model) -> None:  # decisions, Q7
    assert open_model(block(BODY).replace("type: block", "type: relu")).codes == []


def test_a_block_that_holds_itself_is_refused_with_the_chain(open_model) -> None:
    text = """
blocks:
  a: {inputs: [x], graph: {b: {type: b}}, output: b}
  b: {inputs: [x], graph: {c: {type: a}}, output: c}
graph:
  logits: {type: a, input: pixels}
"""
    opened = open_model(text)
    assert opened.codes == ["B004"]
    assert "`a` -> `b` -> `a`" in opened.only.message


def nested(num_levels: int, more: str = "") -> str:
    levels = "".join(
        f"  b{i}: {{inputs: [x], graph: {{c: {{type: b{i + 1}{more}}}}}, output: c}}\n" for i in range(num_levels)
    )
    last = f"  b{num_levels}: {{inputs: [x], graph: {{c: {{type: relu}}}}, output: c}}\n"
    return f"blocks:\n{levels}{last}graph:\n  logits: {{type: b0, input: pixels}}\n"


def test_exponential_nesting_is_refused(open_model) -> None:
    assert open_model(nested(9, ", repeat: 10")).codes == ["B008"]
    assert len(list(open_model(nested(3, ", repeat: 10")).nodes())) == 1 + 10 + 100 + 1000 + 1000


def test_deep_nesting_is_refused(open_model) -> None:
    assert open_model(nested(200)).codes == ["B008"]


OUTPUTS = """
inputs: {x: required, mask: optional}
outputs: {mean: mu, log_var: lv}
graph:
  attn: {type: self_attention, heads: 2, inputs: {mask: mask}}
  mu: {type: linear, out_features: 4, input: attn}
  lv: {type: linear, out_features: 4, input: attn}
"""


def test_outputs_by_name_the_first_is_the_default(open_model) -> None:
    use = "graph:\n  hidden: {type: block, input: pixels}\n  logits: hidden - hidden.log_var + hidden.mean\n"
    opened = open_model(block(OUTPUTS, use))
    assert opened.node("logits").inputs == {
        "hidden": "hidden:mean",
        "hidden.log_var": "hidden:log_var",
        "hidden.mean": "hidden:mean",
    }
    inner = open_model(block(OUTPUTS, use.replace("hidden.mean", "hidden.attn")))
    assert inner.said() == [("W003", "hidden.attn")]
    assert "outputs" in inner.only.help


def test_an_optional_input_may_stay_open_all_the_way_down(open_model) -> None:
    use = "graph:\n  hidden: {type: block, input: pixels}\n  logits: hidden\n"
    opened = open_model(block(OUTPUTS, use))
    assert opened.node("hidden.attn").inputs == {"x": "x"}
    assert opened.node("hidden").scope.inputs == ("x",)
    wired = open_model(
        block(OUTPUTS, use.replace("input: pixels", "inputs: {x: pixels, mask: keep}")), fields=["pixels", "keep"]
    )
    assert wired.node("hidden.attn").inputs == {"x": "x", "mask": "mask"}
    assert wired.node("hidden").scope.inputs == ("x", "mask")


@pytest.mark.parametrize("reader", ["out: x * mask", "out: {type: concat, inputs: [x, mask]}"])
def test_an_open_input_that_something_needs_is_an_error(open_model, reader: str) -> None:
    body = f"inputs: {{x: required, mask: optional}}\noutput: out\ngraph:\n  {reader}\n"
    opened = open_model(block(body))
    assert opened.said() == [("W012", "mask")]
    wired = open_model(block(body, USE.replace("input: pixels", "inputs: [pixels, pixels]")))
    assert wired.codes == []


def test_a_required_input_must_be_wired(open_model) -> None:
    opened = open_model(block(BODY.replace("[x]", "[x, y]").replace("{type: relu}", "x + y")))
    assert opened.said() == [("W005", "block")]
    assert "`y`" in opened.only.message


def test_blocks_use_blocks_and_every_mistake_is_said_once(open_model) -> None:
    text = """
blocks:
  inner: {inputs: [x], graph: {a: {type: linear, out_features: -1}}, output: a}
  outer: {inputs: [x], graph: {a: {type: inner, repeat: 3}, b: {type: inner}}, output: b}
graph:
  hidden: {type: outer, repeat: 2, input: pixels}
  logits: {type: inner}
"""
    assert open_model(text).said() == [("S004", "-1")]


def test_rules_of_blocks_come_inner_first_with_prefix_and_params(open_model) -> None:
    text = """
blocks:
  inner:
    params: {std: 0.1}
    inputs: [x]
    graph: {a: {type: linear, out_features: 4}}
    output: a
    parameters: {a.weight: {init: {type: normal, std: "{{ params.std }}"}}}
  outer:
    inputs: [x]
    graph: {one: {type: inner, std: 0.5}}
    output: one
    parameters: {one: {weight_decay: 0}}
graph:
  logits: {type: outer, repeat: 2, input: pixels}
"""
    rules = open_model(text).expanded.rules
    assert [(rule.prefix, rule.entries.entries[0].name) for rule in rules] == [
        ("logits.0.one", "a.weight"),
        ("logits.0", "one"),
        ("logits.1.one", "a.weight"),
        ("logits.1", "one"),
    ]
    assert rules[0].names == {"params": {"std": 0.5}}


def test_units_are_opened_down_to_the_outermost_repeat(open_model) -> None:  # decisions, Q8 and Q36
    text = """
blocks:
  inner: {inputs: [x], graph: {a: {type: relu, repeat: 2}}, output: a}
  body: {inputs: [x], graph: {embed: {type: relu}, layers: {type: inner, repeat: 2}}, output: layers}
graph:
  gpt: {type: body, input: pixels}
  logits: {type: linear, out_features: 10}
"""
    assert open_model(text).scope.units == ("gpt.layers.0", "gpt.layers.1")


def test_a_block_called_again_needs_the_same_inputs(open_model) -> None:
    use = """
graph:
  one: {type: block, input: pixels}
  two: {type: reuse, node: one, inputs: [one, pixels]}
  logits: two
"""
    opened = open_model(block(OUTPUTS, use))
    assert opened.codes == ["B007"]
    assert "`x`, `mask`" in opened.only.message
    fine = open_model(block(OUTPUTS, use.replace("inputs: [one, pixels]", "input: one")))
    assert fine.node("two").target == "one"


def test_an_unknown_key_on_a_node_lists_the_params(open_model) -> None:
    opened = open_model(
        block(
            "params: {width: 3}" + BODY.replace("relu", ALL_READ), USE.replace("type: block", "type: block, widht: 3")
        )
    )
    assert opened.said() == [("S001", "widht")]
    assert "did you mean `width`" in opened.only.help
