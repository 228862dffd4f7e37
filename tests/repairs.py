"""Natural mistakes in the shipped recipes, repaired only by the edits that diagnostics suggest.

python -m tests.repairs [COUNT [FIRST]]     prints a table of the kinds of mistakes; -v: and each failed repair

Each seed makes one mistake of a random kind in a shipped recipe. A mistake that lint does not report is not counted,
and another one is made. Then the `fixes` in the output of `dtrain lint --json` are applied, at most three times. The
recipe is repaired if lint then reports nothing that it does not report for the shipped recipe.
"""

from __future__ import annotations

import json
import random
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from declarative_train import planner
from declarative_train import recipe as recipe_room
from declarative_train.app.api.compiling import lint_recipe
from declarative_train.app.api.tried_fixes import lint_and_try
from declarative_train.core.diagnostics.diagnostic import Diagnostic
from declarative_train.core.diagnostics.formats import json_text
from declarative_train.core.diagnostics.lines import Lines
from declarative_train.plan.codec import to_data
from declarative_train.source.node import Mapping, Node, Scalar, Sequence
from declarative_train.source.reader import read_text

SHIPPED = Path(__file__).parents[1] / "recipes"
SLOW = ("gpt_7b_auto_32xh100",)  # lint searches for a layout each time
RECIPES = [path for path in sorted(SHIPPED.rglob("*.yaml")) if path.stem not in SLOW and path.parent.stem != "switches"]
ROUNDS = 3
LETTERS = "abcdefghijklmnopqrstuvwxyz"
NOT_OF_THE_PLAN = ("files", "overrides", "fingerprint", "identity")

OTHER_KEYS = {
    "alpha": ("lora_alpha",),
    "batch_size": ("per_device_eval_batch_size",),
    "checkpoint": ("checkpoints", "save", "checkpointing"),
    "column": ("col", "columns", "name"),
    "columns": ("cols", "features"),
    "data": ("dataset", "datasets"),
    "dropout": ("dropout_rate", "p"),
    "embedding_dim": ("output_dim", "dim", "features"),
    "epochs": ("num_epochs", "max_epochs", "num_train_epochs", "n_epochs"),
    "evaluation": ("eval", "validate"),
    "every": ("interval", "frequency", "eval_steps"),
    "fields": ("features", "columns"),
    "global_batch_size": ("batch_size", "train_batch_size", "per_device_train_batch_size"),
    "graph": ("layers", "nodes", "architecture"),
    "heads": ("num_heads", "n_head", "num_attention_heads"),
    "hidden": ("hidden_size", "units"),
    "input": ("inputs", "from", "in"),
    "kernel_size": ("kernel", "filter_size"),
    "layers": ("num_layers", "n_layer", "num_hidden_layers"),
    "length": ("max_length", "max_seq_length", "seq_len", "block_size"),
    "logging": ("log", "logger"),
    "loss": ("criterion", "loss_fn"),
    "lr": ("learning_rate", "initial_lr"),
    "lr_schedule": ("scheduler", "lr_scheduler", "schedule"),
    "metrics": ("metric",),
    "model": ("network", "net"),
    "num_classes": ("classes", "n_classes"),
    "objective": ("loss", "losses"),
    "optimizer": ("optim", "optimiser"),
    "out_channels": ("filters", "channels"),
    "out_features": ("units", "out_dim", "output_size", "output_dim"),
    "parallelism": ("strategy", "parallel", "distributed"),
    "path": ("file", "filename", "data_files"),
    "rank": ("r", "lora_r"),
    "seed": ("random_seed", "manual_seed"),
    "source": ("dataset", "loader"),
    "split": ("splits",),
    "steps": ("max_steps", "num_steps", "iterations"),
    "target": ("label", "labels"),
    "tokenizer": ("tokenizer_name",),
    "training": ("train", "trainer"),
    "type": ("name", "kind", "class", "_target_"),
    "validation": ("val", "valid", "eval", "dev"),
    "vocabulary": ("vocab_size",),
    "warmup": ("warmup_steps", "warmup_ratio", "num_warmup_steps"),
    "weight_decay": ("wd", "decay"),
    "width": ("hidden_size", "d_model", "n_embd"),
}
"""Our keys, as other frameworks call them; written without a look at what dtrain knows."""
OTHER_WORDS = {
    "accuracy": ("acc", "Accuracy", "categorical_accuracy"),
    "adam": ("Adam", "torch.optim.Adam"),
    "adamw": ("AdamW", "adamw_torch", "torch.optim.AdamW"),
    "bf16": ("bfloat16", "bf16-mixed"),
    "category": ("categorical", "class", "label"),
    "conv2d": ("Conv2D", "nn.Conv2d", "conv"),
    "cosine": ("CosineAnnealingLR", "cosine_annealing", "cosine_with_warmup"),
    "cross_entropy": ("CrossEntropyLoss", "nn.CrossEntropyLoss", "categorical_crossentropy"),
    "csv": ("CSV", "table", "pandas"),
    "ddp": ("DDP", "DistributedDataParallel", "data_parallel"),
    "embedding": ("nn.Embedding", "Embedding", "embed"),
    "flatten": ("Flatten", "nn.Flatten"),
    "fsdp": ("FSDP", "fully_sharded", "zero3"),
    "image_folder": ("ImageFolder", "imagefolder"),
    "jsonl": ("json", "jsonlines"),
    "layer_norm": ("LayerNorm", "layernorm", "LayerNormalization"),
    "linear": ("Linear", "nn.Linear", "Dense", "dense"),
    "mae": ("mean_absolute_error", "L1Loss", "l1"),
    "mlp": ("MLP", "feed_forward"),
    "mse": ("MSELoss", "mean_squared_error", "l2"),
    "one_cycle": ("OneCycleLR", "onecycle"),
    "relu": ("ReLU", "nn.ReLU"),
    "self_attention": ("MultiheadAttention", "attention", "MultiHeadAttention"),
    "single": ("none", "cpu", "auto"),
    "text": ("txt", "string"),
    "tokens": ("text", "ids"),
}
"""Our words, as other frameworks write them."""
EXTRA = (
    *("in_features: 64", "shuffle: true", "batch_size: 32", "device: cuda", "num_workers: 4", "bias: true"),
    *("activation: relu", "verbose: true", "seed: 1", "dtype: float32", "pretrained: true", "lr: 0.001"),
    *("gpus: 1", "save_best: true", "patience: 5", "momentum: 0.9", "mixed_precision: true", "input_shape: [28, 28]"),
)
"""Entries that other frameworks take."""
OTHER_NAMES = ("x", "y", "input", "output", "labels", "images", "features", "target", "logits", "hidden")
REFERENCES = ("input", "inputs", "target", "of", "output", "node", "mask", "column", "columns")


