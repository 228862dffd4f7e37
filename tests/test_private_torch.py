"""Private interfaces of torch: those that the package uses are those of the table in torch-facts, section 10."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.house import PACKAGE, ROOT
from tests.test_map import FACTS

MOST_ROWS = 10
# of other libraries: documented methods of named tuples, and what transformers, fsspec, optuna and torchao name in no
# other way
OF_OTHERS = {
    *("_asdict", "_exit", "_make", "_replace"),
    *("_adjust_missing_and_unexpected_keys", "_attn_implementation", "_from_config", "_no_split_modules"),
    *("_find", "_strip_protocol", "_subclass_zeros", "_trial_id"),
}
# what modules and tensors of torch have, also where a class of the package has an attribute of that name
OF_TORCH = {*dir(nn.LSTM(1, 1)), *dir(torch.empty(0)), *dir(nn.Parameter())}
SETTINGS = ("torch.backends.", "torch.compiler.config.")  # which are there to be assigned


def is_private(name: str) -> bool:
    return name.startswith("_") and not (name.startswith("__") or name.strip("_") == "")


def trees() -> dict[Path, ast.Module]:
    return {path: ast.parse(path.read_text("utf-8")) for path in sorted(PACKAGE.rglob("*.py"))}


def own_names(found: dict[Path, ast.Module]) -> set[str]:
    """Names that the package itself defines, assigns or declares, whatever holds them."""
    names: set[str] = set()
    for node in (node for tree in found.values() for node in ast.walk(tree)):
        if isinstance(node, ast.Name):
            if isinstance(node.ctx, ast.Store):
                names.add(node.id)
        elif isinstance(node, ast.Attribute):
            if isinstance(node.ctx, ast.Store):
                names.add(node.attr)
        elif isinstance(node, ast.arg):
            names.add(node.arg)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
    return names


def torch_names(tree: ast.Module) -> dict[str, str]:
    """The names by which a module knows modules and members of torch -> what they are."""
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "torch":
                    found[alias.asname or "torch"] = alias.name if alias.asname else "torch"
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "torch":
            found |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return found


def whole_name(node: ast.expr, known: dict[str, str]) -> str | None:
    """The dotted name of what begins with a name of torch."""
    if isinstance(node, ast.Name):
        return known.get(node.id)
    if isinstance(node, ast.Attribute) and (before := whole_name(node.value, known)) is not None:
        return f"{before}.{node.attr}"
    return None


def private_torch(found: dict[Path, ast.Module]) -> Iterator[tuple[str, str]]:
    """(interface, place): private names of torch that are imported, or looked up below a name of torch; private
    attributes that nothing in the package has; and attributes of torch that are replaced."""
    own = own_names(found)
    for path, tree in found.items():
        known = torch_names(tree)
        nodes, file = list(ast.walk(tree)), path.relative_to(ROOT)
        inner = {id(node.value) for node in nodes if isinstance(node, ast.Attribute)}
        for node in nodes:
            place = f"{file}:{getattr(node, 'lineno', 0)}"
            if isinstance(node, ast.Import | ast.ImportFrom):
                begin = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
                for name in (f"{begin}{alias.name}" for alias in node.names):
                    if name.startswith("torch.") and any(map(is_private, name.split("."))):
                        yield name.rpartition(".")[2], place
            elif isinstance(node, ast.Attribute):
                name = whole_name(node, known)
                if name is not None and isinstance(node.ctx, ast.Store) and not name.startswith(SETTINGS):
                    yield f"{'.'.join(name.split('.')[-2:])} =", place
                elif name is not None and id(node) not in inner and any(map(is_private, name.split("."))):
                    yield [part for part in name.split(".") if is_private(part)][-1], place
                elif name is None and is_private(node.attr):
                    is_self = isinstance(node.value, ast.Name) and node.value.id == "self"
                    if node.attr not in own or (node.attr in OF_TORCH and not is_self):
                        yield node.attr, place
            elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("getattr", "hasattr"):
                asked = getattr(node.args[1], "value", "")
                if is_private(str(asked)) and (asked not in own or asked in OF_TORCH):
                    yield str(asked), place


def rows() -> list[list[str]]:
    """The table's rows, cell by cell."""
    table = [line for line in FACTS[FACTS.index("## 10. ") :].splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table[2:]]


def listed() -> Counter[str]:
    return Counter(name for row in rows() for name in re.findall(r"`([^`]+)`", row[0]))


def matches(name: str, entry: str) -> bool:
    """An entry names an interface, or by a `*` at its end all that begin so."""
    return name.startswith(entry[:-1]) if entry.endswith("*") else name == entry


@pytest.fixture(scope="module")
def private() -> list[tuple[str, str]]:
    return list(private_torch(trees()))


def test_every_private_interface_of_torch_is_in_the_table(private: list[tuple[str, str]]) -> None:
    entries = listed()
    unlisted = [
        (name, place)
        for name, place in private
        if name not in OF_OTHERS and not any(matches(name, entry) for entry in entries)
    ]
    assert not unlisted


def test_everything_in_the_table_is_used_and_stands_there_once(private: list[tuple[str, str]]) -> None:
    used = {name for name, _ in private}
    entries = listed()
    assert set(entries.values()) == {1}
    assert not [entry for entry in entries if not any(matches(name, entry) for name in used)]


def test_every_row_has_its_reasons_and_its_test() -> None:
    assert 0 < len(rows()) <= MOST_ROWS
    for row in rows():
        assert len(row) == 4
        assert all(row)
        named = re.findall(r"`([\w/]+\.py)::(\w+)`", row[3])
        assert named, row
        for path, test in named:
            assert re.search(rf"^def {test}\(", (ROOT / "tests" / path).read_text("utf-8"), re.MULTILINE), (path, test)


@pytest.mark.parametrize(
    ("code", "wanted"),
    [
        ("import torch\ntorch._C._get_tracing_state()", ["_get_tracing_state"]),
        ("from torch._dynamo import config", ["config"]),
        ("import torch._inductor", ["_inductor"]),
        ("def f(x):\n    return x._version", ["_version"]),
        ("def f(x):\n    return getattr(x, '_base', None)", ["_base"]),
        ("from torch import nn as layers\nlayers.Module.train = None", ["Module.train ="]),
        ("class A:\n    def __init__(self):\n        self._own = 1\n    def f(self, x):\n        return x._own", []),
        ("from torch import nn\nnn.Module.train", []),
    ],
)
def test_what_counts_as_private(code: str, wanted: list[str]) -> None:
    assert [name for name, _ in private_torch({PACKAGE / "made.py": ast.parse(code)})] == wanted
