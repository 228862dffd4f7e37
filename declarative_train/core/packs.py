"""Packs: extensions of dtrain by an installed Python package, each for one kind of data or model. A pack adds
components, keys, checks, commands and hooks.

A package provides a pack by an entry point of the group `dtrain.packs`, whose object is a `Pack`:

    [project.entry-points."dtrain.packs"]
    audio = "dtrain_audio:PACK"

Only that object is imported to find a pack. Everything else is named by its address, `package.module:name`, and is
imported when it is first used.
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
    """Command of `dtrain`: its line in `dtrain --help`, its module (with `add_arguments` and `run`), and whether it
    needs a POSIX system."""

    summary: str
    module: str
    needs_posix: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Pack:
    """Everything that a package adds to dtrain: rows of tables, keys, checks, commands and hooks. Every field is
    optional and has its own description. Addresses are texts `package.module:name`."""

    components: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Addresses of component classes, by the word of their kind (`source`, `field`, `layer`, ...) and by their type. Of
    the kind `section`: addresses of `Section` classes by the name of the section, which no recipe must have; the value
    is in `recipe.sections_of_packs`."""
    endings: Mapping[str, str] = field(default_factory=dict)
    """Types of the sources that read new files (`dtrain predict RUN FILE`), by the ending of their names, such as
    `.flac`."""
    blocks: str = ""
    """A package with a file `NAME.yaml` for each block, in the form of those in declarative_train/blocks: further types
    of nodes."""
    formats: Mapping[str, str] = field(default_factory=dict)
    """Addresses of the formats of weights, by the word of `format` in an entry of `model.weights`: classes with two
    static methods, and a third one if a plan has `packed`. `locate(weights, path)`, called when the recipe is read,
    gets the entry and its absolute path, and returns that of the files; raises PublishedError. `plan(recipe, lowered,
    parameters, weights)`, called when it is compiled, returns the `WeightsPlan`, or None, and diagnostics.
    `unpack(tensors)`, called when files with fewer bits are opened, returns them as they were."""
    keys: Mapping[str, str] = field(default_factory=dict)
    """Addresses of `Section` classes whose keys a section of the recipe gets, by the section's name. Sections that take
    such keys: `evaluation`."""
    checks: str = ""
    """A package of checks whose `RULES` maps codes to `family.function`, as declarative_train/recipe/checks does. The
    functions of a family whose name ends in `_rules` get each draft of a recipe."""
    commands: Mapping[str, Command] = field(default_factory=dict)
    """Commands of `dtrain`, by name."""
    data_commands: Mapping[str, Command] = field(default_factory=dict)
    """Commands `dtrain data WORD RECIPE`, by the word. The module has `add_arguments(parser)`, `run(args)` and
    `misuse(args)`, which returns a line about its arguments if another word is given with them."""
    read_block: str = ""
    """Hook `read_block(block, fields, resolve)`, called for each node of a shipped block: with the block's name, the
    node's fields and a function that makes paths absolute. It returns the fields with the params that files define, a
    `Published` if published models match the block, else None, and diagnostics."""
    document_block: str = ""
    """Hook `document_block(block)`, called for the JSON schema. It returns the schemas of further keys of a shipped
    block, which `read_block` reads."""
    prepare_fields: str = ""
    """Hook `prepare_fields(table, rows, parts, *, skips)`, called for each set when it is opened, before its values are
    read: with the table, the rows of the set and the `FieldReader`s. It returns all three, changed for the pack's own
    fields (texts become tokens). `skips`: rows without a value are in no sample. Raises BadSampleError and SourceError.
    """
    checkpoint_files: str = ""
    """Hook `checkpoint_files(components)`, called on rank 0 at the start of a run with the data of the source and the
    fields. It returns files that each checkpoint holds for them (a tokenizer): content by name."""
    use_checkpoint_files: str = ""
    """Hook `use_checkpoint_files(component, folder, names)`, called when a trained model is opened: with the data of
    the source or a field, the checkpoint's folder and the names of its files. It returns the data with the paths of the
    files of `checkpoint_files`."""
    check_samples: str = ""
    """Hook `check_samples(recipe, data)`, called when a recipe is compiled, once its model fits its data. It yields
    diagnostics on the pack's own fields: with the Recipe, and the DataSpec whose sets `prepare_sets` has."""
    plan_evaluation: str = ""
    """Hook `plan_evaluation(plan, recipe)`, called at the end of compiling. It returns the plan with what the pack's
    keys of `evaluation` ask for, and diagnostics."""
    evaluation_writer: str = ""
    """Hook `evaluation_writer(plan, engine)`, called on each rank at the start of a run. It returns a function that is
    called with the step at each evaluation, on all ranks together, and returns an event; or None."""
    data_tables: str = ""
    """Hook `data_tables(data, sets)`, called by `dtrain data show` with the DataSpec and its prepared sets. It yields
    further tables (`Shown`)."""
    sheet: str = ""
    """Hook `sheet(data)`, called by `dtrain data show --pictures` and `--html` with the DataSpec. It returns a PNG file
    of some training samples before and after their transforms, or None if the pack has none to draw."""
    compare_models: str = ""
    """Hook `compare_models(plan, training, evaluated)`, called by an evaluation with the plan and two functions that
    yield the batches of the training set and of the evaluated rows. It returns a `Comparison` of simple models on these
    rows, or None if the pack has none for such data."""
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
        except Exception as error:  # of code that is not ours
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
    """Return the folder of a Python package without importing it; only its parent packages are imported. Raises
    PackError."""
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
    """Return the object in the table `table` of an installed pack under the key `word`. Raises LookupError if no pack
    has this key, and PackError."""
    for pack in find_packs().values():
        if word in getattr(pack, table):
            return load(getattr(pack, table)[word])
    raise LookupError(word)


def add_rows(kind: str, own: Mapping[str, str]) -> dict[str, str]:
    """Return the table {type: address} of one kind of component, sorted: the rows `own` and the rows of all packs.
    Raises PackError, for example if two rows have the same type."""
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