class Place(NamedTuple):
    """Entry of a mapping in the text of a recipe. `key`, `value`: offsets in the text at which the key and the value
    begin and end."""

    path: tuple[str, ...]
    key: tuple[int, int]
    value: tuple[int, int]
    node: Node
    parent: Mapping
    is_flow: bool

    @property
    def name(self) -> str:
        return self.path[-1]


@dataclass(frozen=True)
class Text:
    """Text of a shipped recipe, and the entries in it."""

    text: str
    places: tuple[Place, ...]

    def with_(self, span: tuple[int, int], new: str) -> str:
        return self.text[: span[0]] + new + self.text[span[1] :]

    def typed(self, span: tuple[int, int]) -> str:
        return self.text[span[0] : span[1]]

    def entry(self, place: Place) -> tuple[int, int]:
        """Return the offsets of the beginning and end of a whole entry: its lines or, inside `{}`, the entry with one
        comma."""
        start, end = place.key[0], place.value[1]
        if place.is_flow:
            if after := re.match(r",\s*", self.text[end:]):
                return start, end + after.end()
            before = re.search(r",\s*$", self.text[:start])
            return (start - len(before[0]) if before else start), end
        start = self.text.rfind("\n", 0, start) + 1
        indent = place.key[0] - start
        lines = re.compile(
            rf"[^\n]*\n(?:[ ]{{{indent + 1},}}[^\n]*\n|[ ]{{{indent}}}-[^\n]*\n|[ ]*\n(?=[ ]{{{indent + 1}}}))*"
        )
        found = lines.match(self.text, start)
        assert found is not None
        return start, found.end()


