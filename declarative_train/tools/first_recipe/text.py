"""Text of a first recipe, with reasons for its choices as comments."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from keyword import iskeyword
from textwrap import wrap

from declarative_train.components.data import Dataset
from declarative_train.components.fields.columns import is_glob
from declarative_train.core.amounts import format_count, list_names, list_quoted
from declarative_train.core.names import RESERVED, is_name
from declarative_train.files.open_files import format_path
from declarative_train.recipe.sections.top import LANGUAGES
from declarative_train.source.writing import flow
from declarative_train.tools.first_recipe.columns import MOST_WORDS, ColumnUse
from declarative_train.tools.first_recipe.sizes import Sizes
from declarative_train.tools.first_recipe.target import TargetColumn

_WIDTH = 118
_NODES = frozenset({"vectors", "joined", "net", "line", "answer"})
_OURS = frozenset({"numbers", "categories", "dates", "training", *_NODES, *RESERVED})
_PLAIN = re.compile(r"[A-Za-z_][\w ()/.-]*")
_WORDS_OF_YAML = frozenset({"true", "false", "null", "nan", "inf", "yes", "no", "on", "off", ""})


@dataclass(frozen=True, slots=True)
class FirstRecipe:
    """Contents of a first recipe, from which its text is written. `command`: the command that the recipe's header
    names. `num_rows`: number of rows of the table. `is_sampled`: only some of these rows were inspected. `seed`: seed
    with which the rows are split into sets. `lacking`: for each set without rows of some classes, these classes."""

    path: str
    command: str
    name: str
    schema: str
    source: Dataset
    num_rows: int
    is_sampled: bool
    target: TargetColumn
    columns: Sequence[ColumnUse]
    sizes: Sizes
    seed: int
    lacking: Mapping[str, Sequence[object]]

    def of(self, use: str) -> list[ColumnUse]:
        return [each for each in self.columns if each.use == use]

    @property
    def doubts(self) -> list[ColumnUse]:
        return [each for each in self.columns if each.doubt]

    @property
    def notes(self) -> list[str]:
        """Lines about the recipe to print in the terminal."""
        found = [f"left out: {each.name or '(no name)'}: {each.why}" for each in self.of("left out")]
        return found + [f"to check: {each.name}: {each.doubt}" for each in self.doubts]

    @property
    def field(self) -> str:
        """Name of the target's field: the column's name, changed if it is not valid as the name of a field."""
        found = re.sub(r"[^a-z0-9]+", "_", self.target.name.lower()).strip("_")
        return found if is_name(found) and found not in _OURS and not iskeyword(found) else "target"

    def text(self) -> str:
        parts = [self._head(), self._data(), self._model(), self._objective(), self._training(), self._rest()]
        return "\n\n".join("\n".join(part) for part in parts) + "\n"

    def _head(self) -> Iterator[str]:
        yield f"# yaml-language-server: $schema={self.schema}"
        where = ", ".join(format_path(each) for each in self.source.paths)
        rows = f"{format_count(self.num_rows, 'row')}, {format_count(len(self.columns) + 1, 'column')}"
        yield from comment(f"A first recipe for {where} ({rows}), made by: {self.command}")
        yield "# Every choice is a guess, with its reason; change it as you like."
        yield from list_commands(
            (f"lint {self.path}", "find mistakes, before anything starts"),
            (f"plan {self.path}", "show the plan"),
            (f"run {self.path}", "train"),
            (f"evaluate runs/{self.name}", "show what it learned"),
            (f"predict runs/{self.name} NEW_ROWS -o answers.csv", "answers for a file of new rows"),
        )
        yield f"language: {LANGUAGES[-1]}"
        yield f"name: {self.name}"
        yield f"seed: {self.seed}"

    def _data(self) -> Iterator[str]:
        yield "data:"
        if getattr(self.source, "encoding", "utf-8") != "utf-8":
            yield "  # The file is not UTF-8; cp1252 is that of Excel's `CSV` in Western Europe. Look at the words."
        yield f"  source: {flow({'type': self.source.type} | self.source.as_data(defaults=False))}"
        yield "  fields:"
        if numbers := self.of("numbers"):
            yield from self._numbers(numbers)
        if categories := self.of("categories"):
            yield from self._categories(categories)
        yield from self._dates()
        yield from self._target_field()
        if doubts := self.doubts:
            yield "    # To check: remove such a column if it is known only with the answer."
            for each in doubts:
                yield from comment(f"- {each.name}: {each.doubt}", 4, hanging=4)
        if left := self.of("left out"):
            yield "    # Left out:"
            for each in left:
                yield from comment(f"- {each.name or '(no name)'}: {each.why}", 4, hanging=4)
        yield from self._split()

    def _numbers(self, numbers: Sequence[ColumnUse]) -> Iterator[str]:
        yield "    numbers:"
        names = [each.name for each in numbers]
        others = [self.target.name, *(each.name for each in self.columns if each.use != "numbers")]
        readable = {self.target.name, *(each.name for each in self.columns)}
        if len(names) > 8 and len(others) * 2 < len(names) and readable and not any(map(is_glob, others)):
            yield '      columns: "*"'
            yield from flow_list("      exclude: ", others)
        else:
            yield from flow_list("      columns: ", names)
        yield "      normalize: standard   # mean 0, deviation 1 over the training rows, as start values expect"
        missing = {each.name: each.num_missing for each in numbers if each.num_missing}
        if missing:
            total = sum(missing.values())
            said = f"{format_count(total, 'value')} {'is' if total == 1 else 'are'} missing, of {list_quoted(missing)}"
            yield from comment(said, 6)
            yield "      missing: mean"
        elif self.is_sampled:
            yield "      missing: mean         # no missing value was found, but not every row was read"

    def _categories(self, categories: Sequence[ColumnUse]) -> Iterator[str]:
        words = [f"{each.name} ({each.why or each.num_words})" for each in categories]
        yield from comment(f"Words of a list, with their number: {', '.join(words)}.", 4)
        yield "    categories:"
        yield "      type: category"
        yield from flow_list("      columns: ", [each.name for each in categories])
        if any(each.num_words > MOST_WORDS for each in categories):
            sizes = [min(each.num_words, MOST_WORDS) + 1 for each in categories]
            yield f"      num_classes: {sizes if len(sizes) > 1 else sizes[0]}   # these words, and 1 for unknown ones"
        missing = sum(each.num_missing for each in categories)
        said = f"{format_count(missing, 'missing value')}, and words" if missing else "words"
        yield f"      unknown: 0   # the class of {said} that are not in the training rows"

    def _groups_of_dates(self) -> dict[str, list[ColumnUse]]:
        """Return a dict from each date field of the recipe to the columns that it reads. Columns share a field if their
        dates have the same format and the recipe uses the same parts of them, such as `month`."""
        groups: dict[tuple[object, ...], list[ColumnUse]] = {}
        for each in self.of("dates"):
            groups.setdefault((each.format, each.parts), []).append(each)
        return {"dates" if at == 1 else f"dates_{at}": group for at, group in enumerate(groups.values(), 1)}

    def _dates(self) -> Iterator[str]:
        for name, group in self._groups_of_dates().items():
            names = [each.name for each in group]
            if name == "dates":
                yield "    # Dates: the time, normalised, and places in cycles, such as the day of the year."
                if group[0].format is None:  # texts in other formats are not sorted by time
                    cut = f"{{type: last, fraction: 0.2, sort: {quote(names[0])}}}"
                    said = f"If new rows are later than these, split by time: `validation: {cut}`."
                    yield from comment(f"{said} See then whether `time` helps.", 4)
            yield f"    {name}:"
            yield "      type: date"
            yield from flow_list("      columns: ", names)
            if group[0].format is not None:
                remark = f"   # {group[0].why}" if group[0].why else ""
                yield f"      format: {quote(group[0].format)}{remark}"
            yield f"      parts: [{', '.join(group[0].parts)}]"
            missing = sum(each.num_missing for each in group)
            if missing or self.is_sampled:
                found = f"{format_count(missing, 'value')} missing" if missing else "no missing value was found"
                yield f"      missing: zero   # {found}{', but not every row was read' * self.is_sampled}"

    def _target_field(self) -> Iterator[str]:
        target, key = self.target, quote(self.target.name)
        if target.task == "classes":
            names = list_names(map(str, target.classes), 6)
            yield from comment(f"The target: {target.why}; the classes are numbered as sorted: {names}.", 4)
            if empty := target.empty_classes:
                yield from comment(
                    f"No row has class {list_names(map(str, empty))}, and the model cannot answer it.", 4
                )
            yield f"    {self.field}: {{type: category, column: {key}}}"
        else:
            yield from comment(
                f"The target: {target.why}. Normalised as outputs start near 0; errors are reported in its own unit.", 4
            )
            yield f"    {self.field}: {{columns: [{key}], normalize: standard}}"

    def _split(self) -> Iterator[str]:
        is_class = self.target.task == "classes"
        if is_class:
            yield "  # Stratified: each set has the same share of every class."
        if "test" in self.sizes.fractions:
            yield "  # `test` is evaluated once, at the end, with the best weights."
        else:
            yield from comment(f"No test set: with {self.num_rows} rows it would be too small.", 2)
        for name, classes in self.lacking.items():
            few = list_names(f"`{each}` has {format_count(self.target.classes[each], 'row')}" for each in classes)
            yield from comment(f"{few}: too few for `{name}`, whose metrics do not include it.", 2)
        yield "  split:"
        for name, fraction in self.sizes.fractions.items():
            cut = (
                f"{{type: stratified, fraction: {fraction}, column: {quote(self.target.name)}}}"
                if is_class
                else f"{fraction}"
            )
            ignored = "   # dtrain: ignore[D033]" if name in self.lacking else ""
            yield f"    {name}: {cut}{ignored}"

    def _model(self) -> Iterator[str]:
        yield "model:"
        yield "  graph:"
        numbers, categories = self.of("numbers"), self.of("categories")
        if categories:
            widths = [vector_width(each.num_words) for each in categories]
            width = widths[0] if len(set(widths)) == 1 else widths
            yield "    # A learned vector for each word, wider for more words."
            yield f"    vectors: {{type: embeddings, embedding_dim: {width}, input: categories}}"
        inputs = [*(["numbers"] if numbers else []), *(["vectors"] if categories else []), *self._groups_of_dates()]
        source = inputs[0]
        if len(inputs) > 1:
            yield f"    joined: {{type: concat, inputs: [{', '.join(inputs)}]}}"
            source = "joined"
        outputs = len(self.target.classes) or 1
        what = "one score for each class" if self.target.classes else "one number"
        yield from comment(
            f"Widths for {format_count(self.num_rows, 'row')}: wider learns more, and overfits more. Output: {what}.",
            4,
        )
        hidden = ", ".join(map(str, self.sizes.hidden))
        keys = f"hidden: [{hidden}], out_features: {outputs}, dropout: {self.sizes.dropout}"
        yield f"    net: {{type: mlp, {keys}, input: {source}}}"
        yield "    # A linear model next to the network: of a small table, most of what can be learned is linear."
        yield f"    line: {{type: linear, out_features: {outputs}, input: {source}}}"
        yield "    answer: net + line"

    def _objective(self) -> Iterator[str]:
        target = self.target
        yield "objective:"
        if target.task == "classes":
            if target.is_imbalanced:
                most, least = max(target.classes.values()), min(target.classes.values())
                yield from comment(
                    f"The largest class has {most:,} rows, the smallest {least:,}: accuracy alone is not informative. "
                    "`class_weights: balanced` in the loss finds more of the rare classes, but overestimates "
                    "their probabilities.",
                    2,
                )
            if not target.is_imbalanced:
                yield "  # Smoothing keeps the probabilities from becoming overconfident."
            smoothing = "" if target.is_imbalanced else ", label_smoothing: 0.05"
            yield f"  loss: {{type: cross_entropy, input: answer, target: {self.field}{smoothing}}}"
        elif target.has_tails and not target.is_skewed:
            yield "  # A few values are far from the others: huber counts their distance, not its square."
            yield f"  loss: {{type: huber, input: answer, target: {self.field}}}"
        else:
            if target.has_tails:
                yield "  # A few values are far from the others, on one side: mse learns the mean, huber less."
            yield f"  loss: {{type: mse, input: answer, target: {self.field}}}"
        yield f"  metrics: [{', '.join(self._metrics())}]"

    def _metrics(self) -> list[str]:
        """Return the names of the metrics. The first one is used to compare the network with simple models."""
        if self.target.task == "numbers":
            return ["rmse", "mae", "r2"]
        is_binary = len(self.target.classes) == 2
        if not self.target.is_imbalanced:
            return ["accuracy", "auroc"] if is_binary else ["accuracy", "f1"]
        has_auroc = is_binary and "validation" not in self.lacking  # it is nan if a class has no row
        return ["auroc", "f1", "accuracy"] if has_auroc else ["f1", "auroc", "accuracy"]

    def _training(self) -> Iterator[str]:
        sizes = self.sizes
        yield "training:"
        metric, mode = (self._metrics()[0], "max") if self.target.is_imbalanced else ("loss", "min")
        yield f"  # At most; training stops when validation/{metric} no longer improves, and the best weights are kept."
        if self.target.is_imbalanced:
            yield "  # Not the loss, which hardly depends on the rare classes."
        elif self.target.classes:
            yield "  # Not accuracy, which is too coarse on few rows: the first of many equal values would be kept."
        yield f"  epochs: {sizes.epochs}"
        yield f"  early_stop: {{metric: validation/{metric}, mode: {mode}, patience: {sizes.patience} epochs}}"
        yield f"  global_batch_size: {sizes.batch_size}"
        yield f"  optimizer: {{type: adamw, lr: 2e-3, weight_decay: {sizes.weight_decay}}}"
        yield "  # The rate falls fast: the best step of a small table is early, and small steps find it."
        yield "  lr_schedule: {type: polynomial, power: 3, warmup: 5%}"
        yield f"evaluation: {{every: {format_count(sizes.evaluate_every, 'epoch')}}}"
        yield f"checkpoint: {{best: {{metric: validation/{metric}, mode: {mode}}}}}"

    def _rest(self) -> Iterator[str]:
        yield "parallelism: single        # or: ddp, fsdp, pipeline, auto, with more GPUs below"
        yield "layout: {gpus: 1}          # without a GPU: the CPU"


def vector_width(num_words: int) -> int:
    return min(32, max(2, (min(num_words, MOST_WORDS) + 1) // 2))


def list_commands(*lines: tuple[str, str]) -> Iterator[str]:
    """Yield comment lines that list commands and their effects in aligned columns. `lines`: pairs of a command, without
    the word `dtrain`, and its effect."""
    width = max(len(line) for line, _ in lines)
    yield from (f"#   dtrain {line:<{width}}   {does}" for line, does in lines)


def comment(text: str, margin: int = 0, hanging: int = 0) -> list[str]:
    """Return a text as the lines of a YAML comment, broken to fit the width. Line breaks in the text become blanks.
    `margin`: number of blanks before the `#` of each line. `hanging`: indentation of the lines after the first."""
    whole = " ".join(text.split())
    begin = f"{' ' * margin}# "
    return wrap(
        whole,
        _WIDTH,
        initial_indent=begin,
        subsequent_indent=begin + " " * max(hanging - 2, 0),
        break_on_hyphens=False,
        break_long_words=False,
    )


def quote(text: str) -> str:
    """Return the name of a column as a YAML scalar, quoted if needed."""
    if _PLAIN.fullmatch(text) and not text.endswith(" ") and text.lower() not in _WORDS_OF_YAML and ": " not in text:
        return text
    return json.dumps(text, ensure_ascii=False)


def flow_list(key: str, names: Sequence[str]) -> list[str]:
    """Return lines of YAML with `key` and the list `names` in brackets. A long list takes several lines."""
    words = [quote(name) for name in names]
    margin = " " * (len(key) + 1)
    lines, line = [], f"{key}["
    for at, word in enumerate(words):
        piece = word + ("]" if at == len(words) - 1 else ",")
        if len(line) + len(piece) + 1 > _WIDTH and line.strip() not in ("", f"{key.strip()}["):
            lines.append(line.rstrip())
            line = margin
        line += piece + ("" if piece.endswith("]") and at == len(words) - 1 else " ")
    return [*lines, line.rstrip()]
