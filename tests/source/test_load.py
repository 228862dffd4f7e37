"""`extends`, `--with` and `--set`, from files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from declarative_train.core.diagnostics.diagnostic import Diagnostic, Severity
from declarative_train.source import load
from declarative_train.source.checks.yaml_values import empty_file
from declarative_train.source.document import Document
from declarative_train.source.load import MAX_FILES
from declarative_train.source.merge import MergeRules
from declarative_train.source.node import to_value

RULES = MergeRules(exclusive=(frozenset({("training", "epochs"), ("training", "steps")}),))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / ".git").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(**files: str) -> None:
    for name, text in files.items():
        path = Path(name.replace("__", "/") + ".yaml")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def read(path: str = "recipe.yaml", **options: list[str]) -> tuple[Document | None, list[Diagnostic]]:
    return load(path, rules=RULES, **options)  # type: ignore[arg-type]


def value(path: str = "recipe.yaml", **options: list[str]) -> object:
    document, diagnostics = read(path, **options)
    assert not diagnostics
    assert document is not None
    assert document.complete
    return to_value(document.root)


def the_one(path: str = "recipe.yaml", **options: list[str]) -> Diagnostic:
    _, diagnostics = read(path, **options)
    assert len(diagnostics) == 1, diagnostics
    return diagnostics[0]


# --- extends --------------------------------------------------------------------------------------------------------


def test_bases_left_to_right_then_the_file() -> None:
    write(
        recipe="extends: [a.yaml, b.yaml]\nx: {three: 3}\n",
        a="x: {one: 1, two: 1, three: 1}\n",
        b="x: {two: 2, three: 2}\n",
    )
    assert value() == {"x": {"one": 1, "two": 2, "three": 3}}


def test_paths_are_relative_to_the_file_that_wrote_them() -> None:
    write(
        sub__recipe="extends: ../bases/a.yaml\n", bases__a="extends: deep/b.yaml\na: 1\n", bases__deep__b="a: 0\nb: 2\n"
    )
    document, diagnostics = read("sub/recipe.yaml")
    assert not diagnostics
    assert document is not None
    assert to_value(document.root) == {"a": 1, "b": 2}
    assert {(file.path, file.role) for file in document.files} == {
        ("sub/recipe.yaml", "recipe"),
        ("bases/a.yaml", "base"),
        ("bases/deep/b.yaml", "base"),
    }
    assert document.root.get("b").span.path == "bases/deep/b.yaml"  # type: ignore[union-attr]


def test_one_base_may_be_met_twice() -> None:
    write(recipe="extends: [a.yaml, b.yaml]\n", a="extends: c.yaml\na: 1\n", b="extends: c.yaml\nb: 1\n", c="c: 1\n")
    assert value() == {"c": 1, "a": 1, "b": 1}


def test_a_missing_base_is_said_where_it_is_named() -> None:
    write(recipe="name: x\nextends: bsae.yaml\na: 1\nb: null\n", base="b: 1\n")
    document, (diagnostic,) = read()
    assert (diagnostic.code, str(diagnostic.span)) == ("M001", "recipe.yaml:2:10")
    assert diagnostic.message == "`bsae.yaml` does not exist"
    assert diagnostic.help == "did you mean `base.yaml`?"
    assert document is not None
    assert not document.complete
    assert to_value(document.root) == {"name": "x", "a": 1}


def test_a_missing_base_in_another_folder_says_where_it_was_looked_for() -> None:
    write(sub__recipe="extends: more/nothing.yaml\n")
    assert "`sub/more/nothing.yaml` does not exist" in (the_one("sub/recipe.yaml").help or "")


def test_a_base_that_is_a_folder() -> None:
    write(recipe="extends: sub\n", sub__a="a: 1\n")
    assert the_one().message == "`sub` is a folder, not a file"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_base_that_may_not_be_read() -> None:
    write(recipe="extends: a.yaml\n", a="a: 1\n")
    Path("a.yaml").chmod(0)
    assert the_one().message == "`a.yaml` cannot be opened: permission denied"


def test_a_pipe_is_not_waited_for() -> None:
    os.mkfifo("pipe.yaml")
    write(recipe="extends: pipe.yaml\n")
    assert the_one().message == "`pipe.yaml` cannot be read: it is not an ordinary file"


def test_a_circle_is_said_once_with_its_way() -> None:
    write(recipe="extends: a.yaml\nx: 1\n", a="extends: b.yaml\n", b="extends: a.yaml\nb: 1\n")
    document, (diagnostic,) = read()
    assert (diagnostic.code, str(diagnostic.span)) == ("M002", "b.yaml:1:10")
    assert diagnostic.message == "`extends` is circular: `a.yaml` -> `b.yaml` -> `a.yaml`"
    assert document is not None
    assert not document.complete


def test_a_file_that_extends_itself() -> None:
    write(recipe="extends: ./recipe.yaml\n")
    assert the_one().code == "M002"


def test_a_bomb_of_bases_is_bounded() -> None:
    write(recipe="extends: [a0.yaml, a0.yaml]\n", a20="a: 1\n")
    write(**{f"a{n}": f"extends: [a{n + 1}.yaml, a{n + 1}.yaml]\n" for n in range(20)})
    _, diagnostics = read()
    assert {d.code for d in diagnostics} == {"M002"}
    assert f"more than {MAX_FILES} files" in diagnostics[0].message


@pytest.mark.parametrize(
    ("text", "code", "place"),
    [
        ("extends: {a: b}\n", "M003", "1:10"),
        ("extends: 5\n", "M003", "1:10"),
        ("extends: ''\n", "M003", "1:10"),
        ("extends: [a.yaml, [b.yaml]]\n", "M003", "1:19"),
        ('extends: "{{ env.BASE }}"\n', "M003", "1:10"),
        ("extends:\n", "Y009", "1:1"),
        ('extends: "a\\0b"\n', "M003", "1:10"),
    ],
)
def test_wrong_extends(text: str, code: str, place: str) -> None:
    write(recipe=text, a="a: 1\n")
    diagnostic = the_one()
    assert (diagnostic.code, f"{diagnostic.span.line}:{diagnostic.span.column}") == (code, place)


def test_an_error_in_a_base_stands_in_the_base() -> None:
    write(recipe="extends: a.yaml\n", a="b: 1\nb: 2\n")
    assert str(the_one().span) == "a.yaml:2:1"


def test_a_base_outside_the_tree_is_said_once(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / ".git").mkdir(parents=True)
    (tmp_path / "out.yaml").write_text("a: 1\n")
    (tree / "recipe.yaml").write_text("extends: [../out.yaml, ../out.yaml]\n")
    diagnostic = the_one(str(tree / "recipe.yaml"))
    assert (diagnostic.code, diagnostic.severity) == ("M004", Severity.WARNING)
    assert diagnostic.span.line == 1


@pytest.mark.parametrize(
    "text",
    [
        "root:x:0:0:root:/root:/bin/bash\n",  # no mapping, as /etc/passwd
        "token: s3cret\nroot:x\n",  # no YAML
        "- s3cret\n",
        "s3cret: 1\nof: another program\n",
        "a: s3cret\nb: \x07\n",
    ],
)
def test_a_file_outside_that_is_not_a_recipe_is_not_quoted(text: str, tmp_path: Path) -> None:
    """A recipe of a stranger may name any file of this machine."""
    tree = tmp_path / "tree"
    (tree / ".git").mkdir(parents=True)
    (tree / "recipe.yaml").write_text("extends: ../other.yaml\nseed: 1\n")
    (tmp_path / "other.yaml").write_text(text)
    rules = RULES._replace(foreign=lambda root: None if root.get("seed") else empty_file(root.span))
    _, (found,) = load(str(tree / "recipe.yaml"), rules=rules)
    assert (found.code, found.message, found.span.line) == ("M001", "`../other.yaml` is not a recipe", 1)
    assert not [each for each in found if "s3cret" in str(each) or "bash" in str(each)]


def test_a_link_out_of_the_tree_is_outside(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / ".git").mkdir(parents=True)
    (tmp_path / "out.yaml").write_text("a: 1\n")
    (tree / "in.yaml").symlink_to(tmp_path / "out.yaml")
    (tree / "recipe.yaml").write_text("extends: in.yaml\n")
    assert the_one(str(tree / "recipe.yaml")).code == "M004"


def test_a_sister_folder_of_the_repository_is_inside() -> None:
    write(teams__a__recipe="extends: ../../shared/base.yaml\n", shared__base="a: 1\n")
    assert value("teams/a/recipe.yaml") == {"a": 1}


def test_fragments() -> None:
    write(recipe="extends: part.yaml\nb: 1\n", part="fragment: true\na: 1\n")
    assert value() == {"a": 1, "b": 1}
    assert value("part.yaml") == {"fragment": True, "a": 1}


def test_the_order_of_the_base_is_kept_for_moved_wires() -> None:
    write(recipe="extends: a.yaml\nmodel: {graph: {x: null, z: 3}}\n", a="model: {graph: {x: 1, y: 2}}\n")
    document, _ = read()
    assert document is not None
    assert document.base_orders == {("model", "graph"): ("x", "y")}
    write(alone="model: {graph: {x: 1}}\n")
    document, _ = read("alone.yaml", set_=["model.graph.w=2"])
    assert document is not None
    assert document.base_orders == {("model", "graph"): ("x",)}


# --- the recipe itself ----------------------------------------------------------------------------------------------


def test_a_recipe_that_is_not_there() -> None:
    document, (diagnostic,) = read("nothing.yaml")
    assert document is None
    assert (diagnostic.code, diagnostic.message) == ("Y023", "`nothing.yaml` does not exist")


def test_a_text_that_is_no_yaml_can_still_be_quoted() -> None:
    write(recipe="a: [1\nb: 2\n")
    document, (diagnostic,) = read()
    assert diagnostic.code == "Y004"
    assert document is not None
    assert not document.complete
    assert document.root.entries == ()
    assert document.texts() == {"recipe.yaml": "a: [1\nb: 2\n"}


def test_a_text_stands_for_the_file() -> None:
    write(a="a: 1\n")
    document, diagnostics = load("<stdin>", text="extends: a.yaml\nb: 2\n", rules=RULES)
    assert not diagnostics
    assert document is not None
    assert to_value(document.root) == {"a": 1, "b": 2}
    assert document.texts()["<stdin>"] == "extends: a.yaml\nb: 2\n"


def test_bytes() -> None:
    Path("recipe.yaml").write_bytes("a: é\nb: Ren".encode() + b"\xe9\n")
    document, (diagnostic,) = read()
    assert (diagnostic.code, str(diagnostic.span)) == ("Y016", "recipe.yaml:2:7")
    assert diagnostic.message == "the byte 0xe9 is not UTF-8"
    assert document is not None
    Path("recipe.yaml").write_bytes("a: 1\n".encode("utf-16"))
    assert the_one().message == "the file is UTF-16; recipes are UTF-8"
    Path("recipe.yaml").write_bytes(b"\0\0\0\0\x01\0")
    assert the_one().code == "Y028"
    Path("recipe.yaml").write_bytes(b"a: " + b"x" * 6_000_000)
    assert the_one().message == "`recipe.yaml` is larger than 5 MB, which no recipe is"


def test_the_text_is_kept_to_the_byte() -> None:
    data = "\ufeffa: 1\r\nb: é\n".encode()
    Path("recipe.yaml").write_bytes(data)
    document, diagnostics = read()
    assert not diagnostics
    assert document is not None
    assert document.files[0].text.encode() == data
    assert len(document.files[0].sha256) == 64


# --- --with ---------------------------------------------------------------------------------------------------------


def test_with_comes_after_the_file() -> None:
    write(
        recipe="extends: base.yaml\na: 2\n",
        base="a: 1\nb: 1\n",
        pod="extends: pods.yaml\nfragment: true\na: 3\n",
        pods="c: 1\n",
    )
    assert value(with_=["pod.yaml"]) == {"a": 3, "b": 1, "c": 1}
    assert value(with_=["pod.yaml", "base.yaml"]) == {"a": 1, "b": 1, "c": 1}


def test_a_with_file_that_is_not_there() -> None:
    write(recipe="a: 1\n", pod="b: 1\n")
    document, (diagnostic,) = read(with_=["pot.yaml"])
    assert diagnostic.code == "M001"
    assert (diagnostic.span.path, diagnostic.span.column, diagnostic.span.end_column) == ("--with pot.yaml", 8, 16)
    assert diagnostic.help == "did you mean `pod.yaml`?"
    assert document is not None
    assert not document.complete


# --- --set ----------------------------------------------------------------------------------------------------------


def test_set() -> None:
    write(recipe="training: {steps: 5, optimizer: {type: adam, lr: 0.1}}\n")
    options = ["training.optimizer.lr=1e-4", "name=x", "a.b.c=[1, {d: 2}]", "quoted='1'", 'empty=""', "url=s3://a=b"]
    assert value(set_=options) == {
        "training": {"steps": 5, "optimizer": {"type": "adam", "lr": 1e-4}},
        "name": "x",
        "a": {"b": {"c": (1, {"d": 2})}},
        "quoted": "1",
        "empty": "",
        "url": "s3://a=b",
    }
    assert value(set_=["training.epochs=1"]) == {"training": {"optimizer": {"type": "adam", "lr": 0.1}, "epochs": 1}}
    assert value(set_=["training.optimizer.type=sgd"]) == {"training": {"steps": 5, "optimizer": {"type": "sgd"}}}
    assert value(set_=["training.optimizer=null"]) == {"training": {"steps": 5}}


def test_the_later_option_wins() -> None:
    write(recipe="a: 1\n")
    assert value(set_=["a=2", "a=3"]) == {"a": 3}


def test_spans_point_into_the_option() -> None:
    write(recipe="a: 1\n")
    document, _ = read(set_=["b.cc= 12"])
    assert document is not None
    node = document.find(("b", "cc"))
    assert node is not None
    option = "--set b.cc= 12"
    assert node.span.path == option
    assert option[node.span.column - 1 : node.span.end_column - 1] == "12"
    key = document.root.get("b").entries[0].key  # type: ignore[union-attr]
    assert option[key.span.column - 1 : key.span.end_column - 1] == "cc"
    assert document.texts()[option] == option


def test_names_with_dots_stand_in_quotes() -> None:
    write(recipe="a: 1\n")
    assert value(set_=['model.parameters."logits.weight".tie=embed.weight', "'x=y'=1"]) == {
        "a": 1,
        "model": {"parameters": {"logits.weight": {"tie": "embed.weight"}}},
        "x=y": 1,
    }


def test_templates_in_options_need_no_quotes() -> None:
    write(recipe="a: 1\n")
    assert value(set_=["a={{ vars.x['k'] }}"]) == {"a": "{{ vars.x['k'] }}"}


@pytest.mark.parametrize(
    ("option", "code", "words"),
    [
        ("a", "M006", "`a` is not a setting: a path and a value are required"),
        ("", "M006", "is not a setting"),
        ("=1", "M006", "the path has an empty part"),
        ("a..b=1", "M006", "the path has an empty part"),
        ("a.=1", "M006", "the path has an empty part"),
        ("'a=1", "M006", "is not a setting"),
        ("a=", "Y009", "`a` is set to nothing"),
        ("a.b=# no", "Y009", "`a.b` is set to nothing"),
        ("extends=x.yaml", "M003", "`--set` cannot change `extends`"),
        ("a=[1, 2", "Y004", "the `[` is not closed"),
        ("b=null", "M005", "`b: null` removes nothing"),
        ("list.0=5", "M007", "`list` is a list"),
    ],
)
def test_wrong_options(option: str, code: str, words: str) -> None:
    write(recipe="a: 1\nlist: [1]\n")
    diagnostic = the_one(set_=[option])
    assert diagnostic.code == code
    assert words in diagnostic.message
    assert diagnostic.span.path == f"--set {option}"
    assert diagnostic.span.column <= len(diagnostic.span.path) + 1


def test_dropped_values_say_who() -> None:
    write(recipe="extends: a.yaml\nx: 2\n", a="x: 1\n")
    document, _ = read(set_=["x=3"])
    assert document is not None
    assert [(d.path, str(d.span), str(d.by), d.reason) for d in document.dropped] == [
        (("x",), "a.yaml:1:4", "recipe.yaml:2:4", "replaced"),
        (("x",), "recipe.yaml:2:4", "--set x=3:1:9", "replaced"),
    ]


def test_everything_wrong_with_every_file_is_said() -> None:
    write(recipe="extends: [a.yaml, none.yaml]\nb: 010\n", a="c: 1\nc: 2\n")
    _, diagnostics = read(with_=["nothing.yaml"], set_=["d"])
    assert sorted(d.code for d in diagnostics) == ["M001", "M001", "M006", "Y003", "Y021"]
