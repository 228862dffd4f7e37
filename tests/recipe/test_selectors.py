"""Parameter selectors: which names they mean, what they set, and what is wrong with them."""

from __future__ import annotations

import pytest

from declarative_train.core.diagnostics.diagnostic import Diagnostic
from declarative_train.recipe.model.selectors import (
    ParameterRule,
    check_rules,
    compile_selector,
    parse_rules,
    settings_of,
)
from declarative_train.source.reader import read_text
from declarative_train.source.template import Templates

NAMES = (
    "embed.weight",
    "vit.layers.0.attn.weight",
    "vit.layers.0.norm1.weight",
    "vit.layers.7.attn.bias",
    "vit.layers.11.attn.weight",
    "layers.3.norm.weight",
    "logits.weight",
)


def rules(text: str, prefix: str = "", **names: object) -> tuple[tuple[ParameterRule, ...], list[Diagnostic]]:
    node, found = read_text("r.yaml", text)
    assert node is not None, found
    return parse_rules(node, prefix, Templates(), {"vars": {}, "env": {}, **names})


def good(text: str, prefix: str = "", **names: object) -> tuple[ParameterRule, ...]:
    found, wrong = rules(text, prefix, **names)
    assert wrong == []
    return found


@pytest.mark.parametrize(
    ("selector", "meant"),
    [
        ("vit", [1, 2, 3, 4]),  # without a dot: that name at any depth, and all below
        ("layers", [1, 2, 3, 4, 5]),
        ("norm*", [2, 5]),
        ("bias", [3]),
        ("weight", [0, 1, 2, 4, 5, 6]),
        ("*", [0, 1, 2, 3, 4, 5, 6]),
        ("{embed,logits}", [0, 6]),
        ("vit.layers.{0..7}", [1, 2, 3]),  # with a dot: from the root
        ("vit.layers.{8..11}.attn", [4]),
        ("layers.3", [5]),
        ("vit.*.0", [1, 2]),
        ("attn.weight", []),
        ("vit.layers.*.{attn,norm1}.weight", [1, 2, 4]),
        ("logits.weight", [6]),
        ("logit", []),
        ("vit.layers.1", []),  # 11 is another name
    ],
)
def test_which_names(selector: str, meant: list[int]) -> None:
    pattern = compile_selector(selector)
    assert [i for i, name in enumerate(NAMES) if pattern.match(name)] == meant


@pytest.mark.parametrize(
    "selector", ["", ".a", "a.", "a..b", "a.{3..1}", "a.{", "a b", "a.{0..100000}", "a.b-c", "{a.b}"]
)
def test_what_is_not_a_selector(selector: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        compile_selector(selector)


def test_later_entries_win_key_by_key() -> None:
    found = good('"*": {lr_scale: 0.5, weight_decay: 0.1}\nnorm*: {weight_decay: 0}\nlogits.weight: {lr_scale: 2}\n')
    assert settings_of(found, "vit.layers.0.norm1.weight").model_dump(exclude_none=True) == {
        "lr_scale": 0.5,
        "weight_decay": 0.0,
    }
    assert settings_of(found, "logits.weight").lr_scale == 2
    assert settings_of(found, "logits.weight").weight_decay == 0.1


def test_every_key() -> None:
    found = good(
        "embed: {frozen: true, init: {type: normal, std: 0.02}, optimizer: {type: sgd, lr: 0.1}}\n"
        "logits.weight: {tie: embed.weight}\n"
    )
    settings = settings_of(found, "embed.weight")
    assert settings.frozen is True
    assert settings.init is not None
    assert settings.init.type == "normal"
    assert settings.optimizer is not None
    assert settings.optimizer.type == "sgd"
    assert settings_of(found, "logits.weight").tie == "embed.weight"


def test_frozen_can_be_taken_back() -> None:
    found = good("vit: {frozen: true}\nvit.layers.11: {frozen: false}\n")
    assert settings_of(found, "vit.layers.11.attn.weight").frozen is False
    assert settings_of(found, "vit.layers.7.attn.bias").frozen is True


def test_a_blocks_own_rules_begin_at_the_block() -> None:
    (norm, tie) = good("norm.weight: {weight_decay: 0}\nhead.weight: {tie: embed.weight}\n", "gpt.layers.2")
    assert norm.match("gpt.layers.2.norm.weight") is not None
    assert norm.match("gpt.layers.20.norm.weight") is None
    assert norm.match("norm.weight") is None
    found = tie.match("gpt.layers.2.head.weight")
    assert found is not None
    assert found.tie == "gpt.layers.2.embed.weight"


@pytest.mark.parametrize("selector", ["vit.layers.*", "layers", "vit.layers", "vit.layers.{0..11}.attn"])
def test_index_is_the_copy_that_the_selector_passes(selector: str) -> None:
    (rule,) = good(f'"{selector}": {{lr_scale: "{{{{ 0.5 ** (11 - index) }}}}"}}\n')
    found = rule.match("vit.layers.11.attn.weight")
    assert found is not None
    assert found.lr_scale == 1.0
    found = rule.match("vit.layers.7.attn.bias")
    assert found is not None
    assert found.lr_scale == 0.5**4


def test_index_where_no_copy_is_passed_is_told_late() -> None:
    (rule,) = good('embed: {lr_scale: "{{ 0.5 ** index }}"}\n')
    (problem,) = check_rules((rule,), NAMES)
    assert problem.code.startswith("T")
    assert rule.match("embed.weight") is None


def test_params_of_a_block_in_its_rules() -> None:
    (rule,) = good('weight: {init: {type: normal, std: "{{ params.std }}"}}\n', "gpt", params={"std": 0.5})
    found = rule.match("gpt.embed.weight")
    assert found is not None
    assert found.init is not None
    assert found.init.std == 0.5  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        ("a.{3..0}: {frozen: true}", "U001", "counts down"),
        ("embed: {freeze: true}", "S001", "has no key `freeze`"),
        ("embed: {frozen: 1}", "S003", "`frozen` is 1"),
        ("embed: {lr_scale: -1}", "S004", "at least 0"),
        ("embed: {init: normal}", "S003", "expected a mapping with a `type`"),
        ("embed: {init: {type: norml}}", "S005", "there is no init `norml`"),
        ("embed: true", "S003", "expected a mapping"),
        ('embed: {lr_scale: "{{ vars.x }}"}', "T002", "`vars` has no `x`"),
        ('layers: {lr_scale: "{{ index - 1 }}"}', "S004", "at least 0"),
    ],
)
def test_what_is_wrong_is_told_at_once(text: str, code: str, words: str) -> None:
    found, (problem,) = rules(text + "\n")
    assert found == ()
    assert problem.code == code
    assert words in problem.message


@pytest.mark.parametrize(
    ("selector", "way_out"),
    [
        ("embd", "did you mean `embed`?"),
        ("vit.layer.0", "did you mean `vit.layers.0`?"),
        ("attn.weight", "starts at the root: `vit.layers.0.attn.weight`"),
        ("zzz", "the parameters are embed.weight, "),
    ],
)
def test_no_match_is_an_error(selector: str, way_out: str) -> None:
    (problem,) = check_rules(good(f"{selector}: {{frozen: true}}\n"), NAMES)
    assert problem.code == "U002"
    assert problem.message == f"no parameter matches `{selector}`"
    assert problem.help is not None
    assert way_out in problem.help
    assert (problem.span.line, problem.span.column) == (1, 1)


def test_matching_rules_are_silent() -> None:
    assert list(check_rules(good("vit: {frozen: true}\nlogits.weight: {tie: embed.weight}\n"), NAMES)) == []