@cache
def read(path: Path) -> Text:
    text = path.read_text("utf-8")
    root, _ = read_text(str(path), text)
    lines = Lines(str(path), text)

    def offsets(node: Node) -> tuple[int, int]:
        return lines.offset(node.span.line, node.span.column), lines.offset(node.span.end_line, node.span.end_column)

    def places(node: Node | None, path: tuple[str, ...]) -> Iterator[Place]:
        if isinstance(node, Sequence):
            for item in node.items:
                yield from places(item, (*path, "-"))
        if isinstance(node, Mapping):
            is_flow = text[offsets(node)[0]] == "{"
            for entry in node:
                inner = (*path, entry.name)
                yield Place(inner, offsets(entry.key), offsets(entry.value), entry.value, node, is_flow)
                yield from places(entry.value, inner)

    return Text(text, tuple(places(root, ())))


def slip(word: str, rng: random.Random) -> str:
    """Make a typing mistake in a word: one letter is left out, doubled, replaced, or exchanged with the next one."""
    at = rng.randrange(len(word))
    kind = rng.randrange(4)
    if kind == 0:
        return word[:at] + word[at + 1 :]
    if kind == 1:
        return word[:at] + word[at] + word[at:]
    if kind == 2:
        return word[:at] + rng.choice(LETTERS) + word[at + 1 :]
    return word[:at] + word[at + 1 : at + 2] + word[at] + word[at + 2 :]


Draw = Callable[[Text, random.Random], str | None]  # a recipe with a mistake; None if this kind does not apply


def _pick(rng: random.Random, found: list[Any]) -> Any:
    return rng.choice(found) if found else None


def _scalars(recipe: Text, wanted: Callable[[Scalar], bool] = lambda node: True) -> list[Place]:
    return [
        each
        for each in recipe.places
        if isinstance(each.node, Scalar) and each.node.text and each.node.template is None and wanted(each.node)
    ]


def misspelt_key(recipe: Text, rng: random.Random) -> str | None:
    place = rng.choice(recipe.places)
    return recipe.with_(place.key, slip(place.name, rng))


def misspelt_word(recipe: Text, rng: random.Random) -> str | None:
    """Misspell a word in a value: a type, the name of a node, or a word of an expression."""
    place = rng.choice(_scalars(recipe))
    word = _pick(rng, list(re.finditer(r"[A-Za-z_]\w+", recipe.typed(place.value))))
    if word is None:
        return None
    start = place.value[0]
    return recipe.with_((start + word.start(), start + word.end()), slip(word[0], rng))


def key_of_another_framework(recipe: Text, rng: random.Random) -> str | None:
    place = _pick(rng, [each for each in recipe.places if each.name in OTHER_KEYS])
    return place and recipe.with_(place.key, rng.choice(OTHER_KEYS[place.name]))


def word_of_another_framework(recipe: Text, rng: random.Random) -> str | None:
    words = [(each.value, each.node) for each in _scalars(recipe)]
    place = _pick(rng, [span for span, _ in words if recipe.typed(span) in OTHER_WORDS])
    return place and recipe.with_(place, rng.choice(OTHER_WORDS[recipe.typed(place)]))


def other_spelling_of_key(recipe: Text, rng: random.Random) -> str | None:
    place = rng.choice(recipe.places)
    words = place.name.split("_")
    camel = words[0] + "".join(map(str.title, words[1:]))
    plural = place.name[:-1] if place.name.endswith("s") else f"{place.name}s"
    forms = (camel, "-".join(words), "".join(words), place.name.title(), " ".join(words), plural, plural)
    return recipe.with_(place.key, rng.choice(forms))


def number_as_text(recipe: Text, rng: random.Random) -> str | None:
    place = _pick(rng, _scalars(recipe, lambda node: isinstance(node.value, int | float)))
    if place is None:
        return None
    typed = recipe.typed(place.value)
    return recipe.with_(
        place.value, rng.choice((f'"{typed}"', f"{typed}.0", f"{typed}k", f"~{typed}", "auto", "none", "null"))
    )


def list_or_value(recipe: Text, rng: random.Random) -> str | None:
    place = rng.choice(recipe.places)
    typed = recipe.typed(place.value)
    if typed.startswith("["):
        return recipe.with_(place.value, typed[1:-1] if "," not in typed else f"({typed[1:-1]})")
    if "\n" in typed or not typed:
        return None
    return recipe.with_(place.value, f"[{typed}]")


