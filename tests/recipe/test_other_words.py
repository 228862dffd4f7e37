"""What other tools call things: hints on what is not here must not be about what is."""

from __future__ import annotations

import pytest

from declarative_train import recipe as recipe_room
from declarative_train.components.datasets import DATASETS
from declarative_train.components.fields import FIELDS
from declarative_train.components.layers import LAYERS
from declarative_train.components.losses import LOSSES
from declarative_train.components.lr_schedules import LR_SCHEDULES
from declarative_train.components.metrics import METRICS
from declarative_train.components.optimizers import OPTIMIZERS
from declarative_train.components.transforms import TRANSFORMS
from declarative_train.recipe.mistakes.aliases import NOT_BUILT, NOTES, letters

TABLES = (DATASETS, FIELDS, LAYERS, LOSSES, LR_SCHEDULES, METRICS, OPTIMIZERS, TRANSFORMS)


def test_what_is_built_is_not_called_not_built() -> None:
    built = {letters(name) for table in TABLES for name in table}
    assert sorted(built & set(NOT_BUILT)) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("data: {source: {type: ImageFolder, path: x}}", "did you mean `image_folder`?"),
        ("data: {source: {type: webdataset, path: x}}", "here it is called `tar`"),
        ("model: {lora: {rank: 8}}", "adapter: {type: lora"),
        ("data: {augmentation: [flip]}", "`data.transforms`"),
        ("kfold: 5", "there is no cross-validation; `sweep:"),
    ],
)
def test_words_of_other_tools_lead_to_what_is_here(text: str, said: str) -> None:
    found = recipe_room.load("r.yaml", text=f"fragment: true\n{text}\n").diagnostics
    assert any(said in (item.help or "") for item in found), [(item.message, item.help) for item in found]


def test_the_sweep_of_the_hint_on_cross_validation_is_one() -> None:
    _, text, _ = NOTES["kfold"].split("`")
    assert recipe_room.load("r.yaml", text=f"fragment: true\n{text}\n").diagnostics == []
