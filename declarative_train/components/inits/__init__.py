"""Ways a parameter can start: one file per rule."""

from declarative_train.components.component import Init
from declarative_train.components.registry import Registry

INITS: Registry[Init] = Registry(
    "init",
    "declarative_train.components.inits",
    {
        "constant": "constant.Constant",
        "kaiming_normal": "kaiming.KaimingNormal",
        "kaiming_uniform": "kaiming.KaimingUniform",
        "normal": "normal.Normal",
        "ones": "constant.Ones",
        "orthogonal": "orthogonal.Orthogonal",
        "trunc_normal": "trunc_normal.TruncNormal",
        "uniform": "uniform.Uniform",
        "xavier_normal": "xavier.XavierNormal",
        "xavier_uniform": "xavier.XavierUniform",
        "zeros": "constant.Zeros",
    },
)

__all__ = ["INITS"]
