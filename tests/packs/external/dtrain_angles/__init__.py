"""Pack `angles`: angles in degrees as fields, a periodic layer, a loss, and a command."""

from declarative_train.core.packs import Command, Pack

PACK = Pack(
    components={
        "field": {"angle": "dtrain_angles.field:AngleField"},
        "layer": {"sine": "dtrain_angles.layer:Sine"},
        "loss": {"cosine_distance": "dtrain_angles.loss:CosineDistance"},
    },
    commands={"angle": Command("print the values of an angle", "dtrain_angles.command")},
)
