"""First recipe for pictures: for class folders, or for a table with file names and a target column."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from declarative_train.components.data import Table
from declarative_train.core.amounts import format_count, list_quoted
from declarative_train.files.open_files import format_path, is_remote
from declarative_train.packs.images.image_folder import ImageFolderDataset
from declarative_train.packs.pretrained.published import find_published_folder
from declarative_train.recipe.model.tree import PublishedError
from declarative_train.recipe.sections.top import LANGUAGES
from declarative_train.source.writing import flow
from declarative_train.tools.first_recipe.opening import UnusableError
from declarative_train.tools.first_recipe.picture_files import PictureFiles, look_at
from declarative_train.tools.first_recipe.sizes import fractions_for
from declarative_train.tools.first_recipe.target import TargetColumn, read_target
from declarative_train.tools.first_recipe.text import comment, list_commands, quote

LABEL = "label"
PUBLISHED = ("timm/resnet50.a1_in1k", "timm/resnet34.a1_in1k", "timm/resnet18.a1_in1k")
_PUBLISHED_SIDE = 224
_LARGEST_SIDE = 128  # for a model that starts at random
_SMALL_SIDE = 48  # pictures up to this side keep their size, and the first layer has no stride
_STEPS = 30_000  # pictures shown, at least 10 epochs and at most 60


@dataclass(frozen=True, slots=True)
class PictureRecipe:
    """Contents of a first recipe for pictures. `source`: keys of the source. `column`, `folder`: the column with file
    names and the folder of the files. `empty`: class folders without pictures. `published`: id of a published model in
    the local cache, with whose weights the training starts; None: there is none."""

    path: str
    command: str
    name: str
    schema: str
    source: dict[str, object]
    column: str
    folder: str | None
    files: PictureFiles
    target: TargetColumn
    empty: tuple[str, ...]
    published: str | None

    @property
    def notes(self) -> list[str]:
        """Lines about the recipe to print in the terminal."""
        found = [f"broken: {place}: {why}" for place, why in self.files.broken]
        return found + [f"empty: the folder {each} has no picture" for each in self.empty]

    @property
    def _side(self) -> int:
        if self.published is not None:
            return _PUBLISHED_SIDE
        if self.files.short_side <= _SMALL_SIDE:
            return self.files.short_side
        return max(32, min(self.files.short_side, _LARGEST_SIDE) // 32 * 32)

    @property
    def _is_small(self) -> bool:
        return self._side <= _SMALL_SIDE

    @property
    def _field(self) -> str:
        return LABEL if self.target.classes else "target"

    def text(self) -> str:
        parts = [self._head(), self._data(), self._model(), self._objective(), self._training(), self._rest()]
        return "\n\n".join("\n".join(part) for part in parts) + "\n"

    def _head(self) -> Iterator[str]:
        yield f"# yaml-language-server: $schema={self.schema}"
        yield from comment(f"A first recipe for {format_count(self.files.number, 'picture')}, made by: {self.command}")
        seen = "" if self.files.are_all_read else f" ({self.files.looked_at} of them were read)"
        yield from comment(f"They are {self.files.in_words()}{seen}. Every choice is a guess; change it as you like.")
        yield from list_commands(
            (f"data show {self.path} --pictures sheet.png", "see what the model sees"),
            (f"run {self.path}", "train"),
            (f"evaluate runs/{self.name}", "show what it learned"),
            (f"predict runs/{self.name} FOLDER -o answers.csv", "answers for a folder of new pictures"),
        )
        yield f"language: {LANGUAGES[-1]}"
        yield f"name: {self.name}"
        yield "seed: 0"

    def _data(self) -> Iterator[str]:
        yield "data:"
        yield f"  source: {flow(self.source)}"
        if self.files.broken:
            yield "  # Left out, as they cannot be decoded:"
            for place, why in self.files.broken[:10]:
                yield from comment(f"- {place}: {why}", 2, hanging=4)
            yield "  on_bad_row: skip   # dtrain: ignore[D024]"
        if self.empty:
            yield from comment(f"Folders without a picture, so without a class: {list_quoted(self.empty)}.", 2)
        yield "  fields:"
        keys: dict[str, object] = {"type": "image", "column": self.column}
        if self.folder is not None:
            keys["folder"] = self.folder
        if self.files.are_grey and self.published is None:
            yield "    # Grey: one channel."
            keys["mode"] = "L"
        elif len(self.files.modes) > 1:
            yield "    # All become RGB; transparency is dropped."
        if self._is_small:
            keys["size"] = self._side
        yield f"    image: {flow(keys)}"
        column = quote(self.target.name)
        if self.target.classes:
            named = ", ".join(f"{each} ({count})" for each, count in list(self.target.classes.items())[:8])
            more = ", ..." if len(self.target.classes) > 8 else ""
            yield from comment(
                f"{format_count(len(self.target.classes), 'class')}, with their pictures: {named}{more}.", 4
            )
            yield f"    {self._field}: {{type: category, column: {column}}}"
        else:
            yield f"    {self._field}: {{columns: [{column}], normalize: standard}}"
        yield from self._transforms()
        yield "  split:"
        for name, fraction in fractions_for(self.files.number).items():
            stratified = f"{{type: stratified, fraction: {fraction}, column: {column}}}"
            yield f"    {name}: {stratified if self.target.classes else fraction}"

    def _transforms(self) -> Iterator[str]:
        side, is_line = self._side, self.files.are_grey and self._is_small
        yield "  transforms:"
        if self._is_small:
            yield "    # Small pictures keep their size, and are shifted by an eighth."
            yield f"    - {{type: random_crop, size: {side}, padding: {max(1, side // 8)}}}"
        else:
            yield f"    # A model needs one size: {side} x {side}. Training sees random parts of the pictures."
            yield f"    - {{type: random_resized_crop, size: {side}, scale: [0.4, 1.0], only: training}}"
            yield f"    - {{type: resize, size: {side * 8 // 7}, only: evaluation}}"
            yield f"    - {{type: center_crop, size: {side}, only: evaluation}}"
        if is_line:
            yield "    # No mirroring: small grey pictures are often digits or letters."
        else:
            yield "    # Remove it if a mirrored picture means something else, such as letters, or left and right."
            yield "    - {type: random_flip}"
        if not self._is_small:
            yield "    - {type: trivial_augment}"
        if self.files.are_grey and self.published is None:
            mean, deviation = round(self.files.mean, 3), max(round(self.files.deviation, 3), 0.001)
            yield f"    - {{type: normalize, mean: [{mean}], std: [{deviation}]}}   # of these pictures"
        else:
            yield "    - {type: normalize, mean: imagenet, std: imagenet}"
        if not self._is_small:
            yield "    - {type: random_erasing, p: 0.1}"

    def _model(self) -> Iterator[str]:
        yield "model:"
        outputs = len(self.target.classes) or 1
        if self.published is not None:
            yield from comment(f"Published weights, which were in the local cache, and a new head for {outputs}.", 2)
            yield "  graph:"
            yield f"    net: {{type: resnet, from: {self.published}, out_features: {outputs}, input: image}}"
            yield f"  weights: {{net: {{path: {self.published}, format: huggingface, exclude: [logits]}}}}"
            return
        number = self.files.number
        width = 16 if number < 2000 else 32 if number < 20_000 else 64
        yield from comment(
            f"The width is for {format_count(number, 'picture')}: a wider network overfits. Published weights learn "
            f"more from few pictures: after `hf download {PUBLISHED[-1]}` on a machine with a network, init uses them.",
            2,
        )
        small = ", small_images: true" if self._is_small else ""
        yield "  graph:"
        yield (
            f"    net: {{type: resnet, depth: 18, width: {width}, groups: {width // 4}{small}, "
            f"out_features: {outputs}, input: image}}"
        )

    def _metrics(self) -> list[str]:
        if not self.target.classes:
            return ["rmse", "mae", "r2"]
        return ["f1", "accuracy"] if self.target.is_imbalanced else ["accuracy", "f1"]

    def _objective(self) -> Iterator[str]:
        yield "objective:"
        kind = "cross_entropy" if self.target.classes else "mse"
        yield f"  loss: {{type: {kind}, input: net, target: {self._field}}}"
        yield f"  metrics: [{', '.join(self._metrics())}]"

    def _training(self) -> Iterator[str]:
        number = self.files.number
        batch = 32 if number < 1000 else 64 if number < 20_000 else 128
        training = number - sum(round(number * each) for each in fractions_for(number).values())
        yield "training:"
        is_tuned = self.published is not None
        yield f"  epochs: {10 if is_tuned else min(60, max(10, _STEPS // number))}"
        yield f"  global_batch_size: {min(batch, training)}"
        lr = "3e-4" if is_tuned else "3e-3"
        yield f"  optimizer: {{type: adamw, lr: {lr}, weight_decay: 0.05}}"
        yield "  lr_schedule: {type: one_cycle}"
        yield "evaluation: {every: 1 epoch}"
        metric, mode = (self._metrics()[0], "max") if self.target.classes else ("loss", "min")
        yield f"checkpoint: {{every: 1 epoch, keep: 2, best: {{metric: validation/{metric}, mode: {mode}}}}}"

    def _rest(self) -> Iterator[str]:
        yield "parallelism: single        # or: ddp, fsdp, pipeline, auto, with more GPUs below"
        yield "layout: {gpus: 1}          # without a GPU: the CPU"


def make_of_folder(folder: str, target: str | None, path: Path, name: str, schema: str) -> PictureRecipe:
    """Return the contents of a recipe for a folder that has one folder of images per class. `target`: the value of the
    user's `--target`, which must be None or the label column. `path`: the recipe's file. Raises UnusableError and
    SourceError."""
    if target not in (None, LABEL):
        raise UnusableError(
            f"{format_path(folder)} is a folder of pictures, whose classes are the names of its folders",
            f"leave out --target, or give a table with the file names and a column `{target}`",
            is_word=True,
        )
    table = ImageFolderDataset(path=folder).open()
    if LABEL not in table.columns:
        raise UnusableError(
            f"the pictures in {format_path(folder)} are in no folder of a class",
            "put those of each class in a folder, or give a table: `--from files.csv --target COLUMN`",
        )
    answers = read_target(table, LABEL, folder, "classes")
    seen = folder if is_remote(folder) else os.path.relpath(folder, path.parent).replace(os.sep, "/")
    return PictureRecipe(
        path=str(path),
        command=f"dtrain init --from {folder}",
        name=name,
        schema=schema,
        source={"type": "image_folder", "path": seen},
        column="image",
        folder=None,
        files=look_at(table, "image", None),
        target=answers,
        empty=_empty_folders(folder, answers),
        published=_find_published(),
    )


def make_of_files(
    table: Table,
    source: dict[str, object],
    target: TargetColumn,
    files: tuple[str, str],
    path: Path,
    name: str,
    schema: str,
    command: str,
) -> PictureRecipe:
    """Return the contents of a recipe for a table with file names. `source`: keys of the table's source. `files`: the
    column with the names, and the folder of the files. `path`: the recipe's file. `command`: the command that its
    header names. Raises UnusableError."""
    column, folder = files
    return PictureRecipe(
        path=str(path),
        command=command,
        name=name,
        schema=schema,
        source=source,
        column=column,
        folder=os.path.relpath(folder, path.parent).replace(os.sep, "/"),
        files=look_at(table, column, folder),
        target=target,
        empty=(),
        published=_find_published(),
    )


def _empty_folders(folder: str, target: TargetColumn) -> tuple[str, ...]:
    if is_remote(folder):
        return ()
    names = [each.name for each in os.scandir(folder) if each.is_dir() and not each.name.startswith((".", "__"))]
    return tuple(sorted(name for name in names if name not in target.classes))


def _find_published() -> str | None:
    """Return the id of the first known published model that is in the local cache, or None if none is. Nothing is
    downloaded."""
    for each in PUBLISHED:
        try:
            find_published_folder(each, os.path.abspath(each))
        except PublishedError:
            continue
        return each
    return None