def wrong_unit(recipe: Text, rng: random.Random) -> str | None:
    def has_unit(node: Scalar) -> bool:
        return re.fullmatch(r"\d+ \w+|\d+%|0?\.\d+", node.text) is not None

    names = ("epochs", "steps", "length", "keep")
    places = [each for each in _scalars(recipe) if has_unit(each.node) or each.name in names]  # type: ignore[arg-type]
    place = _pick(rng, places)
    if place is None:
        return None
    typed = recipe.typed(place.value)
    number, unit = re.match(r"([\d.]+)(.*)", typed).groups() if typed[0].isdigit() or typed[0] == "." else (typed, "")  # type: ignore[union-attr]
    forms: tuple[str, ...]
    if unit == "%":
        forms = (number, f"{float(number) / 100:g}", f"{number} percent", f"{number} %")
    elif unit:
        forms = (
            number,
            unit.strip(),
            f"{number}{unit.strip()[0]}",
            f"{number} iterations",
            f"{number} minutes",
            f"every {typed}",
        )
    elif "." in number:
        forms = (f"{float(number) * 100:g}", f"{float(number) * 100:g}%", f'"{number}"', number.replace(".", ","))
    else:
        forms = (f"{number} {place.name}", f"{number} {place.name[0]}", f"{number}%", f"{number} times")
    return recipe.with_(place.value, rng.choice(forms))


def missing_entry(recipe: Text, rng: random.Random) -> str | None:
    return recipe.with_(recipe.entry(rng.choice(recipe.places)), "")


def swapped_values(recipe: Text, rng: random.Random) -> str | None:
    """Swap the values of two neighbouring entries."""
    found = _scalars(recipe)
    pairs = [(a.value, b.value) for a, b in pairwise(found) if a.parent is b.parent]
    if not pairs:
        return None
    first, second = rng.choice(pairs)
    middle = recipe.text[first[1] : second[0]]
    return recipe.with_((first[0], second[1]), recipe.typed(second) + middle + recipe.typed(first))


def misplaced_entry(recipe: Text, rng: random.Random) -> str | None:
    """Move an entry of one line next to another key: its parent, or any other."""
    place, other = rng.choice(recipe.places), rng.choice(recipe.places)
    above = [each for each in recipe.places if each.path == place.path[:-1]]
    if above and rng.random() < 0.6:
        other = above[0]
    whole = recipe.typed((place.key[0], place.value[1]))
    if "\n" in whole or place.value[1] <= place.key[1]:
        return None
    span, at = recipe.entry(place), other.key[0]
    if span[0] <= at < span[1]:
        return None
    if other.is_flow:
        added = f"{whole}, "
    else:
        at = recipe.text.rfind("\n", 0, at) + 1
        added = " " * (other.key[0] - at) + whole + "\n"
    if at <= span[0]:
        return recipe.text[:at] + added + recipe.text[at : span[0]] + recipe.text[span[1] :]
    return recipe.text[: span[0]] + recipe.text[span[1] : at] + added + recipe.text[at:]


