"""Table of the inits that a recipe can name. An init is a rule for the start values of a parameter."""

from declarative_train.components.component import Init
from declarative_train.components.registry import Registry

INITS: Registry[Init] = Registry(
    "init",
    "declarative_train.components.inits",
    {
        "constant": "builtin.ConstantInit",
        "kaiming_normal": "builtin.KaimingNormal",
        "kaiming_uniform": "builtin.KaimingUniform",
        "normal": "builtin.Normal",
        "ones": "builtin.Ones",
        "orthogonal": "builtin.Orthogonal",
        "trunc_normal": "builtin.TruncNormal",
        "uniform": "builtin.Uniform",
        "xavier_normal": "builtin.XavierNormal",
        "xavier_uniform": "builtin.XavierUniform",
        "zeros": "builtin.Zeros",
    },
)

__all__ = ["INITS"]
