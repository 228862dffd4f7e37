"""Pack `pretrained`: models of the libraries timm and transformers as nodes."""

from declarative_train.core.packs import Pack

_HERE = "declarative_train.packs.pretrained"

PACK = Pack(
    components={
        "layer": {
            "timm": f"{_HERE}.libraries.timm:Timm",
            "transformers": f"{_HERE}.libraries.transformers:Transformers",
        },
    },
)
