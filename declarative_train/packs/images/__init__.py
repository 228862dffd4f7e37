"""Pack `images`: pictures, masks and boxes."""

from declarative_train.core.packs import Pack

_HERE = "declarative_train.packs.images"
ENDINGS = (".avif", ".bmp", ".gif", ".jpeg", ".jpg", ".pbm", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")

PACK = Pack(
    components={"source": {"image_folder": f"{_HERE}.image_folder:ImageFolderDataset"}},
    endings=dict.fromkeys(ENDINGS, "image_folder"),
)
