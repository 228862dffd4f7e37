"""Expressions: what is read, what is refused and where, what the calls compute, which dtype comes out."""

from __future__ import annotations

import pytest

from declarative_train.components.expressions.dtypes import promote, result_spec
from declarative_train.components.expressions.functions import FUNCTIONS, OPERATORS
from declarative_train.components.expressions.grammar import Expression, ExpressionError, parse
from declarative_train.core.tensor_spec import TensorSpec


def names(text: str) -> list[str]:
    return [name.text for name in parse(text).names]


def refused(text: str) -> ExpressionError:
    with pytest.raises(ExpressionError) as found:
        parse(text)
    return found.value


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("mu + exp(log_var / 2) * randn_like(mu)", ["mu", "log_var"]),
        ("sum(users * items, dim=-1)", ["users", "items"]),
        ("german != 0", ["german"]),
        ("tokens[:, 1:]", ["tokens"]),
        ("0.5 * student / 4", ["student"]),
        ("lstm.hidden[:, -1]", ["lstm.hidden"]),
        ("layers.3 + layers.3.output*.5", ["layers.3", "layers.3.output"]),
        ("mean(stages, dim=[2, 3])", ["stages"]),
        ("class + from * is", ["class", "from", "is"]),  # every name is legal: decisions, Q5
        ("-0.5 * sum(1 + log_var - mu ** 2 - exp(log_var), dim=-1)", ["log_var", "mu"]),
        ("(a > 0) & ~(b == 1) | c", ["a", "b", "c"]),
        ("q @ transpose(k, 1, 2)", ["q", "k"]),
        ("mean + mean(mean, dim=1)", ["mean"]),
        ("  a\n + b", ["a", "b"]),
    ],
)
def test_names_are_references_as_typed(text: str, expected: list[str]) -> None:
    assert names(text) == expected


def test_a_name_carries_its_first_place() -> None:
    text = "exp(b) + layers.3.output - b"
    assert [(name.text, name.offset) for name in parse(text).names] == [("b", 4), ("layers.3.output", 9)]


