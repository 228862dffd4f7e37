"""Pack `pretrained`: published models as weights of shipped blocks, models of timm and transformers as nodes, adapters,
optimizers of other libraries."""

from declarative_train.core.packs import Pack

_HERE = "declarative_train.packs.pretrained"

PACK = Pack(
    components={
        "adapter": {"dora": f"{_HERE}.adapters.lora:Dora", "lora": f"{_HERE}.adapters.lora:Lora"},
        "layer": {
            "timm": f"{_HERE}.libraries.timm:Timm",
            "transformers": f"{_HERE}.libraries.transformers:Transformers",
        },
        "optimizer": {
            "adamw_8bit": f"{_HERE}.optimizers.library_optimizers:Adamw8bit",
            "adamw_schedule_free": f"{_HERE}.optimizers.library_optimizers:AdamwScheduleFree",
        },
    },
    formats=dict.fromkeys(("huggingface", "timm", "torchvision"), f"{_HERE}.formats:PublishedWeights"),
    read_block=f"{_HERE}.published_fields:read_block",
    document_block=f"{_HERE}.published_fields:document_block",
)
