"""Measures of plain English: docstrings that begin with a fragment, functions named by a participle, banned words.

python -m tests.english            the figures, and the folders with the most of each
python -m tests.english PATH...    each place in these files
python -m tests.english --draw N   40 random docstrings of the package (seed N), for a reader who does not know it
"""

from __future__ import annotations

import ast
import random
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "declarative_train"

# A docstring that begins with one of these has no subject and no verb.
FRAGMENTS = frozenset({
    "About", "After", "Alike", "All", "Also", "Among", "Any", "As", "At", "Because", "Before", "Behind", "Below",
    "Beside", "Between", "Both", "But", "By", "Each", "Either", "Every", "For", "From", "How", "If", "In",
    "Instead", "Into", "It", "Like", "More", "No", "None", "Nothing", "Of", "On", "Once", "One", "Only", "Or",
    "Other", "Out", "Over", "Per", "Several", "Since", "So", "Such", "That", "Their", "Then", "There", "These",
    "They", "Those", "Through", "To", "Too", "Under", "Until", "Up", "What", "Whatever", "When", "Where",
    "Wherever", "Whether", "Which", "While", "Who", "Whoever", "Whose", "Why", "With", "Within", "Without",
})  # fmt: skip
# A function does something: its docstring begins with a verb, not with an article.
ARTICLES = frozenset({"A", "An", "The", "Its", "This", "Some", "Two", "Three"})
IRREGULAR = frozenset({
    "begun", "borne", "bound", "bought", "broken", "brought", "built", "caught", "chosen", "done", "drawn",
    "driven", "fallen", "felt", "flown", "forgotten", "found", "given", "gone", "grown", "heard", "held", "hidden",
    "kept", "known", "laid", "lain", "left", "lent", "lost", "made", "meant", "met", "paid", "said", "seen", "sent",
    "shown", "sought", "spent", "spoken", "stood", "struck", "taken", "taught", "thought", "told", "torn",
    "understood", "won", "worn", "woven", "written",
})  # fmt: skip
NOT_PARTICIPLES = frozenset({"embed", "exceed", "feed", "need", "proceed", "seed", "shed", "speed", "succeed"})
BANNED = (
    "told", "foretell", "foretells", "foretold", "anew", "beside", "besides", "nobody", "whoever", "mend", "mends",
    "mended", "sooner", "held against", "stands in", "lies in", "once more", "as one types", "of today",
)  # fmt: skip
_WORDS = "|".join(BANNED).replace(" ", r"\s")
_BANNED = re.compile(rf"(?<![\w`-])(?:{_WORDS}|(?<!there\s)is\sno(?!\slonger))(?![\w`-])", re.IGNORECASE)


class Place(NamedTuple):
    path: str
    line: int
    text: str


class English(NamedTuple):
    docstrings: int
    fragments: list[Place]
    functions: int
    participles: list[Place]


@cache
def parse(text: str) -> ast.Module:
    return ast.parse(text)


def measure(texts: Mapping[str, str]) -> English:
    """Measure Python files. `texts`: dict from path to text."""
    docstrings, functions = 0, 0
    fragments: list[Place] = []
    participles: list[Place] = []
    for path, text in texts.items():
        for node in ast.walk(parse(text)):
            if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            line = getattr(node, "lineno", 1)
            if found := ast.get_docstring(node):
                docstrings += 1
                if _is_fragment(found, node):
                    fragments.append(Place(path, line, found.splitlines()[0]))
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                functions += 1
                if is_participle(node.name) and not _is_property(node):
                    participles.append(Place(path, line, node.name))
    return English(docstrings, fragments, functions, participles)


def _is_fragment(docstring: str, node: ast.AST) -> bool:
    first = docstring.split()[0].strip("`*,.:;()")
    if first in FRAGMENTS:
        return True
    is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    return is_function and first in ARTICLES and not _is_property(node)


def _is_property(node: ast.AST) -> bool:
    names = {ast.unparse(each).rpartition(".")[2] for each in getattr(node, "decorator_list", [])}
    return bool(names & {"property", "cached_property", "setter", "fixture"})


def is_participle(name: str) -> bool:
    """Return whether the name of a function begins with a participle: `loaded`, `_told`, `made_rows`."""
    first = name.strip("_").split("_")[0]
    if first in NOT_PARTICIPLES:
        return False
    return first in IRREGULAR or (first.endswith("ed") and len(first) > 4)


def find_banned(text: str) -> Iterator[tuple[int, str]]:
    """Yield (line number, word) for each banned word in a text."""
    for match in _BANNED.finditer(text):
        yield text.count("\n", 0, match.start()) + 1, " ".join(match[0].split())


def find_messages(text: str) -> Iterator[tuple[int, str]]:
    """Yield (line number, text) for each string in a Python file, except docstrings."""
    tree = parse(text)
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.lineno, node.value


def package_texts() -> dict[str, str]:
    """Return a dict from path to text, for every Python file of the package."""
    return {str(path.relative_to(ROOT)): path.read_text("utf-8") for path in sorted(PACKAGE.rglob("*.py"))}


def draw(texts: Mapping[str, str], seed: int, count: int = 40) -> list[Place]:
    """Return `count` random docstrings. The same seed gives the same ones."""
    found = [
        Place(path, getattr(node, "lineno", 1), f"{getattr(node, 'name', '')}\n{docstring}")
        for path, text in texts.items()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and (docstring := ast.get_docstring(node))
    ]
    return sorted(random.Random(seed).sample(found, count))


def main(paths: list[str]) -> int:
    """Print the figures of the package, the places in the given files, or random docstrings, and return the exit
    code."""
    if paths[:1] == ["--draw"]:
        for place in draw(package_texts(), int(paths[1])):
            print(f"{place.path}:{place.line}: {place.text}\n")
        return 0
    if paths:
        found = measure({path: Path(path).read_text("utf-8") for path in paths if path.endswith(".py")})
        for place in sorted([*found.fragments, *found.participles]):
            print(f"{place.path}:{place.line}: {place.text}")
        for path in paths:
            for line, word in find_banned(Path(path).read_text("utf-8")):
                print(f"{path}:{line}: banned: {word}")
        return 0
    found = measure(package_texts())
    for name, places, count in (
        ("fragments", found.fragments, found.docstrings),
        ("participles", found.participles, found.functions),
    ):
        print(f"{name:12} {len(places):5} of {count} ({len(places) / count:.1%})")
        most = Counter("/".join(place.path.split("/")[1:3]) for place in places).most_common(40)
        print("  ".join(f"{folder} {number}" for folder, number in most))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
