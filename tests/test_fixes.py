"""`--fix` on broken recipes: what was meant comes back to the byte, or nothing is touched; it ends, and breaks nothing.

python -m tests.test_fixes 20000 [FIRST]    any number of slips, from seed FIRST on
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

from declarative_train import recipe
from declarative_train.app.api.compiling import STATIC
from declarative_train.core.diagnostics.diagnostic import Diagnostic
from declarative_train.core.diagnostics.fixes import apply_fixes, fix_until_stable, locate_fixes
from declarative_train.core.diagnostics.lines import Lines
from declarative_train.core.diagnostics.suppress import suppress
from declarative_train.source.node import Mapping as MappingNode
from declarative_train.source.node import Node, Scalar, Sequence
from declarative_train.source.reader import read_text
from tests.fuzz import SEEDS
from tests.linted import CASES
from tests.mutations import mutate

LETTERS = "abcdefghijklmnopqrstuvwxyz_"


def found_in(path: Path, text: str) -> list[Diagnostic]:
    loaded = recipe.load(str(path), text=text)
    return suppress(locate_fixes(loaded.diagnostics, {str(path): text}), {str(path): text}, checked=STATIC)


def mended(path: Path, text: str, *, unsafe: bool = False) -> str:
    """What `--fix` makes of it, each pass checked against the bytes around its edits."""

    def lint(texts: Mapping[str, str]) -> list[Diagnostic]:
        return found_in(path, texts[str(path)])

    found = found_in(path, text)
    fixed = apply_fixes(found, {str(path): text}, unsafe=unsafe)
    assert fixed.texts.get(str(path), text) == spliced(path, text, fixed.fixed)
    after = fix_until_stable(found, {str(path): text}, lint, unsafe=unsafe).texts.get(str(path), text)
    assert not fix_until_stable(found_in(path, after), {str(path): after}, lint, unsafe=unsafe).count, "it does not end"
    return after


def spliced(path: Path, text: str, fixed: tuple[Diagnostic, ...]) -> str:
    """`text` with the spans of the fixes cut out and their replacements put in, from left to right."""
    lines = Lines(str(path), text)
    edits = {
        (lines.offset(fix.span.line, fix.span.column), lines.offset(fix.span.end_line, fix.span.end_column)): fix
        for diagnostic in fixed
        for fix in diagnostic.fixes
    }
    parts, at = [], 0
    for (start, end), fix in sorted(edits.items(), key=lambda item: item[0]):
        parts += [text[at:start], fix.replacement]
        at = max(start, end)
    return "".join([*parts, text[at:]])


@cache
def words_of(path: Path) -> tuple[str, list[tuple[int, int]]]:
    """The text, and where each key and each short value stands that was typed plainly."""
    text = path.read_text("utf-8")
    root, _ = read_text(str(path), text)
    lines = Lines(str(path), text)
    found = []
    for scalar in scalars(root):
        start = lines.offset(scalar.span.line, scalar.span.column)
        end = lines.offset(scalar.span.end_line, scalar.span.end_column)
        if text[start:end] == scalar.text and scalar.text.isidentifier():
            found.append((start, end))
    return text, sorted(set(found))


def scalars(node: Node | None) -> Iterator[Scalar]:
    if isinstance(node, Scalar):
        yield node
    elif isinstance(node, Sequence):
        for item in node.items:
            yield from scalars(item)
    elif isinstance(node, MappingNode):
        for entry in node:
            yield entry.key
            yield from scalars(entry.value)


def slip(word: str, rng: random.Random) -> str:
    """One letter left out, doubled, changed, or exchanged with the next; now and then the wrong case."""
    at = rng.randrange(len(word))
    kind = rng.randrange(5)
    if kind == 0:
        return word[:at] + word[at + 1 :]
    if kind == 1:
        return word[:at] + word[at] + word[at:]
    if kind == 2:
        return word[:at] + rng.choice(LETTERS) + word[at + 1 :]
    if kind == 3:
        return word[:at] + word[at + 1 : at + 2] + word[at] + word[at + 2 :]
    return word.title().replace("_", rng.choice(("", "-")))


def slipped(path: Path, seed: int) -> tuple[str, str]:
    """A recipe and the same with one word misspelt."""
    rng = random.Random(seed)
    text, places = words_of(path)
    start, end = rng.choice(places)
    return text, text[:start] + slip(text[start:end], rng) + text[end:]


def check_slips(first: int, count: int) -> Counter[str]:
    seen: Counter[str] = Counter()
    for seed in range(first, first + count):
        path = SEEDS[seed % len(SEEDS)]
        text, wrong = slipped(path, seed)
        after = mended(path, wrong)
        assert after in (text, wrong), (seed, path.name, difference(wrong, after))
        seen["mended" if after == text else "left"] += after != wrong or text != wrong
        guessed = mended(path, wrong, unsafe=True)
        seen["guessed"] += guessed == text != after
        assert (guessed == wrong) <= (after == wrong), (seed, path.name)
    return seen


def difference(before: str, after: str) -> list[tuple[str, str]]:
    return [(a, b) for a, b in zip(before.splitlines(), after.splitlines(), strict=False) if a != b]


def test_a_misspelt_word_is_put_right_or_left_alone() -> None:
    seen = check_slips(0, 60)
    assert seen["mended"] > 8, seen
    assert seen["guessed"] > 5, seen


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_many_misspelt_words() -> None:
    check_slips(60, 1_500)


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("training: {precision: bf16-mixed}", "training: {precision: bf16}"),
        ("training: {accumulate_grad_batches: 2}", "training: {gradient_accumulation_steps: 2}"),
        ("training: {max_time: 2h}", "training: {max_time: 2 hours}"),
        ('training: {max_time: "01:30:00"}', "training: {max_time: 90 minutes}"),
        ("evaluation: {every: 10_000 steps}", "evaluation: {every: 10000 steps}"),
        ("evaluation: {every: epoch}", "evaluation: {every: 1 epoch}"),
        ("training: {epochs: null, steps: 1e3}", "training: {epochs: null, steps: 1000}"),
        ("training: {epochs: 3 epochs}", "training: {epochs: 3}"),
        ("data: {split: {validation: 20%}}", "data: {split: {validation: 0.2}}"),
        ("training: {optimizer: {betas: (0.9, 0.99)}}", "training: {optimizer: {betas: [0.9, 0.99]}}"),
        ("model: {graph: {act: max(hidden, dim=1)}}", 'model: {graph: {act: "max(hidden, dim=1)"}}'),
        ("model: {graph: {act: {type: nn.ReLU}}}", "model: {graph: {act: {type: relu}}}"),
        ("data: {split: 0.2}", "data: {split: 0.2}"),  # the name of the set is a guess
        ("training: {epochs: 10%}", "training: {epochs: 10%}"),  # of nothing
    ],
)
def test_forms_of_other_tools_are_written_as_ours(wrong: str, right: str) -> None:
    """Only where nothing else can be meant."""
    head = "extends: base.yaml\n"
    assert mended(CASES / "laid.yaml", f"{head}{wrong}\n") == f"{head}{right}\n"


def check_mutations(first: int, count: int) -> None:
    """A recipe that had no error has none afterwards; one that could be read can be read afterwards."""
    for seed in range(first, first + count):
        path = SEEDS[seed % len(SEEDS)]
        text = mutate(path.read_text("utf-8"), seed).decode("utf-8", "surrogateescape")
        before = found_in(path, text)
        for unsafe in (False, True):
            after = found_in(path, mended(path, text, unsafe=unsafe))
            if not any(each.is_error for each in before):
                assert not any(each.is_error for each in after), (seed, path.name, unsafe, after)
            if not any(each.is_error and each.code.startswith("Y") for each in before):
                wrong = [each for each in after if each.is_error and each.code.startswith("Y")]
                assert not wrong, (seed, path.name, unsafe, wrong)


def test_fixes_end_and_break_nothing() -> None:
    check_mutations(0, 40)


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_many_fixes_end_and_break_nothing() -> None:
    check_mutations(40, 1500)


if __name__ == "__main__":
    count, first = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0
    print(dict(check_slips(first, count)))
    check_mutations(first, count)
