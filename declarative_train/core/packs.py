"""Packs: extensions of dtrain by an installed Python package, each for one kind of data or model. A pack adds
components, keys, checks, commands and hooks.

A package provides a pack by an entry point, whose object is a `Pack`:

    [project.entry-points."dtrain.packs"]
    audio = "dtrain_audio:PACK"

Everything else is named by its address, `package.module:name`, and imported when it is first used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

GROUP = "dtrain.packs"


class PackError(RuntimeError):
    """Error: an installed pack, or a module that it names, cannot be imported or is wrong. The message is one line."""


class Command(NamedTuple):
    """Command of `dtrain`. `summary`: its line in `dtrain --help`. `module`: its module, which has `add_arguments` and
    `run`. `needs_posix`: whether it needs a POSIX system."""

    summary: str
    module: str
    needs_posix: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Pack:
    """Everything that a package adds to dtrain: components, keys, checks, commands and hooks. Every field is optional
    and has its own description. Addresses are texts `package.module:name`."""

    components: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Addresses of component classes: a mapping from the kind (`source`, `field`, `layer`, ...) to a mapping from type
    to address. The kind `section` maps names of sections of the recipe to `Section` classes. A recipe may leave such a
    section out; its value is in `recipe.sections_of_packs`."""
    endings: Mapping[str, str] = field(default_factory=dict)
    """File endings, such as `.flac`, of new files (`dtrain predict RUN FILE`), each with the type of the source that
    reads them."""
    blocks: str = ""
    """Package with a file `NAME.yaml` for each block that the pack adds as a type of node. The files have the form of
    those in declarative_train/blocks."""
    formats: Mapping[str, str] = field(default_factory=dict)
    """Addresses of the formats of weights, by the word of `format` in an entry of `model.weights`. A format is a class
    with static methods:

    `locate(weights, path)` is called when the recipe is read, with the entry and its absolute path. It returns the path
    of the files, and raises PublishedError.

    `plan(recipe, lowered, parameters, weights)` is called when the recipe is compiled. It returns the `WeightsPlan`, or
    None, and diagnostics.

    `unpack(tensors)`, needed only if plans have `packed`, is called when files with fewer bits are opened. It returns
    the tensors as they were before."""
    keys: Mapping[str, str] = field(default_factory=dict)
    """Addresses of `Section` classes, by the name of the recipe's section that gets their keys. Only `evaluation`
    accepts such keys."""
    checks: str = ""
    """Package of checks whose `RULES` maps codes to `family.function`, as declarative_train/recipe/checks does. The
    functions of a family whose name ends in `_rules` are called with each draft of a recipe."""
    commands: Mapping[str, Command] = field(default_factory=dict)
    """Commands of `dtrain`, by name."""
    data_commands: Mapping[str, Command] = field(default_factory=dict)
    """Commands `dtrain data WORD RECIPE`, by the word. The module has `add_arguments(parser)`, `run(args)` and
    `misuse(args)`. `misuse` is called if another word is given. It returns a line if the arguments contain options of
    this command, else None."""
    read_block: str = ""
    """Hook `read_block(block, fields, resolve)`, called for each node whose type is a shipped block. `block`: name of
    the block. `fields`: the node's fields. `resolve`: function that makes a path absolute. It returns the fields, with
    the params of the block that files define; a `Published` if published models match the block, else None; and
    diagnostics."""
    document_block: str = ""
    """Hook `document_block(block)`, called for the JSON schema. It returns the schemas of the keys that `read_block`
    accepts in addition to the params of the block."""
    prepare_fields: str = ""
    """Hook `prepare_fields(table, rows, readers, *, skips)`, called for each set when it is opened, before its values
    are read. `rows`: the rows of the set. `readers`: its `FieldReader`s. `skips`: whether rows without a value are left
    out. It returns table, rows and readers, changed for the pack's own fields (texts become tokens). Raises
    BadSampleError and SourceError."""
    checkpoint_files: str = ""
    """Hook `checkpoint_files(components)`, called on rank 0 at the start of a run. `components`: the data of the source
    and the fields. It returns the files that each checkpoint must hold for them (a tokenizer): a dict from name to
    content."""
    use_checkpoint_files: str = ""
    """Hook `use_checkpoint_files(component, folder, names)`, called when a trained model is opened. `component`: the
    data of the source or of a field. `folder`: the checkpoint's folder. `names`: the names of its files. It returns the
    data, in which paths lead to the files that `checkpoint_files` saved."""
    check_recipe: str = ""
    """Hook `check_recipe(recipe, data, parameters)`, called when a recipe is compiled, after its model was found to fit
    its data. `data`: the DataSpec; `prepare_sets(data)` returns its samples. `parameters`: the `ParameterPlan` of each
    parameter of the model; empty if the recipe's settings of parameters have errors. It yields diagnostics on the
    pack's own fields and blocks."""
    plan_evaluation: str = ""
    """Hook `plan_evaluation(plan, recipe)`, called at the end of compiling. It returns the plan, with the evaluations
    that the pack's keys of `evaluation` ask for, and diagnostics."""
    evaluation_writer: str = ""
    """Hook `evaluation_writer(plan, engine)`, called on each rank at the start of a run. It returns None, or a function
    that all ranks call together at each evaluation. The function gets the step and returns an event."""
    data_tables: str = ""
    """Hook `data_tables(data, sets)`, called by `dtrain data show`. `data`: the DataSpec. `sets`: its prepared sets. It
    yields more tables to print (`Shown`)."""
    sheet: str = ""
    """Hook `sheet(data)`, called by `dtrain data show --pictures` and `--html`. `data`: the DataSpec. It returns a PNG
    file of some training samples before and after their transforms, or None if the pack has no samples to draw."""
    compare_models: str = ""
    """Hook `compare_models(plan, training, evaluated)`, called by an evaluation. `training`, `evaluated`: functions
    that yield the batches of the training set and of the evaluated rows. It returns a `Comparison` with simple models
    on the evaluated rows, or None if the pack has none for such data."""
    export: str = ""
    """Hook `export(trained, to, folder, *, outputs, numbers, dtype)`, called by `Run.export` of the Python API. It
    writes a folder for other tools and returns a description of it. Raises UsageError and RunFailure."""