@pytest.mark.parametrize(
    ("text", "rule", "caret", "words"),
    [
        ("x +", "syntax", None, "not a valid expression"),
        ("x ? y", "syntax", "?", "`?` is not part"),
        ("x ^ 2", "syntax", "^", "not part"),
        ("x + 'a'", "syntax", "'", "not part"),
        ("(x + y", "syntax", "(", "not closed"),
        ("x + y)", "syntax", ")", "closes nothing"),
        ("a and b", "syntax", "and", "no `and`"),
        ("x if y else z", "syntax", "if", "no `if`"),
        ("[a for a in b]", "syntax", "for", "no `for`"),
        ("", "syntax", None, "empty"),
        ("x = y", "syntax", None, "not a valid expression"),
        ("exxp(x)", "function", "exxp", "no function `exxp`"),
        ("x.foo(1)", "function", "x.foo", "no function"),
        ("cumsum(x)", "arguments", "cumsum(x)", "needs `dim`"),
        ("softmax(x, dim=-1, axis=2)", "arguments", "2", "no argument `axis`"),
        ("softmax(x, 1, dim=2)", "arguments", "2", "twice"),
        ("exp(x, 2)", "arguments", "2", "at most 1"),
        ("exp(2)", "form", "exp(2)", "must use a node"),
        ("sigmoid(2)", "arguments", "2", "not a constant"),
        ("x + sqrt(-1)", "form", "sqrt(-1)", "cannot be computed"),
        ("x + sqrt(1, 2)", "arguments", "sqrt(1, 2)", "takes 1 argument"),
        ("x - (1, 2)", "form", "(1, 2)", "square brackets"),
        ("x - [1, y]", "form", "y", "only numbers"),
        ("x * []", "form", None, "1 to 4096 numbers"),
        ("x - -[1, 2]", "form", None, "a sign before a vector"),
        ("x + [1, 2] * 2", "form", None, "needs a tensor"),
        ("x @ [1, 2]", "arguments", None, "two tensors"),
        ("maximum(x, [y, 1])", "arguments", None, "only numbers"),
        ("where(m, 1, 2)", "ok", None, ""),
        ("sum(x, dim=0)", "batch", "0", "dimension 0 is the batch"),
        ("mean(x, dim=[1, 0])", "batch", "0", "dimension 0 is the batch"),
        ("transpose(x, 0, 1)", "batch", "0", "dimension 0"),
        ("permute(x, [1, 0])", "batch", "[1, 0]", "begins with the batch"),
        ("permute(x, 0, 2, 0)", "batch", "0, 2, 0", "begins with the batch"),
        ("permute(x, B, 2, 1)", "batch", "B", "the batch is 0"),
        ("permute(x, [2, 1])", "batch", "[2, 1]", "begins with the batch"),
        ("reshape(x, 4, 3)", "batch", "4, 3", "begins with the batch"),
        ("expand(x, -1, 3)", "batch", "-1, 3", "a -1 is a size"),
        ("permute(x, [0, 1, 1])", "arguments", "[0, 1, 1]", "once"),
        ("mean(x, dim=B)", "batch", "B", "the batch is 0"),
        ("one_hot(x, B)", "batch", "B", "the batch is 0"),
        ("reshape(x, 8, B)", "batch", "B", "begins with the batch"),
        ("reshape(x, -1, B)", "batch", "B", "begins with the batch"),
        ("reshape(x, [B, B, 4])", "batch", "B", "has it once"),
        ("reshape(x, B * 2, 4)", "batch", "B * 2", "cannot be used in arithmetic"),
        ("reshape(x, B, -1, -1)", "arguments", None, "one size of `reshape` may be -1"),
        ("reshape(x, B, 0)", "arguments", None, "sizes of 1 or more"),
        ("expand(x, 4, B, 4)", "batch", "B", "begins with the batch"),
        ("reshape(x, b, 4)", "arguments", "b", "whole number"),
        ("x[0]", "batch", "0", "cannot be indexed"),
        ("x[1:]", "batch", "1:", "cannot be indexed"),
        ("x[..., 0]", "batch", "...", "cannot be indexed"),
        ("x[:, i]", "form", "i", "whole numbers"),
        ("x[:, ::-1]", "form", "::-1", "step"),
        ("a < b < c", "form", "a < b < c", "chain"),
        ("(a, b)", "form", None, "list"),
        ("3 + 4", "form", "3 + 4", "must use a node"),
        ("x + 10 ** 99", "form", "10 ** 99", "constants"),
        ("x + 1 / 0", "form", "1 / 0", "computed"),
        ("x @ 2", "arguments", "x @ 2", "two tensors"),
        ("reshape(x, -1, -1)", "arguments", None, "may be -1"),
        ("sum(x, dim=1.5)", "arguments", "1.5", "whole number"),
        ("sum(x, dim=1, keepdim=1)", "arguments", "1", "`true` or `false`"),
        ("sum(x, y)", "arguments", "y", "whole number"),
        ("x \u00d7 y", "syntax", "\u00d7", "not part"),
        ("concat(dim=1)", "arguments", None, "at least one tensor"),
        ("3j * x", "form", "3j", "constants are numbers"),
        ("x + True", "ok", None, ""),
        ("a." + "b", "ok", None, ""),
        ("a. b", "syntax", ".", "dot"),
        ("x(1)(2)", "form", None, "only named functions"),
        ("exp(*x)", "form", "*x", "no `*`"),
    ],
)
def test_what_is_refused_and_where(text: str, rule: str, caret: str | None, words: str) -> None:
    if rule == "ok":
        parse(text)
        return
    error = refused(text)
    assert error.rule == rule
    assert words in error.message
    if caret is not None:
        assert text[error.offset : error.offset + error.length] == caret


@pytest.mark.parametrize("text", ["(" * 300 + "x" + ")" * 300, "-" * 3000 + "x", "+".join("x" * 900), "x" * 5000])
def test_bombs_are_refused_without_a_traceback(text: str) -> None:
    refused(text)


def test_sizes_may_be_given_as_a_list_or_one_by_one() -> None:
    one, two = parse("reshape(x, B, 4, -1)").root, parse("reshape(x, [B, 4, -1])").root
    assert one.options == two.options == {"shape": ("B", 4, -1)}  # type: ignore[union-attr]


def test_tables_are_sorted_and_name_what_exists() -> None:
    import importlib

    assert list(FUNCTIONS) == sorted(FUNCTIONS)
    assert list(OPERATORS) == sorted(OPERATORS)
    for function in [*FUNCTIONS.values(), *OPERATORS.values()]:
        module, _, attribute = function.target.rpartition(".")
        assert callable(getattr(importlib.import_module(module), attribute))


