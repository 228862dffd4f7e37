"""Pack `images`: images, masks and boxes, and their transforms."""

from declarative_train.core.packs import Pack

_HERE = "declarative_train.packs.images"
ENDINGS = (".avif", ".bmp", ".gif", ".jpeg", ".jpg", ".pbm", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")

PACK = Pack(
    components={
        "source": {"image_folder": f"{_HERE}.image_folder:ImageFolderDataset"},
        "field": {
            "boxes": f"{_HERE}.boxes:BoxesField",
            "image": f"{_HERE}.image:ImageField",
            "mask": f"{_HERE}.mask:MaskField",
        },
        "transform": {
            "center_crop": f"{_HERE}.transforms.sizes:CenterCrop",
            "color_jitter": f"{_HERE}.transforms.colours:ColorJitter",
            "cutmix": f"{_HERE}.transforms.pairs:CutMix",
            "mixup": f"{_HERE}.transforms.pairs:MixUp",
            "normalize": f"{_HERE}.transforms.numbers:Normalize",
            "rand_augment": f"{_HERE}.transforms.policies:RandAugment",
            "random_crop": f"{_HERE}.transforms.sizes:RandomCrop",
            "random_erasing": f"{_HERE}.transforms.numbers:RandomErasing",
            "random_flip": f"{_HERE}.transforms.turns:RandomFlip",
            "random_resized_crop": f"{_HERE}.transforms.sizes:RandomResizedCrop",
            "random_rotation": f"{_HERE}.transforms.turns:RandomRotation",
            "resize": f"{_HERE}.transforms.sizes:Resize",
            "trivial_augment": f"{_HERE}.transforms.policies:TrivialAugment",
        },
        "loss": {"giou": f"{_HERE}.box_losses:Giou"},
        "metric": {"box_iou": f"{_HERE}.box_metrics:BoxIou"},
    },
    endings=dict.fromkeys(ENDINGS, "image_folder"),
    checks=f"{_HERE}.checks",
    check_recipe=f"{_HERE}.check_recipe:check_recipe",
    sheet=f"{_HERE}.sheet:picture_sheet",
)