@cache
def find_packs() -> Mapping[str, Pack]:
    """Return the installed packs by name. Raises PackError."""
    from importlib.metadata import entry_points

    packs: dict[str, Pack] = {}
    for point in sorted(entry_points(group=GROUP)):
        distribution = "" if point.dist is None else f" of {point.dist.name}"
        if point.name in packs:
            raise PackError(f"two packs are called `{point.name}`; help: uninstall the package of one")
        try:
            pack = point.load()
        except Exception as error:  # the pack's code may raise anything
            raise _unusable(f"the pack `{point.name}`{distribution}", error) from error
        if not isinstance(pack, Pack):
            raise PackError(f"the pack `{point.name}`{distribution} is not a `Pack`: {point.value}")
        packs[point.name] = pack
    return packs


def load(address: str) -> Any:
    """Import and return the object at an address `package.module:name`. Raises PackError."""
    module, _, name = address.partition(":")
    try:
        return getattr(import_module(module), name)
    except Exception as error:
        raise _unusable(f"`{address}` of a pack", error) from error


def find_folder(package: str) -> Path:
    """Return the folder of a Python package. Only its parent packages are imported. Raises PackError."""
    try:
        found = find_spec(package)
    except Exception as error:
        raise _unusable(f"`{package}` of a pack", error) from error
    if found is None or not found.submodule_search_locations:
        raise PackError(f"there is no package `{package}`, which a pack names")
    return Path(found.submodule_search_locations[0])


def hooks(name: str) -> Iterator[Callable[..., Any]]:
    """Yield the function for the hook `name` of each pack that defines it, in the order of the packs' names. Raises
    PackError."""
    for pack in find_packs().values():
        if address := getattr(pack, name):
            yield load(address)


def find_row(table: str, word: str) -> Any:
    """Return the object for the key `word` in a table of the installed packs. `table`: name of the table, a field of
    `Pack`. Raises LookupError if no pack has this key, and PackError."""
    for pack in find_packs().values():
        if word in getattr(pack, table):
            return load(getattr(pack, table)[word])
    raise LookupError(word)


def add_rows(kind: str, own: Mapping[str, str]) -> dict[str, str]:
    """Return the components of one kind, built-in (`own`) or from packs, as a dict from type to import address, sorted
    by type. Raises PackError, for example if a type occurs twice."""
    found = dict(own)
    for name, pack in find_packs().items():
        for word, address in pack.components.get(kind, {}).items():
            if word in found:
                raise PackError(f"the pack `{name}` has a {kind} `{word}`, and there is one already: {found[word]}")
            found[word] = address
    return dict(sorted(found.items()))


def _unusable(subject: str, error: Exception) -> PackError:
    reason = " ".join(str(error).split()) or "no message"
    return PackError(f"{subject} cannot be imported: {type(error).__name__}: {reason}; help: update its package, "
                     "install what it needs, or uninstall it")  # fmt: skip