def test_randomness_is_known() -> None:
    assert parse("mu + randn_like(mu)").is_random
    assert not parse("mu + exp(mu)").is_random


CASES = {
    "mu + exp(log_var / 2) * 2": lambda t: t["mu"] + (t["log_var"] / 2).exp() * 2,
    "sum((mu - log_var) ** 2, dim=-1)": lambda t: ((t["mu"] - t["log_var"]) ** 2).sum(-1),
    "h.hidden[:, -1]": lambda t: t["h.hidden"][:, -1],
    "h.hidden[:, 1:, ..., None]": lambda t: t["h.hidden"][:, 1:, ..., None],
    "mean(h.hidden, dim=[1, 2], keepdim=true)": lambda t: t["h.hidden"].mean((1, 2), keepdim=True),
    "ids != 0": lambda t: t["ids"] != 0,
    "~(ids < 2) & (ids > 0)": lambda t: ~(t["ids"] < 2) & (t["ids"] > 0),
    "flatten(h.hidden)": lambda t: t["h.hidden"].flatten(1),
    "reshape(h.hidden, B, 4, 3)": lambda t: t["h.hidden"].reshape(-1, 4, 3),
    "expand(unsqueeze(mu, 1), B, 5, -1)": lambda t: t["mu"].unsqueeze(1).expand(-1, 5, -1),
    "concat(mu, log_var)": lambda t: __import__("torch").cat([t["mu"], t["log_var"]], -1),
    "stack([mu, log_var], dim=1)": lambda t: __import__("torch").stack([t["mu"], t["log_var"]], 1),
    "where(ids > 1, mu, 0.0)": lambda t: t["mu"].where(t["ids"] > 1, 0.0),
    "softmax(mu, dim=-1)": lambda t: t["mu"].softmax(-1),
    "clamp(mu, min=0)": lambda t: t["mu"].clamp(min=0),
    "max(mu, dim=1)": lambda t: t["mu"].amax(1),
    "argmax(mu, dim=-1)": lambda t: t["mu"].argmax(-1),
    "topk(mu, 2)": lambda t: t["mu"].topk(2).values,
    "topk_indices(h.hidden, k=2, dim=1)": lambda t: t["h.hidden"].topk(2, 1).indices,
    "norm(mu, dim=-1)": lambda t: t["mu"].norm(dim=-1),
    "one_hot(ids, num_classes=9)": lambda t: __import__("torch").nn.functional.one_hot(t["ids"], 9).float(),
    "permute(h.hidden, 0, 2, 1)": lambda t: t["h.hidden"].permute(0, 2, 1),
    "h.hidden @ transpose(h.hidden, 1, 2)": lambda t: t["h.hidden"] @ t["h.hidden"].mT,
    "float(ids) / 3": lambda t: t["ids"].float() / 3,
    "int(mu) % 2": lambda t: t["mu"].long() % 2,
    "gather(mu, ids, dim=1)": lambda t: t["mu"].gather(1, t["ids"]),
    "roll(mu, 1, -1)": lambda t: t["mu"].roll(1, -1),
    "flip(mu, 1)": lambda t: t["mu"].flip(1),
    "repeat_interleave(mu, 2, dim=1)": lambda t: t["mu"].repeat_interleave(2, 1),
    "var(mu, dim=1, correction=0)": lambda t: t["mu"].var(1, correction=0),
    "cumsum(ids, dim=1)": lambda t: t["ids"].cumsum(1),
    "prod(ids, 1)": lambda t: t["ids"].prod(1),
    "any(ids == 2, dim=1)": lambda t: (t["ids"] == 2).any(1),
    "masked_fill(mu, ids == 0, -1e9)": lambda t: t["mu"].masked_fill(t["ids"] == 0, -1e9),
    "2 ** ids // 3": lambda t: 2 ** t["ids"] // 3,
    "+mu - -log_var": lambda t: t["mu"] + t["log_var"],
    "mu - [0.5, 1, 2, -3]": lambda t: t["mu"] - __import__("torch").tensor([0.5, 1, 2, -3]),
    "[1, 2, 3, 4] * ids": lambda t: t["ids"] * __import__("torch").tensor([1, 2, 3, 4]),
    "ids / [1, 2, 4, 8]": lambda t: t["ids"] / __import__("torch").tensor([1, 2, 4, 8]),
    "image - [0.5, 0.25]": lambda t: t["image"] - __import__("torch").tensor([0.5, 0.25]).reshape(2, 1, 1),
    "where(mu > 0.5, mu, [1, 2, 3, 4])": lambda t: t["mu"].where(
        t["mu"] > 0.5, __import__("torch").tensor([1.0, 2, 3, 4])
    ),
    "maximum(mu, 0.5)": lambda t: t["mu"].clamp(min=0.5),
    "minimum(0.5, mu)": lambda t: t["mu"].clamp(max=0.5),
    "maximum(mu, [0, 0.5, 1, 2])": lambda t: t["mu"].maximum(__import__("torch").tensor([0, 0.5, 1, 2])),
    "mu / sqrt(32) + maximum(1, 2)": lambda t: t["mu"] / 32**0.5 + 2,
    "detach(mu) * (1 / 4)": lambda t: t["mu"] * 0.25,
}


