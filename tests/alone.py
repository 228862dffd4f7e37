"""Marks for tests that need a pack (packs/text, packs/images, ...), so that the core can be tested without packs
(test_core_alone.py)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

TYPES = (  # types in the packs of dtrain; tests/packs/test_packs.py compares this list with them
    *(
        "adamw_8bit",
        "adamw_schedule_free",
        "box_iou",
        "boxes",
        "center_crop",
        "color_jitter",
        "cutmix",
        "date",
        "dora",
        "giou",
        "image",
        "image_folder",
    ),
    *(
        "latent_attention",
        "lora",
        "mask",
        "mixup",
        "normalize",
        "rand_augment",
        "random_crop",
        "random_erasing",
        "random_flip",
        "random_resized_crop",
    ),
    *("random_rotation", "resize", "safetensors", "sqlite", "tar", "text", "timm", "tokens"),
    *("transformers", "trivial_augment"),
)
_NAMED = re.compile(rf"\btype'?: '?({'|'.join(TYPES)})\b")
_BASES = re.compile(r"^extends: \[?([^\]#\n]+)", re.M)


def mark_packs(cases: Iterable[Any], text_of: Callable[[Any], str] = repr) -> list[Any]:
    """Return the cases as parameters of pytest. A case gets the mark `packs` if its text names a component of a pack.
    `text_of`: function from a case to its text."""
    return [pytest.param(case, marks=pytest.mark.packs if _NAMED.search(text_of(case)) else ()) for case in cases]


def text_of_recipe(path: Path) -> str:
    """Return the text of a recipe, followed by the texts of the recipes that it extends."""
    text = path.read_text("utf-8")
    bases = [each.strip() for found in _BASES.findall(text) for each in found.split(",")]
    return "\n".join([text, *(text_of_recipe(path.parent / base) for base in bases)])


def of_core(registry: Iterable[str]) -> list[str]:
    """Return, sorted, the types in a registry that exist without packs."""
    return sorted(name for name in registry if name not in TYPES)
