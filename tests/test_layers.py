"""The order of the packages, checked by reading the imports."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests.house import PACKAGE, circles, depth, files_of_base, import_graph, imports_at_load, imports_of, working_tree

# In the order of the table in docs/architecture.md: a package imports only packages before it.
ROOMS = (
    "core",
    "files",
    "source",
    "components",
    "recipe",
    "data",
    "graph",
    "plan",
    "engine",
    "planner",
    "run",
    "inference",
    "app",
    "packs",
    "tools",
)

LONG_MODULES_WITH_A_REASON = "Over 440 lines because"
TORCH_FOLDER = "modules"  # nn.Module classes: they must stand at the top of a module that imports torch, to be pickled


def imported_rooms(path: Path) -> set[str]:
    found: set[str] = set()
    for node in imports_of(path.read_text("utf-8")):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif node.module and not node.level:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        found |= {name.split(".")[1] for name in names if name.startswith("declarative_train.")}
    return found & set(ROOMS)


@pytest.mark.parametrize("room", ROOMS)
def test_a_package_imports_only_packages_below_it(room: str) -> None:
    files = sorted((PACKAGE / room).rglob("*.py"))
    assert files
    below = set(ROOMS[: ROOMS.index(room) + 1])
    wrong = {str(path.relative_to(PACKAGE)): sorted(extra) for path in files if (extra := imported_rooms(path) - below)}
    assert not wrong


def test_modules_import_each_other_in_no_circle() -> None:
    """Imports inside functions and for types count, too: put off is not taken away."""
    assert [sorted(found) for found in circles(import_graph(working_tree()))] == []


def test_few_modules_wait_for_each_other_at_load() -> None:
    """The longest chain of imports that run when a module is loaded. Move a type or function to the package that it
    belongs to, or join files that are read together; an import in a function is for a command that starts faster."""
    assert depth(import_graph(working_tree(), at_load=True)) <= 22


def test_imports_at_load_leave_out_functions_and_types() -> None:
    text = """
import a
if TYPE_CHECKING:
    import b
else:
    import c
try:
    import d
except ImportError:
    import e
class F:
    import f
    def method(self):
        import g
"""
    assert {alias.name for node in imports_at_load(text) for alias in node.names} == set("acdef")


@pytest.mark.parametrize(
    ("graph", "found", "longest"),
    [
        ({"a": {"b"}, "b": {"c"}, "c": set()}, [], 3),
        ({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}, [["a", "b", "c"]], 2),
    ],
)
def test_a_circle_is_found(graph: dict[str, set[str]], found: list[list[str]], longest: int) -> None:
    assert [sorted(each) for each in circles(graph)] == found
    assert depth(graph) == longest


def test_a_joined_file_is_the_base_s_and_a_new_one_is_not() -> None:
    base = {"a.py": "x = 1\n\ny = 2\n", "b.py": "z = 3\n"}
    later = {"ab.py": "x = 1\ny = 2\nz = 3\nw = 4\n", "new.py": "u = 5\nx = 1\nv = 6\n"}
    assert list(files_of_base(base, later)) == ["ab.py"]


def test_every_folder_is_a_room_and_no_import_is_relative() -> None:
    folders = {path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert folders == {*ROOMS, "blocks"}
    relative = [
        str(path)
        for path in PACKAGE.rglob("*.py")
        for node in imports_of(path.read_text("utf-8"))
        if isinstance(node, ast.ImportFrom) and node.level
    ]
    assert not relative


def test_rooms_of_static_lint_do_not_import_torch() -> None:
    """From the lowest on, so that the first which has it is the one that imports it."""
    rooms = {
        room: [
            ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
            for path in sorted((PACKAGE / room).rglob("*.py"))
            if path.name != "__init__.py" and path.parent.name != TORCH_FOLDER
        ]
        for room in ("core", "files", "source", "components", "recipe")
    }
    code = (
        f"import importlib, sys\nfor room, names in {rooms!r}.items():\n"
        "    for name in names: importlib.import_module(name)\n"
        "    heavy = {'torch', 'pyarrow'} & set(sys.modules)\n    assert not heavy, (room, heavy)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_torch_modules_of_components_are_imported_inside_functions() -> None:
    wrong = [
        f"{path.relative_to(PACKAGE)}:{node.lineno}"
        for path in (PACKAGE / "components").rglob("*.py")
        if path.parent.name != TORCH_FOLDER and f".{TORCH_FOLDER}" in (text := path.read_text("utf-8"))
        for node in ast.iter_child_nodes(ast.parse(text))
        if isinstance(node, ast.ImportFrom) and f".{TORCH_FOLDER}" in (node.module or "")
    ]
    assert not wrong


def test_static_lint_never_imports_torch() -> None:
    recipe = PACKAGE.parent / "recipes" / "digits_mlp_ddp2.yaml"
    code = (
        "import sys\nfrom declarative_train.__main__ import main\n"
        f"assert main(['lint', '--static', {str(recipe)!r}]) == 0\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_long_modules_say_why() -> None:
    silent = [
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if (text := path.read_text()).count("\n") > 440 and LONG_MODULES_WITH_A_REASON not in text[:1200]
    ]
    assert not silent
