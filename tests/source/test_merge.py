"""What `extends` does, exactly (docs/language-reference.md, "Putting recipes together")."""

from __future__ import annotations

import pytest

from declarative_train.core.diagnostics.diagnostic import Diagnostic
from declarative_train.source.merge import Merger, MergeRules, find_changed_orders
from declarative_train.source.node import Entry, Mapping, Node, Path, Scalar, find, to_value
from declarative_train.source.reader import read_text


def normalise(path: Path, node: Node) -> Node:
    if path == ("training", "precision") and isinstance(node, Scalar):
        return Mapping((Entry(Scalar("compute", "compute", node.span), node),), node.span)
    return node


def opened(path: Path, word: Scalar, over: Mapping) -> Mapping | None:
    """`fsdp` is `{shard: all}`."""
    if path != ("parallelism",) or word.value != "fsdp":
        return None
    return Mapping((Entry(Scalar("shard", "shard", word.span), Scalar("all", "all", word.span)),), word.span)


RULES = MergeRules(
    normalise=normalise,
    exclusive=(
        frozenset({("training", "epochs"), ("training", "steps")}),
        frozenset({("layout", "gpus"), ("layout", "nodes")}),
        frozenset({("layout", "gpus"), ("layout", "gpus_per_node")}),
        frozenset({("model", "graph", "*", "input"), ("model", "graph", "*", "inputs")}),
    ),
    default_type=lambda path: "tensor" if path[:2] == ("data", "fields") else None,
    opened=opened,
)


def tree(path: str, text: str) -> Mapping:
    node, diagnostics = read_text(path, text)
    assert node is not None
    assert not [d for d in diagnostics if d.code != "Y009"]
    expanded = RULES.expand(node)
    assert isinstance(expanded, Mapping)
    return expanded


def merge(*texts: str) -> tuple[Mapping, Merger]:
    merger = Merger(RULES)
    merged: Mapping | None = None
    for number, text in enumerate(texts):
        merged = merger.merge(merged, tree(f"{number}.yaml", text))
    assert merged is not None
    return merged, merger


def value(*texts: str) -> object:
    merged, merger = merge(*texts)
    assert not merger.diagnostics
    return to_value(merged)


def dropped(*texts: str) -> list[tuple[str, str, str, str]]:
    _, merger = merge(*texts)
    return [(".".join(map(str, d.path)), str(d.span), str(d.by), d.reason) for d in merger.dropped]


def the_one(*texts: str) -> Diagnostic:
    _, merger = merge(*texts)
    assert len(merger.diagnostics) == 1, merger.diagnostics
    return merger.diagnostics[0]


def test_mappings_merge_and_scalars_replace() -> None:
    assert value("a: {b: 1, c: 2}\n", "a: {c: 3, d: 4}\n") == {"a": {"b": 1, "c": 3, "d": 4}}
    assert dropped("a: {b: 1, c: 2}\n", "a: {c: 3, d: 4}\n") == [("a.c", "0.yaml:1:14", "1.yaml:1:8", "replaced")]


def test_lists_replace() -> None:
    assert value("a: [1, 2, 3]\n", "a: [4]\n") == {"a": (4,)}


def test_kinds_replace_each_other() -> None:
    assert value("a: 1\nb: {c: 1}\nd: [1]\n", "a: {x: 1}\nb: [2]\nd: 3\n") == {"a": {"x": 1}, "b": (2,), "d": 3}


def test_keys_keep_their_order_and_new_ones_go_to_the_end() -> None:
    merged, _ = merge("graph: {a: 1, b: 2, c: 3}\n", "graph: {new: 0, c: 5, a: 4}\n")
    graph = merged.get("graph")
    assert isinstance(graph, Mapping)
    assert [entry.name for entry in graph] == ["a", "b", "c", "new"]