@pytest.mark.parametrize("text", sorted(CASES))
def test_calls_compute_what_torch_computes_and_dtypes_are_known(text: str) -> None:
    import torch
    from torch import fx

    from declarative_train.components.expressions.lower import emit, infer

    torch.manual_seed(0)
    tensors = {
        "mu": torch.rand(7, 4),
        "log_var": torch.rand(7, 4),
        "h.hidden": torch.rand(7, 3, 4),
        "ids": torch.randint(0, 4, (7, 4)),
        "image": torch.rand(7, 2, 3, 4),
    }
    expression = parse(text)
    graph = fx.Graph()
    inputs = {name.text: graph.placeholder(f"input_{i}") for i, name in enumerate(expression.names)}
    graph.output(emit(expression, graph, inputs))
    module = fx.GraphModule(torch.nn.Module(), graph)
    result = module(*(tensors[name] for name in inputs))
    expected = CASES[text](tensors)
    assert result.dtype == expected.dtype
    assert torch.equal(result, expected)

    specs = {
        name: TensorSpec(tuple(t.shape[1:]), str(t.dtype).removeprefix("torch."), 4) for name, t in tensors.items()
    }  # type: ignore[arg-type]
    assert f"torch.{result_spec(expression, specs, ()).dtype}" == str(expected.dtype)
    for batch in (3, 5):
        probe = infer(expression, {name: t[:1].expand(batch, *t.shape[1:]).to("meta") for name, t in tensors.items()})
        assert tuple(probe.shape) == (batch, *expected.shape[1:])


def probe(text: str, **shapes: tuple[int, ...]) -> ExpressionError:
    import torch

    from declarative_train.components.expressions.lower import infer

    with pytest.raises(ExpressionError) as found:
        infer(parse(text), {name: torch.ones(shape) for name, shape in shapes.items()})
    return found.value


@pytest.mark.parametrize(
    "text", ["softmax(x)", "1 + cumsum(x, -1)", "roll(x, 1, -1)", "unsqueeze(x, -2)", "permute(x, 0, -1)"]
)
def test_a_negative_dim_that_reaches_the_batch_is_refused(text: str) -> None:
    assert probe(text, x=(3,)).rule == "batch"


