"""Start values of parameters: one file per family of rules."""

from declarative_train.components.component import Init
from declarative_train.components.registry import Registry

INITS: Registry[Init] = Registry(
    "init",
    "declarative_train.components.inits",
    {
        "constant": "rules.ConstantInit",
        "kaiming_normal": "rules.KaimingNormal",
        "kaiming_uniform": "rules.KaimingUniform",
        "normal": "rules.Normal",
        "ones": "rules.Ones",
        "orthogonal": "rules.Orthogonal",
        "trunc_normal": "rules.TruncNormal",
        "uniform": "rules.Uniform",
        "xavier_normal": "rules.XavierNormal",
        "xavier_uniform": "rules.XavierUniform",
        "zeros": "rules.Zeros",
    },
)

__all__ = ["INITS"]