def wrong_size(recipe: Text, rng: random.Random) -> str | None:
    place = _pick(rng, _scalars(recipe, lambda node: isinstance(node.value, int) and not isinstance(node.value, bool)))
    if place is None:
        return None
    number = place.node.value
    new = rng.choice((number * 2, number // 2, number + 1, number - 1, number * 10, 0, -number))
    return recipe.with_(place.value, str(new))


def indentation(recipe: Text, rng: random.Random) -> str | None:
    lines = recipe.text.split("\n")
    at = rng.choice([at for at, line in enumerate(lines) if line.strip() and not line.startswith("#")])
    line = lines[at]
    indent = len(line) - len(line.lstrip())
    forms = [f" {line}", f"  {line}", f"\t{line.lstrip()}"]
    if indent:
        forms += [line[1:], line[2:], line.lstrip()]
    lines[at] = rng.choice(forms)
    return "\n".join(lines)


def punctuation(recipe: Text, rng: random.Random) -> str | None:
    signs = list(re.finditer(r": |[,\[\]{}\"]", re.sub(r"(?m)#.*$", lambda found: "~" * len(found[0]), recipe.text)))
    sign = _pick(rng, signs)
    others = {": ": (":", " ", " = ", "= ", "; "), ",": ("", "", ";", ".")}.get(sign[0], ("",))
    return recipe.with_(sign.span(), rng.choice(others))


def written_twice(recipe: Text, rng: random.Random) -> str | None:
    place = rng.choice(recipe.places)
    start, end = recipe.entry(place)
    whole = recipe.typed((start, end))
    if place.is_flow:
        whole = f"{recipe.typed((place.key[0], place.value[1]))}, "
        return recipe.with_((place.key[0], place.key[0]), whole)
    return recipe.with_((start, start), whole)


def extra_entry(recipe: Text, rng: random.Random) -> str | None:
    place, extra = rng.choice(recipe.places), rng.choice(EXTRA)
    if place.is_flow:
        return recipe.with_((place.key[0], place.key[0]), f"{extra}, ")
    start = recipe.text.rfind("\n", 0, place.key[0]) + 1
    return recipe.with_((start, start), " " * (place.key[0] - start) + extra + "\n")


def wrong_name(recipe: Text, rng: random.Random) -> str | None:
    """Replace the name of a node or field by another name, which may exist or not."""
    found = [each for each in recipe.places if each.name in REFERENCES]
    place = _pick(rng, found)
    if place is None:
        return None
    nodes = [each.name for each in recipe.places if len(each.path) == 3 and each.path[1] in ("graph", "fields")]
    items = place.node.items if isinstance(place.node, Sequence) else ()
    new = rng.choice((*OTHER_NAMES, *nodes))
    if not items:
        return recipe.with_(place.value, new)
    names = [new if at == rng.randrange(len(items)) else getattr(item, "text", "x") for at, item in enumerate(items)]
    return recipe.with_(place.value, f"[{', '.join(names)}]")


def short_or_long_form(recipe: Text, rng: random.Random) -> str | None:
    """Write `{type: adam, lr: 1e-3}` as `adam`, `x` as `{type: x}`, or a mapping as a list."""
    place = rng.choice(recipe.places)
    typed = recipe.typed(place.value)
    if isinstance(place.node, Scalar) and typed:
        return recipe.with_(
            place.value, rng.choice((f"{{type: {typed}}}", f"{{name: {typed}}}", f"{{value: {typed}}}"))
        )
    if isinstance(place.node, Mapping) and typed.startswith("{"):
        first = next(iter(place.node)).value
        entries = [f"{{{part.strip()}}}" for part in typed[1:-1].split(",")]
        return recipe.with_(place.value, rng.choice((getattr(first, "text", "[]"), f"[{', '.join(entries)}]")))
    return None


KINDS: tuple[Draw, ...] = (
    misspelt_key,
    misspelt_word,
    key_of_another_framework,
    word_of_another_framework,
    other_spelling_of_key,
    number_as_text,
    list_or_value,
    wrong_unit,
    missing_entry,
    swapped_values,
    misplaced_entry,
    wrong_size,
    indentation,
    punctuation,
    written_twice,
    extra_entry,
    wrong_name,
    short_or_long_form,
)
_Key = tuple[str, str]


@dataclass(frozen=True)
class Repair:
    """Mistake, and what became of it. `wrong`: text with the mistake. `text`: text after the fixes. `rounds`: how often
    fixes were applied. `reported`: diagnostics of the mistake. `left`: diagnostics after the fixes."""

    seed: int
    kind: str
    path: Path
    wrong: str
    text: str
    rounds: int
    reported: tuple[Diagnostic, ...]
    left: tuple[Diagnostic, ...]

    @property
    def is_repaired(self) -> bool:
        return not self.left

    @property
    def is_as_before(self) -> bool:
        return self.is_repaired and (
            self.text == read(self.path).text or _plan(self.path, self.text) == _plan(self.path)
        )


def lint(path: Path, text: str, static: bool = False, *, tries: bool = False) -> list[Diagnostic]:
    """Lint the text of a recipe, and return the diagnostics that the shipped recipe at `path` does not have. `tries`:
    also try suggested fixes, as the command does."""
    found = (lint_and_try if tries else lint_recipe)(str(path), texts={str(path): text}, static=static).diagnostics
    return [each for each in found if _key(each) not in _known(path, static)]


def _key(diagnostic: Diagnostic) -> _Key:
    return diagnostic.code, diagnostic.message


@cache
def _known(path: Path, static: bool) -> frozenset[_Key]:
    return frozenset(map(_key, lint_recipe(str(path), static=static).diagnostics))


@cache
def _plan(path: Path, text: str | None = None) -> Any:
    loaded = recipe_room.load(str(path), text=text or read(path).text)
    plan = loaded.recipe and planner.compile(loaded.recipe, offline=True)[0]
    return plan and {key: value for key, value in to_data(plan).items() if key not in NOT_OF_THE_PLAN}


def apply(path: Path, text: str, printed: str) -> str:
    """Make the edits that lint suggests for the file at `path`, in the way of any client. `printed`: the JSON of lint.
    If edits overlap, only the first one is made."""
    lines, edits = Lines(str(path), text), []
    for each in json.loads(printed)["diagnostics"]:
        of_one = [
            (
                lines.offset(fix["line"], fix["column"]),
                lines.offset(fix["end_line"], fix["end_column"]),
                fix["replacement"],
            )
            for fix in each["fixes"]
            if fix["path"] == str(path)
        ]
        if len(of_one) == len(each["fixes"]) and of_one:
            edits.append(sorted(of_one))
    made: list[tuple[int, int, str]] = []
    for of_one in sorted(edits):
        if all(new in made or not any(new[0] <= old[1] and old[0] <= new[1] for old in made) for new in of_one):
            made += [new for new in of_one if new not in made]
    for start, end, new in sorted(made, reverse=True):
        text = text[:start] + new + text[end:]
    return text


def draw(seed: int, static: bool) -> tuple[str, Path, str, list[Diagnostic]]:
    """Make one mistake in a recipe. Return the kind of the mistake, the path of the recipe, the text with the mistake,
    and the diagnostics of lint."""
    rng = random.Random(seed)
    for _ in range(1000):
        kind, path = rng.choice(KINDS), rng.choice(RECIPES)
        text = kind(read(path), rng)
        if text is None or text == read(path).text:
            continue
        found = lint(path, text, static)
        if found:
            return kind.__name__, path, text, found
    raise AssertionError("no mistake found")


def repair(seed: int, *, static: bool = False) -> Repair:
    kind, path, wrong, reported = draw(seed, static)
    text, found, rounds = wrong, reported, 0
    while found and rounds < ROUNDS:
        after = apply(path, text, json_text(lint(path, text, static, tries=True)))
        if after == text:
            break
        text, found, rounds = after, lint(path, after, static), rounds + 1
    return Repair(seed, kind, path, wrong, text, rounds, tuple(reported), tuple(found))


def report(count: int, first: int, verbose: bool) -> str:
    tried, repaired, same = Counter[str](), Counter[str](), Counter[str]()
    for seed in range(first, first + count):
        each = repair(seed)
        tried[each.kind] += 1
        repaired[each.kind] += each.is_repaired
        same[each.kind] += each.is_as_before
        if verbose and not each.is_as_before:
            print(_story(each), flush=True)
    rows = [("all", count, repaired.total(), same.total())]
    rows += [(kind.__name__, tried[kind.__name__], repaired[kind.__name__], same[kind.__name__]) for kind in KINDS]
    return "\n".join(
        [
            "mistakes repaired  same plan",
            *(f"{a:>8} {b:>8} {c:>10}  {kind.replace('_', ' ')}" for kind, a, b, c in rows),
        ]
    )


def _story(each: Repair) -> str:
    shipped = read(each.path).text.splitlines()
    changed = [line for line in each.wrong.splitlines() if line not in shipped][:3]
    was = [line for line in shipped if line not in each.wrong.splitlines()][:3]
    after = [line for line in each.text.splitlines() if line not in shipped][:3]
    said = [f"{item.code} {item.message} | {item.help} | fixes {len(item.fixes)}" for item in each.reported[:3]]
    left = [f"{item.code} {item.message} | {item.help}" for item in each.left[:2]]
    result = "REPAIRED, another plan" if each.is_repaired else "LEFT"
    parts = [f"--- {each.seed} {each.kind} {each.path.stem}: {result} after {each.rounds}"]
    for name, lines in (("was", was), ("wrong", changed), ("said", said), ("after", after), ("left", left)):
        parts += [f"  {name:<6} {line}" for line in lines]
    return "\n".join(parts)


if __name__ == "__main__":
    numbers = [int(word) for word in sys.argv[1:] if word != "-v"]
    count, first = [*numbers, *(300, 0)[len(numbers) :]]
    print(report(count, first, "-v" in sys.argv))