def test_what_torch_refuses_is_said_at_the_operation() -> None:
    text = "1 + (x @ y) * 2"
    error = probe(text, x=(3, 4, 5), y=(3, 6, 7))
    assert error.rule == "shapes"
    assert text[error.offset : error.offset + error.length].strip("()") == "x @ y"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("v + v[:, :2]", "`+` does not take `v` (B, 8), (B, 2): sizes 8 and 2 of dimension 1 do not match"),
        ("v * u", "`*` does not take `v` (B, 8), `u` (B): sizes 8 and B of dimension 1 do not match"),
        ("m @ m[:, :, :3]", "`@` does not take `m` (B, 4, 5), (B, 4, 3): the last size of the first, 5, is not the "
         "second last of the second"),
        ("v @ v", "`@` does not take `v` (B, 8), `v` (B, 8): the second is not a matrix of each sample; "
         "`sum(x * y, dim=-1)` multiplies vectors"),
        ("sum(v, dim=2)", "`sum` does not take `v` (B, 8): it has no dimension 2, the only one is 1"),
        ("unsqueeze(v, 3)", "`unsqueeze` does not take `v` (B, 8): it has no dimension 3, they are 1 to 2"),
        ("sum(u, dim=1)", "`sum` does not take `u` (B): it has no dimension 1, there is the batch only"),
        ("permute(m, [0, 1])", "`permute` does not take `m` (B, 4, 5): name every dimension, the batch as 0"),
        ("squeeze(v)", "`squeeze` does not take `v` (B, 8): dimension -1 has size 8, not 1"),
        ("reshape(v, [B, 3, 3])", "`reshape` does not take `v` (B, 8): its 8 numbers per sample cannot be arranged "
         "as (B, 3, 3)"),
        ("topk(v, 9)", "`topk` does not take `v` (B, 8): dimension -1 has 8 values, of which there are no 9 greatest"),
        ("topk_indices(m, 5, dim=1)", "`topk_indices` does not take `m` (B, 4, 5): dimension 1 has 4 values, of which "
         "there are no 5 greatest"),
        ("topk(u, 1, dim=1)", "`topk` does not take `u` (B): it has no dimension 1, there is the batch only"),
        ("v[:, 8]", "this slice does not fit `v` (B, 8): there is no 8 in dimension 1, whose size is 8"),
        ("v[:, 0, 0]", "this slice does not fit `v` (B, 8): it has, without the batch, 1 dimension"),
        ("concat(m, m[:, :, :3], dim=1)", "`concat` does not take `m` (B, 4, 5), (B, 4, 3): they may differ in "
         "dimension 1 only"),
        ("concat(m, v, dim=1)", "`concat` does not take `m` (B, 4, 5), `v` (B, 8): they have different numbers of "
         "dimensions"),
        ("stack(v, v[:, :2], dim=1)", "`stack` does not take `v` (B, 8), (B, 2): their shapes must be equal"),
        ("v - [1, 2]", "a vector of 2 is along the last dimension, whose size is 8"),
        ("unsqueeze(m, 1) * [1, 2, 3] - [1, 2]", "a vector of 2 is along dimension 1, whose size is 3"),
        ("u - [1, 2]", "a tensor (B) has no channel dimension"),
        ("~v", "`~` does not take `v` (B, 8) float32"),
        ("v & v", "`&` does not take `v` (B, 8) float32, `v` (B, 8) float32"),
    ],
)  # fmt: skip
def test_what_torch_refuses_is_said_in_the_words_of_the_recipe(text: str, said: str) -> None:
    error = probe(text, v=(3, 8), u=(3,), m=(3, 4, 5))
    assert error.message == said
    assert (error.help is None) or "a vector is along" in error.help


def test_other_words_of_torch_are_kept_as_help() -> None:
    error = probe("clamp(v)", v=(3, 8))
    assert error.message == "`clamp` does not take `v` (B, 8)"
    assert error.help is not None
    assert error.help.startswith("torch says: ")


def test_ranges_travel_through_what_keeps_values() -> None:
    tokens = {"t": TensorSpec((9,), "int64", 256), "m": TensorSpec((9,), "bool"), "u": TensorSpec((9,), "int64")}

    def num_values(text: str) -> int | None:
        return result_spec(parse(text), tokens, ()).num_values

    assert num_values("t[:, 1:]") == 256
    assert num_values("where(m, t, 0)") == 256
    assert num_values("where(m, t, 300)") == 301
    assert num_values("concat(t, u)") is None
    assert num_values("t + 1") == 257
    assert num_values("t - 1") is None
    assert num_values("int(one_hot(t, 9))") == 2


def test_promotion_is_torchs() -> None:
    import torch

    dtypes = ["float64", "float32", "bfloat16", "float16", "int64", "int32", "int16", "int8", "uint8", "bool"]
    for a in dtypes:
        for b in dtypes:
            assert f"torch.{promote(a, b)}" == str(torch.promote_types(getattr(torch, a), getattr(torch, b)))
        for kind, number in (("integer", 2), ("number", 2.0)):
            assert f"torch.{promote(a, kind)}" == str((torch.zeros(2, dtype=getattr(torch, a)) + number).dtype)


def test_a_lone_name_is_told() -> None:
    expression: Expression = parse(" relu ")
    assert expression.lone_name == "relu"
    assert parse("x + 1").lone_name is None
