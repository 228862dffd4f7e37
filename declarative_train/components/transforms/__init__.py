"""Transforms: what may be done to the pictures of a sample, under `data.transforms`."""

from __future__ import annotations

from declarative_train.components.data import Transform
from declarative_train.components.registry import Registry

TRANSFORMS: Registry[Transform] = Registry(
    "transform",
    __name__,
    {
        "center_crop": "sizes.CenterCrop",
        "color_jitter": "colours.ColorJitter",
        "cutmix": "pairs.CutMix",
        "mixup": "pairs.MixUp",
        "normalize": "numbers.Normalize",
        "rand_augment": "policies.RandAugment",
        "random_crop": "sizes.RandomCrop",
        "random_erasing": "numbers.RandomErasing",
        "random_flip": "turns.RandomFlip",
        "random_resized_crop": "sizes.RandomResizedCrop",
        "random_rotation": "turns.RandomRotation",
        "resize": "sizes.Resize",
        "trivial_augment": "policies.TrivialAugment",
    },
)
