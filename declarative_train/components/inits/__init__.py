"""Ways a parameter can start: one file per family."""

from declarative_train.components.component import Init
from declarative_train.components.registry import Registry

INITS: Registry[Init] = Registry(
    "init",
    "declarative_train.components.inits",
    {
        "constant": "constant.Constant",
        "kaiming_normal": "scaled.KaimingNormal",
        "kaiming_uniform": "scaled.KaimingUniform",
        "normal": "drawn.Normal",
        "ones": "constant.Ones",
        "orthogonal": "scaled.Orthogonal",
        "trunc_normal": "drawn.TruncNormal",
        "uniform": "drawn.Uniform",
        "xavier_normal": "scaled.XavierNormal",
        "xavier_uniform": "scaled.XavierUniform",
        "zeros": "constant.Zeros",
    },
)

__all__ = ["INITS"]
