"""Pack `angles`: angles in degrees as fields, a periodic layer and a block of them, a loss, a section, a command."""

from declarative_train.core.packs import Command, Pack

PACK = Pack(
    components={
        "field": {"angle": "dtrain_angles.field:AngleField"},
        "layer": {"sine": "dtrain_angles.layer:Sine"},
        "loss": {"cosine_distance": "dtrain_angles.loss:CosineDistance"},
        "section": {"angles": "dtrain_angles.section:Angles"},
    },
    blocks="dtrain_angles.blocks",
    commands={"angle": Command("print the values of an angle", "dtrain_angles.command")},
)
