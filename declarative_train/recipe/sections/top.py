"""Top level of a recipe: its sections, and its other keys."""

import re
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, Field, WithJsonSchema, create_model

from declarative_train.core.packs import add_rows, load
from declarative_train.recipe.sections.checkpoint import Checkpoint
from declarative_train.recipe.sections.data import DataSection
from declarative_train.recipe.sections.evaluation import Evaluation
from declarative_train.recipe.sections.layout import Layout
from declarative_train.recipe.sections.logging import Logging
from declarative_train.recipe.sections.model import ModelSection
from declarative_train.recipe.sections.objective import ObjectiveSection
from declarative_train.recipe.sections.parallelism import DEFAULT, Auto, Parallelism
from declarative_train.recipe.sections.section import Section, models_in, with_pack_keys
from declarative_train.recipe.sections.sweep import Sweep
from declarative_train.recipe.sections.training import Training

LANGUAGES = (1,)
"""Numbers of the recipe language that this version reads, the newest last."""
_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
_NAME_SCHEMA = {"type": "string", "pattern": _NAME}


def _of_a_folder(name: str) -> str:
    if not re.match(_NAME, name):
        raise ValueError(
            f"`{name}` is used as a folder name: use letters, digits, `.`, `_` and `-`, starting with a letter or digit"
        )
    return name


class Head(Section):
    """Keys at the top level of a recipe whose values are not sections, such as `name` and `seed`."""

    requires: str | None = None
    """Versions of dtrain for this recipe, such as `dtrain>=0.1`."""
    language: Annotated[int, WithJsonSchema({"enum": list(LANGUAGES)})] = 1
    """Number of the recipe language, which decides what the keys mean. Left out: 1, even if there is a newer number."""
    extends: str | tuple[str, ...] | None = None
    """Base recipes, relative to this file. They are merged from left to right, then this file is merged over them."""
    fragment: bool = False
    """Whether this file is a part for `extends` or `--with`, which can be linted but not run."""
    name: Annotated[str, AfterValidator(_of_a_folder), WithJsonSchema(_NAME_SCHEMA)] | None = None
    """Name of the run directory; left out: the file's name without its ending."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Seed of start values, data order and every random draw."""
    vars: dict[str, Any] = {}
    """Variables for templates: `{{ vars.hidden }}`."""
    meta: dict[str, Any] = {}
    """Notes in any form, which are not checked."""
    plugins: tuple[str, ...] = ()
    """Python files that define more components, relative to this file. `lint` reads them without importing them."""


if TYPE_CHECKING:
    ExtendedEvaluation = Evaluation
else:
    ExtendedEvaluation = with_pack_keys("evaluation", Evaluation)


class Top(Head):
    """A recipe: the data, the model graph, the objective, how long to train, and on which devices."""

    data: DataSection
    model: ModelSection
    objective: ObjectiveSection
    training: Training
    # With a factory, pydantic builds the class of a section at its first use, not when this file is imported.
    evaluation: ExtendedEvaluation = Field(default_factory=ExtendedEvaluation)
    parallelism: Parallelism | Auto = Field(default_factory=DEFAULT)
    layout: Layout = Field(default_factory=Layout)
    checkpoint: Checkpoint = Field(default_factory=Checkpoint)
    logging: Logging = Field(default_factory=Logging)
    sweep: Sweep | None = None


_OWN = (
    "data",
    "model",
    "objective",
    "training",
    "evaluation",
    "parallelism",
    "layout",
    "checkpoint",
    "logging",
    "sweep",
)
REQUIRED = _OWN[:4]
OF_PACKS: dict[str, type[Section]] = {
    name: load(address)
    for name, address in add_rows("section", dict.fromkeys(Top.model_fields, "a key of every recipe")).items()
    if name not in Top.model_fields
}
SECTIONS = (*_OWN, *OF_PACKS)
if OF_PACKS:
    more: Any = {name: (section | None, None) for name, section in OF_PACKS.items()}
    Top = create_model("Top", __base__=Top, __module__=__name__, __doc__=Top.__doc__, **more)  # type: ignore[misc]


def keys_of(section: str) -> set[str]:
    """Return the names of all keys that a section may have. For `parallelism`, these are the keys of all its
    classes.
    """
    models = models_in(Top.model_fields[section].annotation)
    return {key for model in models for key in (*model.model_fields, *getattr(model, "short_forms", ()))}