def test_another_type_replaces_the_whole_mapping() -> None:
    base = "training:\n  optimizer: {type: adamw, lr: 1e-3, betas: [0.9, 0.95]}\n"
    assert value(base, "training: {optimizer: {type: lion, lr: 1e-4}}\n") == {
        "training": {"optimizer": {"type": "lion", "lr": 1e-4}}
    }
    assert dropped(base, "training: {optimizer: {type: lion, lr: 1e-4}}\n") == [
        ("training.optimizer", "0.yaml:2:14", "1.yaml:1:30", "another type")
    ]


def test_the_same_type_and_no_type_merge() -> None:
    base = "o: {type: adam, lr: 1, eps: 2}\n"
    assert value(base, "o: {type: adam, lr: 3}\n") == {"o": {"type": "adam", "lr": 3, "eps": 2}}
    assert value(base, "o: {lr: 3}\n") == {"o": {"type": "adam", "lr": 3, "eps": 2}}
    assert value("o: {lr: 1}\n", "o: {type: adam}\n") == {"o": {"lr": 1, "type": "adam"}}


def test_a_default_type_counts() -> None:
    base = "data: {fields: {x: {columns: p, scale: 2}}}\n"
    assert value(base, "data: {fields: {x: {type: category, column: c}}}\n") == {
        "data": {"fields": {"x": {"type": "category", "column": "c"}}}
    }
    same = value(base, "data: {fields: {x: {type: tensor, scale: 3}}}\n")
    assert same == {"data": {"fields": {"x": {"columns": "p", "scale": 3, "type": "tensor"}}}}


def test_a_mapping_opens_a_word_of_the_base_and_a_word_replaces_a_mapping() -> None:
    base = "parallelism: {pipeline: {stages: 4}}\n"
    assert value(base, "parallelism: ddp\n") == {"parallelism": "ddp"}
    assert value(base, "parallelism: {pipeline: {stages: 8}}\n") == {"parallelism": {"pipeline": {"stages": 8}}}
    assert value("parallelism: fsdp\n", "parallelism: {replicate: 2}\n") == {
        "parallelism": {"shard": "all", "replicate": 2}
    }
    assert value("parallelism: auto\n", "parallelism: {replicate: 2}\n") == {"parallelism": {"replicate": 2}}


def test_another_mode_is_no_other_type() -> None:
    base = "checkpoint: {best: {metric: m, mode: max}}\n"
    assert value(base, "checkpoint: {best: {mode: min}}\n") == {"checkpoint": {"best": {"metric": "m", "mode": "min"}}}


def test_short_forms_are_expanded_first() -> None:
    assert value("training: {precision: bf16}\n", "training: {precision: {matmul: tf32}}\n") == {
        "training": {"precision": {"compute": "bf16", "matmul": "tf32"}}
    }


def test_null_removes() -> None:
    base = "training: {clip_grad_norm: 1.0, epochs: 1}\n"
    assert value(base, "training: {clip_grad_norm: null}\n") == {"training": {"epochs": 1}}
    assert value(base, "training: ~\n") == {}
    assert dropped(base, "training: {clip_grad_norm: null}\n") == [
        ("training.clip_grad_norm", "0.yaml:1:28", "1.yaml:1:28", "removed")
    ]


@pytest.mark.parametrize(
    ("texts", "place", "help"),
    [
        (("a: {bcd: 1}\n", "a: {bce: null}\n"), "1.yaml:1:10", "did you mean `bcd`?"),
        (("a: {b: null}\n",), "0.yaml:1:8", "remove the key"),
        (("a: null\n",), "0.yaml:1:4", "remove the key"),
        (("a: 1\n", "x: {y: {z: ~}}\n"), "1.yaml:1:12", "remove the key"),
        (("o: {type: a, lr: 1}\n", "o: {type: b, lr: null}\n"), "1.yaml:1:18", "remove the key"),
        (("a: [{b: 1, c: null}]\n",), "0.yaml:1:15", "remove the key"),
    ],
)
def test_null_on_what_is_not_there(texts: tuple[str, ...], place: str, help: str) -> None:
    diagnostic = the_one(*texts)
    assert (diagnostic.code, str(diagnostic.span)) == ("M005", place)
    assert help in (diagnostic.help or "")
    assert "removes nothing" in diagnostic.message


def test_what_is_removed_twice_was_there_once() -> None:
    assert the_one("a: {b: 1}\n", "a: {b: null}\n", "a: {b: null}\n").code == "M005"


def test_nobody_checks_meta() -> None:
    assert value("meta: {owner: null}\n") == {"meta": {"owner": None}}
    assert value("meta: {owner: me, b: 1}\n", "meta: {owner: null}\n") == {"meta": {"b": 1}}


def test_a_null_in_a_list_is_left_to_the_schema() -> None:
    assert value("a: [1, null]\n") == {"a": (1, None)}


def test_an_empty_value_changes_nothing_of_the_base() -> None:
    assert value("a: {b: 1}\n", "a:\nc: 2\n") == {"a": {"b": 1}, "c": 2}


def test_alternatives_displace_each_other() -> None:
    assert value("training: {steps: 5, seed: 0}\n", "training: {epochs: 1}\n") == {"training": {"seed": 0, "epochs": 1}}
    assert dropped("training: {steps: 5}\n", "training: {epochs: 1}\n") == [
        ("training.steps", "0.yaml:1:19", "1.yaml:1:12", "alternative")
    ]
    assert value("layout: {nodes: 2, gpus_per_node: 8}\n", "layout: {gpus: 1}\n") == {"layout": {"gpus": 1}}
    assert value("layout: {gpus: 1}\n", "layout: {nodes: 2, gpus_per_node: 8}\n") == {
        "layout": {"nodes": 2, "gpus_per_node": 8}
    }


def test_alternatives_of_any_node() -> None:
    base = "model: {graph: {a: {type: add, inputs: [x, y]}}}\n"
    assert value(base, "model: {graph: {a: {input: z}}}\n") == {
        "model": {"graph": {"a": {"type": "add", "input": "z"}}}
    }


def test_both_alternatives_in_one_file_are_left_for_the_checks() -> None:
    assert value("training: {steps: 5}\n", "training: {epochs: 1, steps: 2}\n") == {
        "training": {"steps": 2, "epochs": 1}
    }


def test_a_null_alternative_displaces_nothing() -> None:
    assert value("training: {steps: 5, epochs: 1}\n", "training: {epochs: null}\n") == {"training": {"steps": 5}}
    assert value("training: {steps: 5}\n", "training: {steps: null, epochs: 1}\n") == {"training": {"epochs": 1}}


def test_every_value_keeps_its_file() -> None:
    merged, _ = merge("a: {b: 1, c: 2}\n", "a: {c: 3}\n")
    for path, name in ((("a", "b"), "0.yaml"), (("a", "c"), "1.yaml")):
        node = find(merged, path)
        assert node is not None
        assert node.span.path == name


def test_a_mapping_that_reaches_into_a_list() -> None:
    diagnostic = the_one("a: {b: [1, 2]}\n", 'a: {b: {"0": 5}}\n')
    assert (diagnostic.code, diagnostic.message) == ("M007", "`a.b` is a list; lists can only be replaced as a whole")
    merged, _ = merge("a: {b: [1, 2]}\n", 'a: {b: {"0": 5}}\n')
    assert to_value(merged) == {"a": {"b": (1, 2)}}


def test_orders_that_changed() -> None:
    base, _ = merge("graph: {a: 1, b: 2}\nother: {x: 1}\n")
    final, _ = merge("graph: {a: 1, b: 2}\nother: {x: 1}\n", "graph: {a: null, c: 3}\n")
    assert find_changed_orders(base, final) == {("graph",): ("a", "b")}
    same, _ = merge("graph: {a: 1, b: 2}\nother: {x: 1}\n", "graph: {a: 5}\n")
    assert find_changed_orders(base, same) == {}
